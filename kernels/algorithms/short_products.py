"""Products with fewer terms than general ones: squares, and products by a float.

The products of one order of magnitude are computed once, added by `gather*` and renormalised.
"""

from mcf.kernels.algorithms.pairs import scale
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_square, two_sum


def gather3(a, b, c, d, low):
    """a + (b + c) + (d + low), summands of order 1, u, u^2, as a triple."""
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    c = rn(c + rn(d + low))
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    b, c = fast_two_sum(b, c)
    a, b = fast_two_sum(a, b)
    return a, b, c


def gather4(a, b0, b1, c0, c1, low):
    """Add a + (b0 + b1) + (c0 + c1) + low, summands of order 1, u, u^2, u^3, as four components.

    The rounding errors of the sums of order u^3 are collected and added at the end.
    """
    b0, b1 = two_sum(b0, b1)
    c0, c1 = two_sum(c0, c1)
    a, b0 = fast_two_sum(a, b0)
    b1, c0 = two_sum(b1, c0)
    c0, d0 = two_sum(c0, c1)
    low, d1 = two_sum(low, c0)
    b0, b1 = two_sum(b0, b1)
    b1, low = two_sum(b1, low)
    low = rn(low + rn(d0 + d1))
    a, b0 = fast_two_sum(a, b0)
    b0, b1 = two_sum(b0, b1)
    b1, low = two_sum(b1, low)
    a, b0 = fast_two_sum(a, b0)
    b0, b1 = fast_two_sum(b0, b1)
    b1, low = fast_two_sum(b1, low)
    return a, b0, b1, low


def times_float2(x, y):
    """Return x * y of a pair and a float; error <= 3/2 u^2 + 4 u^3."""
    x0, x1 = x
    return scale(x0, x1, y[0])


def times_float3(x, y):
    """Return x * y of a triple and a float."""
    x0, x1, x2 = x
    a, b = two_prod(x0, y[0])
    c, d = two_prod(x1, y[0])
    return gather3(a, b, c, d, rn(x2 * y[0]))


def times_float4(x, y):
    """Return x * y of four components and a float."""
    x0, x1, x2, x3 = x
    a, b0 = two_prod(x0, y[0])
    b1, c0 = two_prod(x1, y[0])
    c1, d = two_prod(x2, y[0])
    return gather4(a, b0, b1, c0, c1, rn(d + rn(x3 * y[0])))


def squared1(x):
    """RN(x * x)."""
    return (rn(x[0] * x[0]),)


def squared2(x):
    """Return x * x of a pair."""
    x0, x1 = x
    a, b = two_square(x0)
    return fast_two_sum(a, rn(b + rn(rn(x0 * x1) + rn(x0 * x1))))


def squared3(x):
    """Return x * x of a triple."""
    x0, x1, x2 = x
    a, b = two_square(x0)
    c, d = two_prod(x0, x1)
    g = rn(x0 * x2)
    return gather3(a, b, rn(c + c), rn(d + d), rn(rn(g + g) + rn(x1 * x1)))


def squared4(x):
    """Return x * x of four components."""
    x0, x1, x2, x3 = x
    a, b0 = two_square(x0)
    b1, c0 = two_prod(x0, x1)
    c1, d1 = two_prod(x0, x2)
    c2, d2 = two_square(x1)
    d3 = rn(rn(x0 * x3) + rn(x1 * x2))
    c1, c2 = two_sum(rn(c1 + c1), c2)
    low = rn(c2 + rn(rn(rn(d1 + d1) + d2) + rn(d3 + d3)))
    return gather4(a, b0, rn(b1 + b1), rn(c0 + c0), c1, low)


def pair_square3(x):
    """Return x * x of a pair as a triple."""
    x0, x1 = x
    a, b = two_square(x0)
    c, d = two_prod(x0, x1)
    return gather3(a, b, rn(c + c), rn(d + d), rn(x1 * x1))


def pair_square4(x):
    """Return x * x of a pair as four components."""
    x0, x1 = x
    a, b0 = two_square(x0)
    b1, c0 = two_prod(x0, x1)
    c1, low = two_square(x1)
    return gather4(a, b0, rn(b1 + b1), rn(c0 + c0), c1, low)


# Algorithms by number of components.
SQUARED = {1: squared1, 2: squared2, 3: squared3, 4: squared4}
TIMES_FLOAT = {2: times_float2, 3: times_float3, 4: times_float4}
