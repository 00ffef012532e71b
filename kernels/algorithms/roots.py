"""Square roots of expansions of 1 to 4 components; arguments and results are tuples.

Two components use SQRTDWtoDW of Lefèvre, Louvet, Muller, Picot, Rideau 2023 (doi:10.1145/3568672).
Three and four use the root s of the leading pair, then a correction by the residual x - s * s as in
`quotients`.
"""

from mcf.kernels.algorithms.primitives import ZERO, div, rn, sqrt, where
from mcf.kernels.algorithms.quotients import (
    corrected3,
    corrected4,
    quotient2,
    reduced,
    rest3,
    rest4,
)
from mcf.kernels.algorithms.short_products import pair_square3, pair_square4
from mcf.kernels.algorithms.transforms import fast_two_sum, two_square


def root1(x):
    """RN(sqrt(x))."""
    return (rn(sqrt(x[0])),)


def root2(x):
    """Return sqrt(x) of a pair; error <= 25/8 u^2."""
    x0, x1 = x
    s = rn(sqrt(x0))
    p, e = two_square(s)
    # x0 - s * s is a number of the format: both subtractions are exact.
    r = rn(rn(rn(x0 - p) - e) + x1)
    return fast_two_sum(s, rn(div(r, rn(s + s))))


def below_overflow(x0, s0, s1):
    """Return s0 + s1 as a pair whose first number can be squared without overflow.

    For x0 close to the largest number, s0 * s0 overflows.
    """
    square = rn(s0 * s0)
    # The difference is NaN if the square is infinite.
    overflows = rn(square - square) != ZERO
    below = rn(sqrt(x0))
    return where(overflows, below, s0), where(overflows, rn(rn(s0 - below) + s1), s1)


def root3(x):
    """Return sqrt(x) of a triple."""
    s0, s1 = root2((x[0], x[1]))
    a0, a1 = below_overflow(x[0], s0, s1)
    r = rest3(x, pair_square3((a0, a1)))
    s2, s3 = quotient2(r, (rn(a0 + a0), rn(a1 + a1)))
    return corrected3(s0, s1, s2, s3)


def root4(x):
    """Return sqrt(x) of four components."""
    s0, s1 = root2((x[0], x[1]))
    a0, a1 = below_overflow(x[0], s0, s1)
    d0, d1 = rn(a0 + a0), rn(a1 + a1)
    r = rest4(x, pair_square4((a0, a1)))
    s2 = rn(div(r[0], d0))
    # (s + s2)^2 = s^2 + s2 (2 s + s2)
    s3, s4 = quotient2(reduced(r, s2, (d0, d1, s2)), (d0, d1))
    return corrected4(s0, s1, s2, s3, s4)


# Algorithms by number of components.
ROOT = {1: root1, 2: root2, 3: root3, 4: root4}
