// Peers of benchmarks/arithmetic.py: QD (compiled in with -DHAVE_QD) on arrays of its structures,
// and the networks of kernels/algorithms as loops over component planes, for the compiler to
// vectorise. Every entry takes the number of elements, of threads, the operands and the result.

#include <cmath>
#include <cstddef>

#ifdef HAVE_QD
#include <qd/dd_real.h>
#include <qd/qd_real.h>
#endif

using std::size_t;

namespace {

template <class Body>
void shared(size_t n, int threads, Body body) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; ++t) body(n * t / threads, n * (t + 1) / threads);
}

struct Two { double s, e; };
struct Pair { double x0, x1; };
struct Quad { double x0, x1, x2, x3; };

inline Two two_sum(double a, double b) {
    double s = a + b, t = s - a;
    return {s, (a - (s - t)) + (b - t)};
}
inline Two fast_two_sum(double a, double b) {
    double s = a + b;
    return {s, b - (s - a)};
}
inline Two two_prod(double a, double b) {
    double p = a * b;
    return {p, __builtin_fma(a, b, -p)};
}

// sum2, product2, quotient2, root2 of kernels/algorithms, without the special values.
inline Pair add(Pair x, Pair y) {
    Two s = two_sum(x.x0, y.x0), t = two_sum(x.x1, y.x1), u = fast_two_sum(s.s, t.s);
    Two r = fast_two_sum(u.s, (s.e + t.e) + u.e);
    return {r.s, r.e};
}
inline Pair mul(Pair x, Pair y) {
    Two p = two_prod(x.x0, y.x0);
    Two r = fast_two_sum(p.s, p.e + (x.x0 * y.x1 + x.x1 * y.x0));
    return {r.s, r.e};
}
inline Pair div(Pair x, Pair y) {
    double q = x.x0 / y.x0;
    Two p = two_prod(y.x0, q), s = fast_two_sum(p.s, y.x1 * q), r = fast_two_sum(s.s, s.e + p.e);
    Two out = fast_two_sum(q, ((x.x0 - r.s) + (x.x1 - r.e)) / y.x0);
    return {out.s, out.e};
}
inline Pair root(Pair x) {
    double s = std::sqrt(x.x0);
    Two p = two_prod(s, s);
    Two r = fast_two_sum(s, (((x.x0 - p.s) - p.e) + x.x1) / (s + s));
    return {r.s, r.e};
}

inline void sweep(double &a, double &b) { Two t = two_sum(a, b); a = t.s, b = t.e; }
inline void fast(double &a, double &b) { Two t = fast_two_sum(a, b); a = t.s, b = t.e; }

// sum4 and product4.
inline Quad add(Quad x, Quad y) {
    double a = x.x0, b = y.x0, c = x.x1, d = y.x1, e = x.x2, f = y.x2, g = x.x3, h = y.x3;
    sweep(a, b); sweep(c, d); sweep(e, f); sweep(g, h);
    fast(a, c); b += h; sweep(d, e); sweep(f, g); sweep(b, g); fast(c, d); sweep(e, f);
    fast(a, c); fast(d, e); sweep(b, d); fast(c, g); e += f; sweep(b, c); sweep(d, e);
    fast(a, b); sweep(c, d); e += g; fast(b, c); sweep(d, e); fast(a, b); fast(c, d);
    fast(b, c); d += e; fast(a, b); fast(c, d); fast(b, c); fast(c, d);
    return {a, b, c, d};
}
inline Quad mul(Quad x, Quad y) {
    Two p = two_prod(x.x0, y.x0), q = two_prod(x.x0, y.x1), r = two_prod(x.x1, y.x0);
    Two s = two_prod(x.x0, y.x2), t = two_prod(x.x1, y.x1), u = two_prod(x.x2, y.x0);
    double a = p.s, b0 = p.e, b1 = q.s, c1 = q.e, b2 = r.s, c2 = r.e;
    double c3 = s.s, d3 = s.e, c4 = t.s, d4 = t.e, c5 = u.s, d5 = u.e;
    double d6 = (x.x0 * y.x3 + x.x3 * y.x0) + (x.x1 * y.x2 + x.x2 * y.x1);
    sweep(b1, b2); sweep(c1, c2); sweep(c3, c5); d3 += d5; sweep(b0, b1); sweep(c1, c4);
    double d2 = c2 + d3;
    c5 += d4; fast(a, b0); fast(b1, b2); sweep(c1, c3); d2 += d6; c4 += c5; sweep(b1, c1);
    b2 += c4; d2 += c3; b2 += c1; sweep(b1, b2); sweep(b0, b1); b2 += d2; fast(a, b0);
    sweep(b1, b2); sweep(b0, b1); fast(a, b0); fast(b1, b2); fast(b0, b1); fast(a, b0);
    fast(b1, b2); fast(b0, b1); fast(b1, b2);
    return {a, b0, b1, b2};
}

