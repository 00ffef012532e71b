"""Comparisons of pairs of 16-bit numbers by their exact sums in float32.

Let (s, e) = TwoSum(x0, x1) and (t, f) = TwoSum(y0, y1) in float32. The exact sums are ordered like
s and t or, if these are equal, like e and f. For infinities e is NaN, which compares false.
"""

from mcf.kernels.algorithms.primitives import ONE, ZERO, invert, rx, where


def _sum(x):
    s = rx(x[0] + x[1])
    t = rx(s - x[0])
    return s, rx(rx(x[0] - rx(s - t)) + rx(x[1] - t))


def short_lt(x, y):
    """1 where x < y, else 0."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s < t) | ((s == t) & (e < f)), ONE, ZERO),)


def short_le(x, y):
    """1 where x <= y, else 0."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s < t) | ((s == t) & invert(e > f)), ONE, ZERO),)


def short_eq(x, y):
    """1 where x = y, else 0."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s == t) & invert((e < f) | (e > f)), ONE, ZERO),)


def short_ne(x, y):
    """0 where x = y, else 1."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s == t) & invert((e < f) | (e > f)), ZERO, ONE),)


SHORT = {"lt": short_lt, "le": short_le, "eq": short_eq, "ne": short_ne}
