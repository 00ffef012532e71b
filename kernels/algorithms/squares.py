"""Squares of expansions: products in which equal terms are computed once."""

from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum


def square1(x):
    """RN(x * x)."""
    return (rn(x[0] * x[0]),)


def square2(x):
    """x * x of a pair."""
    x0, x1 = x
    a, b = two_prod(x0, x0)
    return fast_two_sum(a, rn(b + rn(rn(x0 + x0) * x1)))


def square3(x):
    """x * x of a triple."""
    x0, x1, x2 = x
    twice = rn(x0 + x0)
    return _gather3(twice, x0, x1, rn(rn(twice * x2) + rn(x1 * x1)))


def pair_square3(x):
    """x * x of a pair as a triple."""
    x0, x1 = x
    return _gather3(rn(x0 + x0), x0, x1, rn(x1 * x1))


def _gather3(twice, x0, x1, low):
    a, b = two_prod(x0, x0)
    c, d = two_prod(twice, x1)
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    c = rn(c + rn(d + low))
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    b, c = fast_two_sum(b, c)
    a, b = fast_two_sum(a, b)
    return a, b, c


def square4(x):
    """x * x of four components."""
    x0, x1, x2, x3 = x
    twice = rn(x0 + x0)
    c, d = two_prod(twice, x2)
    e, f = two_prod(x1, x1)
    low = rn(rn(twice * x3) + rn(rn(x1 + x1) * x2))
    c, e = two_sum(c, e)
    return _gather4(twice, x0, x1, c, rn(e + rn(rn(d + f) + low)))


def pair_square4(x):
    """x * x of a pair as four components."""
    x0, x1 = x
    c, d = two_prod(x1, x1)
    return _gather4(rn(x0 + x0), x0, x1, c, d)


def _gather4(twice, x0, x1, c, low):
    a, b0 = two_prod(x0, x0)
    b1, c1 = two_prod(twice, x1)
    b0, b1 = two_sum(b0, b1)
    c, c1 = two_sum(c, c1)
    a, b0 = fast_two_sum(a, b0)
    b1, c = two_sum(b1, c)
    low = rn(low + rn(c1 + c))
    b0, b1 = two_sum(b0, b1)
    b1, low = two_sum(b1, low)
    a, b0 = fast_two_sum(a, b0)
    b0, b1 = two_sum(b0, b1)
    b1, low = two_sum(b1, low)
    a, b0 = fast_two_sum(a, b0)
    b0, b1 = fast_two_sum(b0, b1)
    b1, low = fast_two_sum(b1, low)
    return a, b0, b1, low
