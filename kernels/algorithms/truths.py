"""Masks as registers holding 1 and 0, and tests of single registers."""

from mcf.kernels.algorithms.primitives import ONE, ZERO, neg, signed, where


def negated(x):
    """Return -x, also for a NaN."""
    return (neg(x),)


def larger(a, b):
    """Return the larger of two registers."""
    return (where(a < b, b, a),)


def both(a, b):
    """Return 1 if a and b are 1, else 0."""
    return (where(a > ZERO, b, ZERO),)


def one_of(a, b):
    """Return 1 if a or b is 1, else 0."""
    return (where(a > ZERO, a, b),)


def false(a):
    """Return 1 if a is 0, else 0."""
    return (where(a > ZERO, ZERO, ONE),)


def undefined(x):
    """Return 1 if x is NaN, else 0."""
    return (where(x == x, ZERO, ONE),)


def negative(x):
    """Return 1 if the sign bit of x is set (also for -0 and NaN), else 0."""
    return (where(signed(x), ONE, ZERO),)
