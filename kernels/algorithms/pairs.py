"""Arithmetic on expansions of two components, hi + lo with |lo| <= ulp(hi)/2.

Straight-line and branch-free. u = 2**-p; the bounds are relative to the exact result, without
overflow and underflow; `mcf.kernels.bounds` has their preconditions. Sources: Joldes, Muller,
Popescu 2017 (doi:10.1145/3121432); Muller, Rideau 2022 (doi:10.1145/3484514); Zhang, Aiken 2025
(doi:10.1007/978-3-031-98682-6_12).
"""

from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum


def grow(hi, lo, a):
    """(hi, lo) + a, as Fast2Sum(s, RN(lo + e)) with (s, e) = TwoSum(hi, a); error <= 2u^2.

    TwoSum and not Fast2Sum, because `a` may be larger than `hi`. This is DWPlusFP of Joldes,
    Muller, Popescu 2017 (p >= 3).
    """
    s, e = two_sum(hi, a)
    return fast_two_sum(s, rn(lo + e))


def scale(hi, lo, a):
    """(hi, lo) * a, DWTimesFP1 of Joldes, Muller, Popescu 2017; error <= 1.5u^2 + 4u^3 (p >= 4)."""
    p, e = two_prod(hi, a)
    s, t = fast_two_sum(p, rn(lo * a))
    return fast_two_sum(s, rn(t + e))


def add(x_hi, x_lo, y_hi, y_lo):
    """(x_hi, x_lo) + (y_hi, y_lo), commutative; error <= 2u^2 also under cancellation.

    The two-term addition network of Zhang and Aiken 2025.
    """
    s, e = two_sum(x_hi, y_hi)
    t, f = two_sum(x_lo, y_lo)
    s, t = fast_two_sum(s, t)
    return fast_two_sum(s, rn(rn(e + f) + t))


def mul(x_hi, x_lo, y_hi, y_lo):
    """(x_hi, x_lo) * (y_hi, y_lo), commutative; error <= 5u^2 (p >= 6).

    DWTimesDW1 of Joldes, Muller, Popescu 2017 with the bound of Muller and Rideau 2022.
    """
    p, e = two_prod(x_hi, y_hi)
    return fast_two_sum(p, rn(e + rn(rn(x_hi * y_lo) + rn(x_lo * y_hi))))


def renormalize(hi, lo):
    """Return an equal pair with |lo| <= ulp(hi)/2, by TwoSum: exact for any order and overlap."""
    return two_sum(hi, lo)
