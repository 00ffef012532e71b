"""Sums of expansions of 1 to 4 components; tuples, largest component first.

The networks of Zhang and Aiken 2025 ("High-performance branch-free algorithms for extended-
precision floating-point arithmetic", SC '25, and doi:10.1007/978-3-031-98682-6_12): TwoSum and
Fast2Sum gates in a fixed order, commutative in x and y, accurate under cancellation. u = 2**-p;
`mcf.kernels.bounds` has the bounds and says which are proved.
"""

from mcf.kernels.algorithms.pairs import add, grow
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_sum


def sum1(x, y):
    """RN(x + y)."""
    return (rn(x[0] + y[0]),)


def sum2(x, y):
    """Return x + y of pairs; error <= 2u^2."""
    x0, x1 = x
    y0, y1 = y
    return add(x0, x1, y0, y1)


def sum3(x, y):
    """Return x + y of triples."""
    x0, x1, x2 = x
    y0, y1, y2 = y
    # Wires by order of magnitude: a is 1, b and c are u, d and e are u^2, f is u^3.
    a, b = two_sum(x0, y0)
    c, d = two_sum(x1, y1)
    e, f = two_sum(x2, y2)
    a, c = fast_two_sum(a, c)
    b = rn(b + f)
    d, e = two_sum(d, e)
    a, d = fast_two_sum(a, d)
    b, c = two_sum(b, c)
    c = rn(c + e)
    c, d = two_sum(c, d)
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    c = rn(c + d)
    b, c = fast_two_sum(b, c)
    a, b = fast_two_sum(a, b)
    b, c = fast_two_sum(b, c)
    return a, b, c


def sum4(x, y):
    """Return x + y of four components each."""
    x0, x1, x2, x3 = x
    y0, y1, y2, y3 = y
    a, b = two_sum(x0, y0)
    c, d = two_sum(x1, y1)
    e, f = two_sum(x2, y2)
    g, h = two_sum(x3, y3)
    a, c = fast_two_sum(a, c)
    b = rn(b + h)
    d, e = two_sum(d, e)
    f, g = two_sum(f, g)
    b, g = two_sum(b, g)
    c, d = fast_two_sum(c, d)
    e, f = two_sum(e, f)
    a, c = fast_two_sum(a, c)
    d, e = fast_two_sum(d, e)
    b, d = two_sum(b, d)
    c, g = fast_two_sum(c, g)
    e = rn(e + f)
    b, c = two_sum(b, c)
    d, e = two_sum(d, e)
    a, b = fast_two_sum(a, b)
    c, d = two_sum(c, d)
    e = rn(e + g)
    b, c = fast_two_sum(b, c)
    d, e = two_sum(d, e)
    a, b = fast_two_sum(a, b)
    c, d = fast_two_sum(c, d)
    b, c = fast_two_sum(b, c)
    d = rn(d + e)
    a, b = fast_two_sum(a, b)
    c, d = fast_two_sum(c, d)
    b, c = fast_two_sum(b, c)
    c, d = fast_two_sum(c, d)
    return a, b, c, d


def plus_float2(x, y):
    """Return x + y of a pair and a float; error <= 2u^2."""
    x0, x1 = x
    return grow(x0, x1, y[0])


def plus_float3(x, y):
    """Return x + y of a triple and a float: `sum3` without operations that zeros make trivial."""
    x0, x1, x2 = x
    a, b = two_sum(x0, y[0])
    a, c = fast_two_sum(a, x1)
    a, d = fast_two_sum(a, x2)
    b, c = two_sum(b, c)
    c, d = two_sum(c, d)
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    c = rn(c + d)
    b, c = fast_two_sum(b, c)
    a, b = fast_two_sum(a, b)
    b, c = fast_two_sum(b, c)
    return a, b, c


def plus_float4(x, y):
    """Return x + y of four components and a float: `sum4` without operations on zeros."""
    x0, x1, x2, x3 = x
    a, b = two_sum(x0, y[0])
    a, c = fast_two_sum(a, x1)
    c, d = fast_two_sum(c, x2)
    a, c = fast_two_sum(a, c)
    d, e = fast_two_sum(d, x3)
    b, d = two_sum(b, d)
    b, c = two_sum(b, c)
    d, e = two_sum(d, e)
    a, b = fast_two_sum(a, b)
    c, d = two_sum(c, d)
    b, c = fast_two_sum(b, c)
    d, e = two_sum(d, e)
    a, b = fast_two_sum(a, b)
    c, d = fast_two_sum(c, d)
    b, c = fast_two_sum(b, c)
    d = rn(d + e)
    a, b = fast_two_sum(a, b)
    c, d = fast_two_sum(c, d)
    b, c = fast_two_sum(b, c)
    c, d = fast_two_sum(c, d)
    return a, b, c, d


# Sums x + y where |y| is at most about |x| / 2. This precondition decides what a general network
# finds out: Fast2Sum suffices for x0 + y0, and no leading component cancels.


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
SUM = {1: sum1, 2: sum2, 3: sum3, 4: sum4}
PLUS_FLOAT = {2: plus_float2, 3: plus_float3, 4: plus_float4}
ABSORBED = {1: sum1, 2: absorbed2, 3: absorbed3, 4: absorbed4}
