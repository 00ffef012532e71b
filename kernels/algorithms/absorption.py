"""Sums x + y of expansions where |y| is at most about |x| / 2, without the general networks.

This precondition decides what a general network finds out: Fast2Sum suffices for x0 + y0, and no
leading component cancels. Arguments and results are tuples, largest component first.
"""

from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_sum


def absorbed1(x, y):
    """RN(x + y)."""
    return (rn(x[0] + y[0]),)


def absorbed2(x, y):
    """Return x + y of pairs."""
    x0, x1 = x
    y0, y1 = y
    a, b = fast_two_sum(x0, y0)
    return fast_two_sum(a, rn(b + rn(x1 + y1)))


def absorbed3(x, y):
    """Return x + y of triples."""
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
    """Return x + y of four components each."""
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


# Algorithms by number of components.
ABSORBED = {1: absorbed1, 2: absorbed2, 3: absorbed3, 4: absorbed4}
