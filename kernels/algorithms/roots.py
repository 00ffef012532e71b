"""Square roots of expansions of one to four components, given and returned as tuples.

Two components: SQRTDWtoDW of Lefèvre, Louvet, Muller, Picot, Rideau 2023 (doi:10.1145/3568672).
Three and four: the root of the leading pair, then one Newton step on the residual x - s * s.
"""

from mcf.kernels.algorithms.primitives import div, rn, sqrt
from mcf.kernels.algorithms.quotients import corrected4, quotient2
from mcf.kernels.algorithms.short_products import pair_square3, pair_square4
from mcf.kernels.algorithms.sums import minus3, minus4, sum3, sum4
from mcf.kernels.algorithms.transforms import fast_two_sum, two_square, two_sum


def root1(x):
    """RN(sqrt(x))."""
    return (rn(sqrt(x[0])),)


def root2(x):
    """sqrt(x) of a pair; error <= 25/8 u^2."""
    x0, x1 = x
    s = rn(sqrt(x0))
    p, e = two_square(s)
    # x0 - s * s is a number of the format: both subtractions are exact.
    r = rn(rn(rn(x0 - p) - e) + x1)
    return fast_two_sum(s, rn(div(r, rn(s + s))))


def root3(x):
    """sqrt(x) of a triple."""
    s0, s1 = root2((x[0], x[1]))
    r = sum3(x, minus3(pair_square3((s0, s1))))
    s1, s2 = two_sum(s1, rn(div(r[0], rn(s0 + s0))))
    s0, s1 = fast_two_sum(s0, s1)
    s1, s2 = fast_two_sum(s1, s2)
    return s0, s1, s2


def root4(x):
    """sqrt(x) of four components."""
    s0, s1 = root2((x[0], x[1]))
    r = sum4(x, minus4(pair_square4((s0, s1))))
    s2, s3 = quotient2((r[0], r[1]), (rn(s0 + s0), rn(s1 + s1)))
    return corrected4(s0, s1, s2, s3)
