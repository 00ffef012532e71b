// Peers of benchmarks/matmul.py: QD's types in a matrix product and a dot product, rows shared by
// OpenMP threads; i-k-j order, so that the inner loop runs along rows of both matrices.

#include <cstddef>
#include <vector>

#include <qd/dd_real.h>
#include <qd/qd_real.h>

using std::size_t;

namespace {

template <class T>
void gemm(size_t n, int threads, const T* a, const T* b, T* c) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) c[i * n + j] = 0.0;
        for (size_t k = 0; k < n; ++k) {
            T x = a[i * n + k];
            for (size_t j = 0; j < n; ++j) c[i * n + j] += x * b[k * n + j];
        }
    }
}

template <class T>
void dot(size_t n, int threads, const T* a, const T* b, T* c) {
    std::vector<T> parts(threads, T(0.0));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; ++t) {
        T sum = 0.0;
        for (size_t i = n * t / threads; i < n * (t + 1) / threads; ++i) sum += a[i] * b[i];
        parts[t] = sum;
    }
    *c = 0.0;
    for (const T& p : parts) *c += p;
}

}  // namespace

extern "C" {
void dd_gemm(size_t n, int threads, const dd_real* a, const dd_real* b, dd_real* c) {
    gemm(n, threads, a, b, c);
}
void qd_gemm(size_t n, int threads, const qd_real* a, const qd_real* b, qd_real* c) {
    gemm(n, threads, a, b, c);
}
void dd_dot(size_t n, int threads, const dd_real* a, const dd_real* b, dd_real* c) {
    dot(n, threads, a, b, c);
}
void qd_dot(size_t n, int threads, const qd_real* a, const qd_real* b, qd_real* c) {
    dot(n, threads, a, b, c);
}
}
