// QD's elementary functions on arrays of its structures, for benchmarks/elementary.py.

#include <cstddef>

#include <qd/dd_real.h>
#include <qd/qd_real.h>

#define ENTRY(name, type, call)                                                  \
    extern "C" void name(std::size_t n, const double *in, double *out) {         \
        const type *x = reinterpret_cast<const type *>(in);                      \
        type *y = reinterpret_cast<type *>(out);                                 \
        for (std::size_t i = 0; i < n; ++i) y[i] = call(x[i]);                   \
    }

#define BOTH(call) ENTRY(dd_##call, dd_real, call) ENTRY(qd_##call, qd_real, call)

BOTH(exp)
BOTH(log)
BOTH(sin)
BOTH(cos)
BOTH(tan)
BOTH(atan)
BOTH(asin)
BOTH(sinh)
BOTH(tanh)

// With an exponent that is no whole number, so that neither side has a shorter way.
static dd_real to_the(const dd_real &x) { return pow(x, dd_real(2.375)); }
static qd_real to_the(const qd_real &x) { return pow(x, qd_real(2.375)); }

ENTRY(dd_pow, dd_real, to_the)
ENTRY(qd_pow, qd_real, to_the)
