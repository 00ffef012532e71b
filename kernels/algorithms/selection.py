"""Selections between expansions: results are operands or their negatives, bit for bit.

Comparisons are by value: the sign of a difference (`ieee.COMPARE`), which is exact for normalised
expansions and NaN if an operand is NaN.
"""

from mcf.kernels.algorithms.ieee import COMPARE, each
from mcf.kernels.algorithms.primitives import ZERO, neg, signed, where


def either1(c, x, y):
    """Return x where the condition holds, else y."""
    return (where(c, x[0], y[0]),)


def either2(c, x, y):
    """Return x where the condition holds, else y, for two components."""
    return where(c, x[0], y[0]), where(c, x[1], y[1])


def either3(c, x, y):
    """Return x where the condition holds, else y, for three components."""
    return where(c, x[0], y[0]), where(c, x[1], y[1]), where(c, x[2], y[2])


def either4(c, x, y):
    """Return x where the condition holds, else y, for four components."""
    return (
        where(c, x[0], y[0]),
        where(c, x[1], y[1]),
        where(c, x[2], y[2]),
        where(c, x[3], y[3]),
    )


EITHER = {1: either1, 2: either2, 3: either3, 4: either4}


# Forms: `either`, `sign` and others are filled in for each number of components.


def chosen(c, x, y):
    """Form: x where the mask c is not 0, else y."""
    return either(c != ZERO, x, y)


def larger(x, y):
    """Form: x if it is NaN or y <= x, else y; so NaN if either is NaN."""
    (s,) = sign(y, x)
    return either((x[0] != x[0]) | (s <= ZERO), x, y)


def smaller(x, y):
    """Form: x if it is NaN or x <= y, else y; so NaN if either is NaN."""
    (s,) = sign(x, y)
    return either((x[0] != x[0]) | (s <= ZERO), x, y)


def larger_number(x, y):
    """Form: x if y is NaN or y <= x, else y; so the other one if one is NaN."""
    (s,) = sign(y, x)
    return either((y[0] != y[0]) | (s <= ZERO), x, y)


def smaller_number(x, y):
    """Form: x if y is NaN or x <= y, else y; so the other one if one is NaN."""
    (s,) = sign(x, y)
    return either((y[0] != y[0]) | (s <= ZERO), x, y)


def between(x, low, high):
    """Form: min(max(x, low), high)."""
    return smallest(largest(x, low), high)


def turned1(c, x):
    """Return -x where the condition holds, else x."""
    return (where(c, neg(x[0]), x[0]),)


def turned2(c, x):
    """Return -x where the condition holds, else x, for two components."""
    return where(c, neg(x[0]), x[0]), where(c, neg(x[1]), x[1])


def turned3(c, x):
    """Return -x where the condition holds, else x, for three components."""
    return where(c, neg(x[0]), x[0]), where(c, neg(x[1]), x[1]), where(c, neg(x[2]), x[2])


def turned4(c, x):
    """Return -x where the condition holds, else x, for four components."""
    return (
        where(c, neg(x[0]), x[0]),
        where(c, neg(x[1]), x[1]),
        where(c, neg(x[2]), x[2]),
        where(c, neg(x[3]), x[3]),
    )


TURNED = {1: turned1, 2: turned2, 3: turned3, 4: turned4}


def unsigned(x):
    """Form: |x|, negating x if the sign bit of its first component is set."""
    return turned(signed(x[0]), x)


def with_sign(x, y):
    """Form: |x|, negated if y has its sign bit set."""
    return turned(signed(y[0]), unsigned(x))


ABS = each("abs", "|x|.", unsigned, turned=TURNED)
COPYSIGN = each("copysign", "|x| with the sign of y.", with_sign, turned=TURNED, unsigned=ABS)
WHERE = each("where", "x where c is not 0, else y.", chosen, either=EITHER)
MAXIMUM = each("maximum", "The larger of x and y.", larger, either=EITHER, sign=COMPARE)
MINIMUM = each("minimum", "The smaller of x and y.", smaller, either=EITHER, sign=COMPARE)
FMAX = each("fmax", "The larger number.", larger_number, either=EITHER, sign=COMPARE)
FMIN = each("fmin", "The smaller number.", smaller_number, either=EITHER, sign=COMPARE)
CLAMP = each("clamp", "x between low and high.", between, smallest=MINIMUM, largest=MAXIMUM)
