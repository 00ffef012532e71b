"""Quotients of expansions of 1 to 4 components; arguments and results are tuples.

Two components use DWDivDW2 of Joldes, Muller, Popescu 2017 (doi:10.1145/3121432), proved for p >=
7. Three and four use the quotient q of the leading pairs, then that of the residual x - q * y (Karp
and Markstein 1997, doi:10.1145/279232.279237). A correction is a pair, since a single float would
add an error of 3 u times the correction. With four components one more digit precedes it.
"""

from mcf.kernels.algorithms.pairs import scale
from mcf.kernels.algorithms.primitives import ONE, div, neg, rn
from mcf.kernels.algorithms.products import pair_times3, pair_times4
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum


def quotient1(x, y):
    """RN(x / y)."""
    return (rn(div(x[0], y[0])),)


def quotient2(x, y):
    """Return x / y of pairs; error <= 15u^2 + 56u^3 (p >= 7)."""
    x0, x1 = x
    y0, y1 = y
    q = rn(div(x0, y0))
    r0, r1 = scale(y0, y1, q)
    # x0 - r0 is exact.
    d = rn(rn(x0 - r0) + rn(x1 - r1))
    return fast_two_sum(q, rn(div(d, y0)))


def by_float2(x, y):
    """Return x / y of a pair and a float, DWDivFP3; error <= 3u^2 (p >= 4)."""
    x0, x1 = x
    q = rn(div(x0, y[0]))
    p, e = two_prod(q, y[0])
    # x0 - q * y is a number of the format: both subtractions are exact.
    d = rn(rn(rn(x0 - p) - e) + x1)
    return fast_two_sum(q, rn(div(d, y[0])))


def rest3(x, p):
    """Return x - p as a pair, for a triple p within about u^2 of x; error of order u^4."""
    x0, x1, x2 = x
    p0, p1, p2 = p
    d0 = rn(x0 - p0)
    d1, e1 = two_sum(x1, neg(p1))
    d2, e2 = two_sum(x2, neg(p2))
    # The sum is exact, like d0: the part that does not cancel is of order u^2.
    r0 = rn(d0 + d1)
    d2, e1 = two_sum(d2, e1)
    r0, r1 = two_sum(r0, d2)
    return two_sum(r0, rn(rn(r1 + e1) + e2))


def rest4(x, p):
    """Return x - p of four components as three, the first two of which do not overlap."""
    x0, x1, x2, x3 = x
    p0, p1, p2, p3 = p
    d0 = rn(x0 - p0)
    d1, e1 = two_sum(x1, neg(p1))
    d2, e2 = two_sum(x2, neg(p2))
    d3, e3 = two_sum(x3, neg(p3))
    r0 = rn(d0 + d1)
    d2, e1 = two_sum(d2, e1)
    d3, e2 = two_sum(d3, e2)
    r0, r1 = two_sum(r0, d2)
    r1, e1 = two_sum(r1, e1)
    r1, d3 = two_sum(r1, d3)
    r0, r1 = two_sum(r0, r1)
    return r0, r1, rn(rn(e1 + d3) + rn(e2 + e3))


def reduced(r, q, y):
    """Return r - q * y as a pair, for triples r, y and the digit q = RN(r0 / y0)."""
    r0, r1, r2 = r
    y0, y1, y2 = y
    p, e = two_prod(q, y0)
    c, d = two_prod(q, y1)
    # r0 - q * y0 is a number of the format: both subtractions are exact.
    s, f = two_sum(rn(rn(r0 - p) - e), r1)
    s, g = two_sum(s, neg(c))
    return two_sum(s, rn(rn(f + g) + rn(rn(r2 - d) - rn(q * y2))))


def corrected3(q0, q1, q2, q3):
    """Add a pair (q0, q1) and its correction (q2, q3) of about u^2 |q0| to a normalised triple.

    A single sweep would leave an overlap if q1 is a tie of q0 and the next component has its sign.
    """
    q1, q2 = two_sum(q1, q2)
    q2 = rn(q2 + q3)
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = two_sum(q1, q2)
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = fast_two_sum(q1, q2)
    return q0, q1, q2


def corrected4(q0, q1, q2, q3, q4):
    """Add a pair (q0, q1) and corrections to four normalised components.

    The corrections are q2 of about u^2 |q0| and a pair (q3, q4) of about u^3 |q0|. A single sweep
    would leave an overlap if q1 is a tie of q0 and the next component is one too, or if q0 and q1
    cancel.
    """
    q2, q3 = fast_two_sum(q2, q3)
    q3, q4 = two_sum(q3, q4)
    q1, q2 = two_sum(q1, q2)
    q2, q3 = two_sum(q2, q3)
    q3 = rn(q3 + q4)
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = two_sum(q1, q2)
    q2, q3 = two_sum(q2, q3)
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = fast_two_sum(q1, q2)
    q2, q3 = fast_two_sum(q2, q3)
    return q0, q1, q2, q3


def quotient3(x, y):
    """Return x / y of triples."""
    y0, y1 = y[0], y[1]
    q0, q1 = quotient2((x[0], x[1]), (y0, y1))
    q2, q3 = quotient2(rest3(x, pair_times3((q0, q1), y)), (y0, y1))
    return corrected3(q0, q1, q2, q3)


def quotient4(x, y):
    """Return x / y of four components each."""
    y0, y1, y2 = y[0], y[1], y[2]
    q0, q1 = quotient2((x[0], x[1]), (y0, y1))
    r = rest4(x, pair_times4((q0, q1), y))
    q2 = rn(div(r[0], y0))
    q3, q4 = quotient2(reduced(r, q2, (y0, y1, y2)), (y0, y1))
    return corrected4(q0, q1, q2, q3, q4)


def inverse2(y):
    """Return 1 / y of a pair, as in `quotient2`."""
    y0, y1 = y
    q = rn(div(ONE, y0))
    r0, r1 = scale(y0, y1, q)
    return fast_two_sum(q, rn(div(rn(rn(ONE - r0) - r1), y0)))


def inverse3(y):
    """Return 1 / y of a triple, as in `quotient3`."""
    y0, y1 = y[0], y[1]
    q0, q1 = inverse2((y0, y1))
    p0, p1, p2 = pair_times3((q0, q1), y)
    # Both differences are exact, as in `rest3`.
    r = two_sum(rn(rn(ONE - p0) - p1), neg(p2))
    q2, q3 = quotient2(r, (y0, y1))
    return corrected3(q0, q1, q2, q3)


def inverse4(y):
    """Return 1 / y of four components, as in `quotient4`."""
    y0, y1, y2 = y[0], y[1], y[2]
    q0, q1 = inverse2((y0, y1))
    p0, p1, p2, p3 = pair_times4((q0, q1), y)
    r0, r1 = two_sum(rn(rn(ONE - p0) - p1), neg(p2))
    r1, r2 = two_sum(r1, neg(p3))
    r0, r1 = two_sum(r0, r1)
    q2 = rn(div(r0, y0))
    q3, q4 = quotient2(reduced((r0, r1, r2), q2, (y0, y1, y2)), (y0, y1))
    return corrected4(q0, q1, q2, q3, q4)


# Algorithms by number of components.
QUOTIENT = {1: quotient1, 2: quotient2, 3: quotient3, 4: quotient4}
INVERSE = {2: inverse2, 3: inverse3, 4: inverse4}
OVER_FLOAT = {2: by_float2}
