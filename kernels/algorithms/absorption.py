"""x + y of expansions of which y is at most some half of x: sums without the larger networks.

What a general network sorts out is known here: x0 + y0 takes Fast2Sum, and no leading component
cancels. Given and returned as tuples, largest first.
"""

from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_sum


def absorbed1(x, y):
    """RN(x + y)."""
    return (rn(x[0] + y[0]),)


def absorbed2(x, y):
    """x + y of pairs."""
    x0, x1 = x
    y0, y1 = y
    a, b = fast_two_sum(x0, y0)
    return fast_two_sum(a, rn(b + rn(x1 + y1)))


def absorbed3(x, y):
    """x + y of triples."""
    x0, x1, x2 = x
    y0, y1, y2 = y
    a, b = fast_two_sum(x0, y0)
    b, c = two_sum(b, x1)
    b, d = two_sum(b, y1)
    c = rn(rn(c + d) + rn(x2 + y2))
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    b, c = fast_two_sum(b, c)
    return a, b, c


def absorbed4(x, y):
    """x + y of four components each."""
    x0, x1, x2, x3 = x
    y0, y1, y2, y3 = y
    a, b = fast_two_sum(x0, y0)
    b, c = two_sum(b, x1)
    b, d = two_sum(b, y1)
    c, d = two_sum(c, d)
    c, e = two_sum(c, x2)
    c, f = two_sum(c, y2)
    d = rn(rn(d + e) + rn(f + rn(x3 + y3)))
    c, d = two_sum(c, d)
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    b, c = fast_two_sum(b, c)
    c, d = fast_two_sum(c, d)
    return a, b, c, d


# By number of components.
ABSORBED = {1: absorbed1, 2: absorbed2, 3: absorbed3, 4: absorbed4}
