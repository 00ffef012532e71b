// Peers of benchmarks/arithmetic.py: QD (compiled in with -DHAVE_QD) on arrays of its structures,
// and the networks of kernels/algorithms as loops over component planes, for the compiler to
// vectorise. Every entry takes the number of elements, of threads, the operands and the result.

#include <cmath>
#include <cstddef>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifdef HAVE_QD
#include <qd/dd_real.h>
#include <qd/qd_real.h>
#endif

using std::size_t;

namespace {

template <class Body>
void shared(size_t n, int threads, Body body) {
#pragma omp parallel for num_threads(threads) schedule(static)
    // Cut where a line of the cache ends.
    for (int t = 0; t < threads; ++t)
        body(n / 8 * t / threads * 8, t + 1 < threads ? n / 8 * (t + 1) / threads * 8 : n);
}

inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double root(double x) { return std::sqrt(x); }
#ifdef __AVX512F__
// A line of the cache, for stores that go past it.
typedef double Line __attribute__((vector_size(64)));

inline Line fused(Line a, Line b, Line c) {
    for (int k = 0; k < 8; ++k) a[k] = __builtin_fma(a[k], b[k], c[k]);
    return a;
}
inline Line root(Line x) {
    for (int k = 0; k < 8; ++k) x[k] = std::sqrt(x[k]);
    return x;
}
#endif

template <class T> struct Two { T s, e; };
template <class T> struct Pair { T x0, x1; };
template <class T> struct Quad { T x0, x1, x2, x3; };

template <class T> inline Two<T> two_sum(T a, T b) {
    T s = a + b, t = s - a;
    return {s, (a - (s - t)) + (b - t)};
}
template <class T> inline Two<T> fast_two_sum(T a, T b) {
    T s = a + b;
    return {s, b - (s - a)};
}
template <class T> inline Two<T> two_prod(T a, T b) {
    T p = a * b;
    return {p, fused(a, b, -p)};
}

// sum2, product2, quotient2, root2 of kernels/algorithms, without the special values.
template <class T> inline Pair<T> add(Pair<T> x, Pair<T> y) {
    Two<T> s = two_sum(x.x0, y.x0), t = two_sum(x.x1, y.x1), u = fast_two_sum(s.s, t.s);
    Two<T> r = fast_two_sum(u.s, (s.e + t.e) + u.e);
    return {r.s, r.e};
}
template <class T> inline Pair<T> mul(Pair<T> x, Pair<T> y) {
    Two<T> p = two_prod(x.x0, y.x0);
    Two<T> r = fast_two_sum(p.s, p.e + (x.x0 * y.x1 + x.x1 * y.x0));
    return {r.s, r.e};
}
template <class T> inline Pair<T> div(Pair<T> x, Pair<T> y) {
    T q = x.x0 / y.x0;
    Two<T> p = two_prod(y.x0, q), s = fast_two_sum(p.s, y.x1 * q), r = fast_two_sum(s.s, s.e + p.e);
    Two<T> out = fast_two_sum(q, ((x.x0 - r.s) + (x.x1 - r.e)) / y.x0);
    return {out.s, out.e};
}
template <class T> inline Pair<T> root(Pair<T> x) {
    T s = root(x.x0);
    Two<T> p = two_prod(s, s);
    Two<T> r = fast_two_sum(s, (((x.x0 - p.s) - p.e) + x.x1) / (s + s));
    return {r.s, r.e};
}

template <class T> inline void sweep(T &a, T &b) { Two<T> t = two_sum(a, b); a = t.s, b = t.e; }
template <class T> inline void fast(T &a, T &b) { Two<T> t = fast_two_sum(a, b); a = t.s, b = t.e; }

// sum4 and product4.
template <class T> inline Quad<T> add(Quad<T> x, Quad<T> y) {
    T a = x.x0, b = y.x0, c = x.x1, d = y.x1, e = x.x2, f = y.x2, g = x.x3, h = y.x3;
    sweep(a, b); sweep(c, d); sweep(e, f); sweep(g, h);
    fast(a, c); b += h; sweep(d, e); sweep(f, g); sweep(b, g); fast(c, d); sweep(e, f);
    fast(a, c); fast(d, e); sweep(b, d); fast(c, g); e += f; sweep(b, c); sweep(d, e);
    fast(a, b); sweep(c, d); e += g; fast(b, c); sweep(d, e); fast(a, b); fast(c, d);
    fast(b, c); d += e; fast(a, b); fast(c, d); fast(b, c); fast(c, d);
    return {a, b, c, d};
}
template <class T> inline Quad<T> mul(Quad<T> x, Quad<T> y) {
    Two<T> p = two_prod(x.x0, y.x0), q = two_prod(x.x0, y.x1), r = two_prod(x.x1, y.x0);
    Two<T> s = two_prod(x.x0, y.x2), t = two_prod(x.x1, y.x1), u = two_prod(x.x2, y.x0);
    T a = p.s, b0 = p.e, b1 = q.s, c1 = q.e, b2 = r.s, c2 = r.e;
    T c3 = s.s, d3 = s.e, c4 = t.s, d4 = t.e, c5 = u.s, d5 = u.e;
    T d6 = (x.x0 * y.x3 + x.x3 * y.x0) + (x.x1 * y.x2 + x.x2 * y.x1);
    sweep(b1, b2); sweep(c1, c2); sweep(c3, c5); d3 += d5; sweep(b0, b1); sweep(c1, c4);
    T d2 = c2 + d3;
    c5 += d4; fast(a, b0); fast(b1, b2); sweep(c1, c3); d2 += d6; c4 += c5; sweep(b1, c1);
    b2 += c4; d2 += c3; b2 += c1; sweep(b1, b2); sweep(b0, b1); b2 += d2; fast(a, b0);
    sweep(b1, b2); sweep(b0, b1); fast(a, b0); fast(b1, b2); fast(b0, b1); fast(a, b0);
    fast(b1, b2); fast(b0, b1); fast(b1, b2);
    return {a, b0, b1, b2};
}

template <class Body>
void loop2(size_t n, int threads, double *const *r, Body body) {
    double *__restrict r0 = r[0], *__restrict r1 = r[1];
    shared(n, threads, [=](size_t begin, size_t end) {
#pragma omp simd
        for (size_t i = begin; i < end; ++i) {
            Pair<double> v = body(i);
            r0[i] = v.x0, r1[i] = v.x1;
        }
    });
}
template <class Body>
void loop4(size_t n, int threads, double *const *r, Body body) {
    double *__restrict r0 = r[0], *__restrict r1 = r[1], *__restrict r2 = r[2], *__restrict r3 = r[3];
    shared(n, threads, [=](size_t begin, size_t end) {
#pragma omp simd
        for (size_t i = begin; i < end; ++i) {
            Quad<double> v = body(i);
            r0[i] = v.x0, r1[i] = v.x1, r2[i] = v.x2, r3[i] = v.x3;
        }
    });
}

#ifdef __AVX512F__
inline Line line(const double *x) {
    Line v;
    __builtin_memcpy(&v, x, sizeof v);
    return v;
}
inline Line lines(double x) { return Line{} + x; }
inline void past(double *r, Line v) { _mm512_stream_pd(r, (__m512d)v); }

// The same a line at a time, stored past the cache; whole lines only.
template <class Body>
void stream2(size_t n, int threads, double *const *r, Body body) {
    shared(n, threads, [=](size_t begin, size_t end) {
        for (size_t i = begin; i + 8 <= end; i += 8) {
            Pair<Line> v = body(i);
            past(r[0] + i, v.x0), past(r[1] + i, v.x1);
        }
        _mm_sfence();
    });
}
template <class Body>
void stream4(size_t n, int threads, double *const *r, Body body) {
    shared(n, threads, [=](size_t begin, size_t end) {
        for (size_t i = begin; i + 8 <= end; i += 8) {
            Quad<Line> v = body(i);
            past(r[0] + i, v.x0), past(r[1] + i, v.x1), past(r[2] + i, v.x2), past(r[3] + i, v.x3);
        }
        _mm_sfence();
    });
}
#endif

#ifdef HAVE_QD
template <class T, class Body>
void structures(size_t n, int threads, double *r, Body body) {
    T *out = reinterpret_cast<T *>(r);
    shared(n, threads, [=](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) out[i] = body(i);
    });
}
#endif

}  // namespace

