"""Selections between expansions: results are operands or their negatives, bit for bit.

Comparisons are by value: the sign of a difference (`ieee.sign`), which is exact for normalised
expansions and NaN if an operand is NaN.
"""

from mcf.kernels.algorithms.ieee import difference, negated, sign
from mcf.kernels.algorithms.primitives import ZERO, signed, where
from mcf.kernels.statements import family


def either(c, x, y):
    """Return x where the condition holds, else y."""
    return tuple(where(c, a, b) for a, b in zip(x, y, strict=True))


def negated_where(c, x):
    """Return -x where the condition holds, else x."""
    return either(c, negated(x), x)


@family("c x* y*")
def where_(c, x, y):
    """Return x where the mask c is not 0, else y."""
    return either(c != ZERO, x, y)


@family("x* y*", network=difference)
def maximum(x, y, network):
    """Return x if it is NaN or y <= x, else y; so NaN if either is NaN."""
    return either((x[0] != x[0]) | (sign(y, x, network) <= ZERO), x, y)


@family("x* y*", network=difference)
def minimum(x, y, network):
    """Return x if it is NaN or x <= y, else y; so NaN if either is NaN."""
    return either((x[0] != x[0]) | (sign(x, y, network) <= ZERO), x, y)


@family("x* y*", network=difference)
def fmax(x, y, network):
    """Return x if y is NaN or y <= x, else y; so the other one if one is NaN."""
    return either((y[0] != y[0]) | (sign(y, x, network) <= ZERO), x, y)


@family("x* y*", network=difference)
def fmin(x, y, network):
    """Return x if y is NaN or x <= y, else y; so the other one if one is NaN."""
    return either((y[0] != y[0]) | (sign(x, y, network) <= ZERO), x, y)


@family("x* low* high*", smallest=minimum, largest=maximum)
def clamp(x, low, high, smallest, largest):
    """Return min(max(x, low), high)."""
    return smallest(largest(x, low), high)


@family("x*")
def abs_(x):
    """Return |x|, negating x if the sign bit of its first component is set."""
    return negated_where(signed(x[0]), x)


@family("x* y*", unsigned=abs_)
def copysign(x, y, unsigned):
    """Return |x|, negated if y has its sign bit set."""
    return negated_where(signed(y[0]), unsigned(x))
