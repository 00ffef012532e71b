"""Error-free transforms: a rounded result and its rounding error, as two components."""

from mcf.kernels.algorithms.primitives import SPLITTER, ZERO, fms, neg, rc, rn, rx, where


def two_sum(a, b):
    """(s, e) with s = RN(a + b) and s + e = a + b exactly.

    Holds for all finite a, b in any order when a + b does not overflow, with one exception: where
    intermediate results are rounded too (float32, float64), |b| = max can overflow on the way and
    e is NaN (Knuth 1969, 6 operations; Boldo, Graillat, Muller 2017, doi:10.1145/3054947).
    """
    s = rc(a + b)
    t = rx(s - a)
    return s, rx(rx(a - rx(s - t)) + rx(b - t))


def fast_two_sum(a, b):
    """(s, e) with s = RN(a + b) and s + e = a + b exactly, in 3 operations.

    Requires a = 0 or exponent(a) >= exponent(b), for example |a| >= |b| (Dekker 1971,
    doi:10.1007/BF01397083). Otherwise e may be off by a rounding error.
    """
    s = rc(a + b)
    return s, rn(b - rn(s - a))


def split(a):
    """(hi, lo) with hi + lo = a exactly and each half short enough to multiply exactly.

    Veltkamp's splitting: hi has at most p - ceil(p/2) bits, lo at most ceil(p/2) - 1 bits and a
    sign. Overflows for |a| above about max / 2**ceil(p/2) (Dekker 1971, doi:10.1007/BF01397083;
    Boldo 2006, doi:10.1007/11814771_6).
    """
    c = rn(SPLITTER * a)
    hi = rn(c - rn(c - a))
    return hi, rn(a - hi)


def two_prod(a, b):
    """(p, e) with p = RN(a * b) and p + e = a * b exactly.

    Requires that a * b does not overflow and that the error is representable: a = 0, b = 0 or
    exponent(a) + exponent(b) >= emin + p - 1 (Handbook of Floating-Point Arithmetic, 2nd ed., 4.4,
    doi:10.1007/978-3-319-76526-6). Below that e is the error rounded to nearest.
    """
    p = rn(a * b)
    return p, fms(a, b, p)


def two_square(a):
    """(p, e) with p = RN(a * a) and p + e = a * a exactly; `two_prod` of a with itself.

    It negates an operand: LLVM assumes that FMA(a, a, c) is never -0, which is wrong where the
    result underflows. LLVM then turns t - (s - p) into t + (p - s), whose zero has the other sign.
    """
    p = rn(a * a)
    return p, neg(fms(neg(a), a, neg(p)))


def finite_only(x):
    """Return components whose low ones become 0 where the leading one is not finite.

    For recorded formulas: the number of components is known when a formula is recorded.
    """
    finite = rn(x[0] - x[0]) == ZERO
    return x[0], *(where(finite, low, ZERO) for low in x[1:])
