// Zhang's MultiFloats in C++ as a peer of benchmarks/arithmetic.py and matmul.py: the header of the
// benchmarks of doi:10.1145/3712285.3759876, which is not ours and not kept here (drivers.py says
// where it is looked for). Components are planes, an AVX-512 vector of eight elements is one
// MultiFloat, and sizes have to be multiples of 8. The header has sums and products only.

#include <cstddef>

#include <MultiFloats.hpp>

using std::size_t;

namespace {

constexpr size_t LANES = 8;
using Planes = double *const *;
template <int N> using Vector = MultiFloat<__m512d, N>;
template <int N> using Scalar = MultiFloat<double, N>;

template <int N> inline Vector<N> load(Planes x, size_t i) {
    Vector<N> v;
    for (int k = 0; k < N; ++k) v._limbs[k] = _mm512_loadu_pd(x[k] + i);
    return v;
}
template <int N> inline void store(Planes x, size_t i, Vector<N> v) {
    for (int k = 0; k < N; ++k) _mm512_storeu_pd(x[k] + i, v._limbs[k]);
}
template <int N> inline Vector<N> spread(Planes x, size_t i) {
    Vector<N> v;
    for (int k = 0; k < N; ++k) v._limbs[k] = _mm512_set1_pd(x[k][i]);
    return v;
}

// What a thread computes: from a multiple of eight to another.
inline size_t edge(size_t n, int threads, int t) { return n / LANES * t / threads * LANES; }

template <class Body> void vectors(size_t n, int threads, Body body) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; ++t)
        for (size_t i = edge(n, threads, t); i < edge(n, threads, t + 1); i += LANES) body(i);
}

template <int N> void dot(size_t n, int threads, Planes x, Planes y, Planes r) {
    Scalar<N> total = 0.0;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; ++t) {
        Vector<N> sum = 0.0;
        for (size_t i = edge(n, threads, t); i < edge(n, threads, t + 1); i += LANES)
            sum += load<N>(x, i) * load<N>(y, i);
#pragma omp critical
        total += vsum(sum);
    }
    for (int k = 0; k < N; ++k) r[k][0] = total._limbs[k];
}

// Square matrices in the order of the paper's: rows of the result shared by the threads, i k j.
template <int N> void gemm(size_t n, int threads, Planes a, Planes b, Planes c) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; j += LANES) store<N>(c, i * n + j, Vector<N>(0.0));
        for (size_t k = 0; k < n; ++k) {
            const Vector<N> left = spread<N>(a, i * n + k);
            for (size_t j = i * n; j < (i + 1) * n; j += LANES)
                store<N>(c, j, load<N>(c, j) + left * load<N>(b, (k - i) * n + j));
        }
    }
}

}  // namespace

#define ENTRY(N)                                                                                  \
    void mf##N##_add(size_t n, int t, Planes x, Planes y, Planes r) {                            \
        vectors(n, t, [=](size_t i) { store<N>(r, i, load<N>(x, i) + load<N>(y, i)); });          \
    }                                                                                            \
    void mf##N##_mul(size_t n, int t, Planes x, Planes y, Planes r) {                            \
        vectors(n, t, [=](size_t i) { store<N>(r, i, load<N>(x, i) * load<N>(y, i)); });          \
    }                                                                                            \
    void mf##N##_axpy(size_t n, int t, Planes x, Planes y, Planes r) {                           \
        const Vector<N> a = spread<N>(x, 0);                                                     \
        vectors(n, t, [=](size_t i) { store<N>(r, i, a * load<N>(x, i) + load<N>(y, i)); });      \
    }                                                                                            \
    void mf##N##_dot(size_t n, int t, Planes x, Planes y, Planes r) { dot<N>(n, t, x, y, r); }    \
    void mf##N##_gemm(size_t n, int t, Planes a, Planes b, Planes c) { gemm<N>(n, t, a, b, c); }

extern "C" {
ENTRY(1)
ENTRY(2)
ENTRY(3)
ENTRY(4)
}