#define PLANES2(x) const double *x##0 = x[0], *x##1 = x[1]
#define PLANES4(x) const double *x##0 = x[0], *x##1 = x[1], *x##2 = x[2], *x##3 = x[3]
#define AT2(x, f) {f(x##0 + i), f(x##1 + i)}
#define AT4(x, f) {f(x##0 + i), f(x##1 + i), f(x##2 + i), f(x##3 + i)}
#define FIRST2(x, f) {f(x[0][0]), f(x[1][0])}
#define FIRST4(x, f) {f(x[0][0]), f(x[1][0]), f(x[2][0]), f(x[3][0])}
#define VALUE(x) *(x)

// `expression` of elements u of x and v of y, and of x's first element a.
#define ENTRY(kind, name, n, Expansion, T, load, spread, expression)                              \
    void kind##n##_##name(size_t size, int threads, double *const *x, double *const *y,          \
                          double *const *r) {                                                    \
        PLANES##n(x);                                                                            \
        PLANES##n(y);                                                                            \
        const Expansion<T> a = FIRST##n(x, spread);                                              \
        (void)a;                                                                                 \
        kind##n(size, threads, r, [=](size_t i) {                                                \
            Expansion<T> u = AT##n(x, load), v = AT##n(y, load);                                 \
            (void)v;                                                                             \
            return expression;                                                                   \
        });                                                                                      \
    }
