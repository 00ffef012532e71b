"""Quotients of expansions of one to four components, given and returned as tuples.

Two components: DWDivDW2 of Joldes, Muller, Popescu 2017 (doi:10.1145/3121432), whose proof holds
from p = 7 on. Three and four: the quotient of the leading pairs, then one Newton step on the
residual x - q * y (Karp and Markstein 1997, doi:10.1145/279232.279237).
"""

from mcf.kernels.algorithms.pairs import scale
from mcf.kernels.algorithms.primitives import div, neg, rn
from mcf.kernels.algorithms.products import pair_times3, pair_times4
from mcf.kernels.algorithms.sums import minus3, minus4, sum3, sum4
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum


def quotient1(x, y):
    """RN(x / y)."""
    return (rn(div(x[0], y[0])),)


def quotient2(x, y):
    """x / y of pairs; error <= 15u^2 + 56u^3 (p >= 7)."""
    x0, x1 = x
    y0, y1 = y
    q = rn(div(x0, y0))
    r0, r1 = scale(y0, y1, q)
    # x0 - r0 is exact.
    d = rn(rn(x0 - r0) + rn(x1 - r1))
    return fast_two_sum(q, rn(div(d, y0)))


def by_float2(x, y):
    """x / y of a pair and a float, DWDivFP3; error <= 3u^2 (p >= 4)."""
    x0, x1 = x
    q = rn(div(x0, y[0]))
    p, e = two_prod(q, y[0])
    # x0 - q * y is a number of the format: both subtractions are exact.
    d = rn(rn(rn(x0 - p) - e) + x1)
    return fast_two_sum(q, rn(div(d, y[0])))


def corrected4(q0, q1, q2, q3):
    """A pair (q0, q1) and its correction, a pair (q2, q3) of some u^2 |q0|, as one expansion.

    Exactly their sum, and normalised: one sweep leaves an overlap where q1 is a tie of q0 and what
    follows is one too, or where q0 and q1 cancel.
    """
    q1, q2 = two_sum(q1, q2)
    q2, q3 = two_sum(q2, q3)
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = fast_two_sum(q1, q2)
    q2, q3 = fast_two_sum(q2, q3)
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = fast_two_sum(q1, q2)
    q2, q3 = fast_two_sum(q2, q3)
    return q0, q1, q2, q3


def quotient3(x, y):
    """x / y of triples."""
    y0, y1 = y[0], y[1]
    q0, q1 = quotient2((x[0], x[1]), (y0, y1))
    r = sum3(x, minus3(pair_times3((q0, q1), y)))
    # One component is as much of the residual as the quotient has room for.
    q1, q2 = two_sum(q1, rn(div(r[0], y0)))
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = fast_two_sum(q1, q2)
    return q0, q1, q2


def quotient4(x, y):
    """x / y of four components each."""
    y0, y1 = y[0], y[1]
    q0, q1 = quotient2((x[0], x[1]), (y0, y1))
    r = sum4(x, minus4(pair_times4((q0, q1), y)))
    q2, q3 = quotient2((r[0], r[1]), (y0, y1))
    return corrected4(q0, q1, q2, q3)


def inverse2(y, one):
    """1 / y of a pair, as `quotient2`."""
    y0, y1 = y
    q = rn(div(one, y0))
    r0, r1 = scale(y0, y1, q)
    return fast_two_sum(q, rn(div(rn(rn(one - r0) - r1), y0)))


def inverse3(y, one):
    """1 / y of a triple, as `quotient3`."""
    y0 = y[0]
    q0, q1 = inverse2((y0, y[1]), one)
    p0, p1, p2 = pair_times3((q0, q1), y)
    # one - p0 is exact.
    r = rn(rn(rn(one - p0) - p1) - p2)
    q1, q2 = two_sum(q1, rn(div(r, y0)))
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = fast_two_sum(q1, q2)
    return q0, q1, q2


def inverse4(y, one):
    """1 / y of four components, as `quotient4`."""
    y0, y1 = y[0], y[1]
    q0, q1 = inverse2((y0, y1), one)
    p0, p1, p2, p3 = pair_times4((q0, q1), y)
    r0, r1 = two_sum(rn(one - p0), neg(p1))
    r0, r1 = fast_two_sum(r0, rn(rn(r1 - p2) - p3))
    q2, q3 = quotient2((r0, r1), (y0, y1))
    return corrected4(q0, q1, q2, q3)
