"""Products of expansions of 1 to 4 components; tuples, largest component first.

All are commutative. Two components use DWTimesDW1 (`pairs.mul`); three and four use the networks of
Zhang and Aiken 2025 (SC '25), which add the products of one order of magnitude first.
`mcf.kernels.bounds` has the bounds and says which are proved.
"""

from mcf.kernels.algorithms.pairs import mul
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum


def collect3(a, b, c, d, e, f, low):
    """a + (b + c + e) + (d + f + low), summands of order 1, u, u^2, as a triple."""
    c, e = two_sum(c, e)
    d = rn(d + f)
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    c = rn(rn(c + e) + rn(d + low))
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    b, c = fast_two_sum(b, c)
    a, b = fast_two_sum(a, b)
    return a, b, c


def collect4(a, b0, b1, b2, c1, c2, c3, c4, d0, d1, low):
    """Collect summands of order 1, u (b), u^2 (c) and u^3 (d, low) into four components.

    The rounding errors of the sums of order u^3, about 8 u^4 each, are collected and added at the
    end:
    they would dominate the error.
    """
    b1, b2 = two_sum(b1, b2)
    c1, c2 = two_sum(c1, c2)
    b0, b1 = two_sum(b0, b1)
    c1, c4 = two_sum(c1, c4)
    d0 = rn(c2 + d0)
    a, b0 = fast_two_sum(a, b0)
    b1, b2 = fast_two_sum(b1, b2)
    c1, c3 = two_sum(c1, c3)
    d0, e0 = two_sum(d0, low)
    c4, e1 = two_sum(c4, d1)
    b1, c1 = two_sum(b1, c1)
    b2, e2 = two_sum(b2, c4)
    d0, e3 = two_sum(d0, c3)
    b2, e4 = two_sum(b2, c1)
    b1, b2 = two_sum(b1, b2)
    b0, b1 = two_sum(b0, b1)
    b2, e5 = two_sum(b2, d0)
    a, b0 = fast_two_sum(a, b0)
    b1, b2 = two_sum(b1, b2)
    b2 = rn(b2 + rn(rn(rn(e0 + e1) + rn(e2 + e3)) + rn(e4 + e5)))
    b0, b1 = two_sum(b0, b1)
    a, b0 = fast_two_sum(a, b0)
    b1, b2 = two_sum(b1, b2)
    b0, b1 = fast_two_sum(b0, b1)
    a, b0 = fast_two_sum(a, b0)
    b1, b2 = two_sum(b1, b2)
    b0, b1 = fast_two_sum(b0, b1)
    b1, b2 = two_sum(b1, b2)
    return a, b0, b1, b2


def product1(x, y):
    """RN(x * y)."""
    return (rn(x[0] * y[0]),)


def product2(x, y):
    """Return x * y of pairs; error <= 5u^2."""
    x0, x1 = x
    y0, y1 = y
    return mul(x0, x1, y0, y1)


def product3(x, y):
    """Return x * y of triples."""
    x0, x1, x2 = x
    y0, y1, y2 = y
    # Products of order 1, u, u^2; the errors of each belong to the next order.
    a, b = two_prod(x0, y0)
    c, d = two_prod(x0, y1)
    e, f = two_prod(x1, y0)
    g = rn(rn(rn(x0 * y2) + rn(x2 * y0)) + rn(x1 * y1))
    return collect3(a, b, c, d, e, f, g)


def product4(x, y):
    """Return x * y of four components each."""
    x0, x1, x2, x3 = x
    y0, y1, y2, y3 = y
    a, b0 = two_prod(x0, y0)
    b1, c1 = two_prod(x0, y1)
    b2, c2 = two_prod(x1, y0)
    c3, d3 = two_prod(x0, y2)
    c4, d4 = two_prod(x1, y1)
    c5, d5 = two_prod(x2, y0)
    d6 = rn(rn(rn(x0 * y3) + rn(x3 * y0)) + rn(rn(x1 * y2) + rn(x2 * y1)))
    # Products that `pair_times4` lacks; letters are orders of magnitude.
    c3, c5 = two_sum(c3, c5)
    return collect4(a, b0, b1, b2, c1, c2, c3, c4, rn(d3 + d5), rn(c5 + d4), d6)


def pair_times3(x, y):
    """Return x * y of a pair and a triple: `product3` with x2 = 0."""
    x0, x1 = x
    y0, y1, y2 = y
    a, b = two_prod(x0, y0)
    c, d = two_prod(x0, y1)
    e, f = two_prod(x1, y0)
    g = rn(rn(x0 * y2) + rn(x1 * y1))
    return collect3(a, b, c, d, e, f, g)


def pair_times4(x, y):
    """Return x * y of a pair and four components: `product4` with x2 = x3 = 0."""
    x0, x1 = x
    y0, y1, y2, y3 = y
    a, b0 = two_prod(x0, y0)
    b1, c1 = two_prod(x0, y1)
    b2, c2 = two_prod(x1, y0)
    c3, d3 = two_prod(x0, y2)
    c4, d4 = two_prod(x1, y1)
    d6 = rn(rn(x0 * y3) + rn(x1 * y2))
    return collect4(a, b0, b1, b2, c1, c2, c3, c4, d3, d4, d6)


# Algorithms by number of components.
PRODUCT = {1: product1, 2: product2, 3: product3, 4: product4}
