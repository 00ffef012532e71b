"""Truth values as registers, 1 and 0, and what is asked of single registers."""

from mcf.kernels.algorithms.primitives import ONE, ZERO, neg, signed, where


def negated(x):
    """-x, of a NaN too."""
    return (neg(x),)


def larger(a, b):
    """The larger of two registers."""
    return (where(a < b, b, a),)


def both(a, b):
    """1 where a and b are, else 0."""
    return (where(a > ZERO, b, ZERO),)


def one_of(a, b):
    """1 where a or b is, else 0."""
    return (where(a > ZERO, a, b),)


def false(a):
    """1 where a is 0, else 0."""
    return (where(a > ZERO, ZERO, ONE),)


def undefined(x):
    """1 where x is NaN, else 0."""
    return (where(x == x, ZERO, ONE),)


def negative(x):
    """1 where x has a sign, -0 and NaN too, else 0."""
    return (where(signed(x), ONE, ZERO),)