#ifdef __AVX512F__
#define BOTH(name, n, Expansion, expression)                                                      \
    ENTRY(loop, name, n, Expansion, double, VALUE, , expression)                                 \
    ENTRY(stream, name, n, Expansion, Line, line, lines, expression)
#else
#define BOTH(name, n, Expansion, expression)                                                      \
    ENTRY(loop, name, n, Expansion, double, VALUE, , expression)
#endif

extern "C" {

BOTH(add, 2, Pair, add(u, v))
BOTH(mul, 2, Pair, mul(u, v))
BOTH(div, 2, Pair, div(u, v))
BOTH(sqrt, 2, Pair, root(u))
BOTH(axpy, 2, Pair, add(mul(u, a), v))
BOTH(add, 4, Quad, add(u, v))
BOTH(mul, 4, Quad, mul(u, v))
BOTH(axpy, 4, Quad, add(mul(u, a), v))

#ifdef HAVE_QD
#define QD_BINARY(name, T, expression)                                                  \
    void name(size_t n, int t, const double *xs, const double *ys, double *r) {         \
        const T *x = reinterpret_cast<const T *>(xs), *y = reinterpret_cast<const T *>(ys); \
        (void)y;                                                                        \
        const T a = x[0];                                                               \
        (void)a;                                                                        \
        structures<T>(n, t, r, [=](size_t i) { return expression; });                   \
    }
QD_BINARY(qd2_add, dd_real, x[i] + y[i])
QD_BINARY(qd2_mul, dd_real, x[i] * y[i])
QD_BINARY(qd2_div, dd_real, x[i] / y[i])
QD_BINARY(qd2_sqrt, dd_real, sqrt(x[i]))
QD_BINARY(qd2_axpy, dd_real, a * x[i] + y[i])
QD_BINARY(qd4_add, qd_real, x[i] + y[i])
QD_BINARY(qd4_mul, qd_real, x[i] * y[i])
QD_BINARY(qd4_div, qd_real, x[i] / y[i])
QD_BINARY(qd4_sqrt, qd_real, sqrt(x[i]))
QD_BINARY(qd4_axpy, qd_real, a * x[i] + y[i])

void qd2_dot(size_t n, int threads, const double *xs, const double *ys, double *r) {
    const dd_real *x = reinterpret_cast<const dd_real *>(xs), *y = reinterpret_cast<const dd_real *>(ys);
    dd_real total[64];
    shared(n, threads, [&](size_t begin, size_t end) {
        dd_real sum = 0.0;
        for (size_t i = begin; i < end; ++i) sum += x[i] * y[i];
        total[(begin * threads + n - 1) / (n ? n : 1)] = sum;
    });
    dd_real sum = total[0];
    for (int k = 1; k < threads; ++k) sum += total[k];
    *reinterpret_cast<dd_real *>(r) = sum;
}
void qd4_dot(size_t n, int threads, const double *xs, const double *ys, double *r) {
    const qd_real *x = reinterpret_cast<const qd_real *>(xs), *y = reinterpret_cast<const qd_real *>(ys);
    qd_real total[64];
    shared(n, threads, [&](size_t begin, size_t end) {
        qd_real sum = 0.0;
        for (size_t i = begin; i < end; ++i) sum += x[i] * y[i];
        total[(begin * threads + n - 1) / (n ? n : 1)] = sum;
    });
    qd_real sum = total[0];
    for (int k = 1; k < threads; ++k) sum += total[k];
    *reinterpret_cast<qd_real *>(r) = sum;
}
#endif

}  // extern "C"