inline Pair load(double *const *x, size_t i, Pair) { return {x[0][i], x[1][i]}; }
inline Quad load(double *const *x, size_t i, Quad) { return {x[0][i], x[1][i], x[2][i], x[3][i]}; }

template <class Body>
void loop2(size_t n, int threads, double *const *r, Body body) {
    double *__restrict r0 = r[0], *__restrict r1 = r[1];
    shared(n, threads, [=](size_t begin, size_t end) {
#pragma omp simd
        for (size_t i = begin; i < end; ++i) {
            Pair v = body(i);
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
            Quad v = body(i);
            r0[i] = v.x0, r1[i] = v.x1, r2[i] = v.x2, r3[i] = v.x3;
        }
    });
}

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
#define AT2(x) Pair{x##0[i], x##1[i]}
#define AT4(x) Quad{x##0[i], x##1[i], x##2[i], x##3[i]}

extern "C" {

void loop2_add(size_t n, int t, double *const *x, double *const *y, double *const *r) {
    PLANES2(x); PLANES2(y);
    loop2(n, t, r, [=](size_t i) { return add(AT2(x), AT2(y)); });
}
void loop2_mul(size_t n, int t, double *const *x, double *const *y, double *const *r) {
    PLANES2(x); PLANES2(y);
    loop2(n, t, r, [=](size_t i) { return mul(AT2(x), AT2(y)); });
}
void loop2_div(size_t n, int t, double *const *x, double *const *y, double *const *r) {
    PLANES2(x); PLANES2(y);
    loop2(n, t, r, [=](size_t i) { return div(AT2(x), AT2(y)); });
}
void loop2_sqrt(size_t n, int t, double *const *x, double *const *, double *const *r) {
    PLANES2(x);
    loop2(n, t, r, [=](size_t i) { return root(AT2(x)); });
}
// a * x + y with the expansion a at y's first element of the scalar's planes.
void loop2_axpy(size_t n, int t, double *const *x, double *const *y, double *const *r) {
    PLANES2(x); PLANES2(y);
    Pair a{x0[0], x1[0]};
    loop2(n, t, r, [=](size_t i) { return add(mul(AT2(x), a), AT2(y)); });
}
void loop4_add(size_t n, int t, double *const *x, double *const *y, double *const *r) {
    PLANES4(x); PLANES4(y);
    loop4(n, t, r, [=](size_t i) { return add(AT4(x), AT4(y)); });
}
void loop4_mul(size_t n, int t, double *const *x, double *const *y, double *const *r) {
    PLANES4(x); PLANES4(y);
    loop4(n, t, r, [=](size_t i) { return mul(AT4(x), AT4(y)); });
}
void loop4_axpy(size_t n, int t, double *const *x, double *const *y, double *const *r) {
    PLANES4(x); PLANES4(y);
    Quad a{x0[0], x1[0], x2[0], x3[0]};
    loop4(n, t, r, [=](size_t i) { return add(mul(AT4(x), a), AT4(y)); });
}

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
