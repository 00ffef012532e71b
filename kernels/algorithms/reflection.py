"""Formulas of Householder reflections on expansions, by number of components."""

from mcf.kernels.algorithms.ieee import DIV, SQRT, SUB, negated
from mcf.kernels.algorithms.primitives import (
    ONE,
    ZERO,
    absolute,
    bits64,
    const,
    from_bits64,
    greater,
    lesser,
    rn,
    where,
    whole,
)
from mcf.kernels.algorithms.selection import either, negated_where
from mcf.kernels.algorithms.transforms import finite_only
from mcf.kernels.statements import family

# Complex numbers have up to 8 components.
UP_TO_8 = range(1, 9)


def one(x):
    """Return 1 with as many components as x."""
    return (ONE, *zero(x[1:]))


def zero(x):
    """Return 0 with as many components as x."""
    return (ZERO,) * len(x)


@family("first* squares* flat", root=SQRT, difference=SUB, quotient=DIV)
def reflector(first, squares, flat, root, difference, quotient):
    """Return the divisor of x below its first number, and tau; squares = x^T x.

    With beta = -sign(x_0) |x| these are x_0 - beta and (beta - x_0) / beta, but 1 and 0 if `flat`,
    i.e. all of x below is zero.
    """
    norm = root(squares)
    beta = negated_where(first[0] > ZERO, norm)
    gap = difference(first, beta)
    tau = negated(quotient(gap, either(flat, one(beta), beta)))
    return either(flat, one(gap), gap), either(flat, zero(tau), tau)


@family("c x* y*", UP_TO_8)
def chosen(c, x, y):
    """Return x where c, else y."""
    return either(c, x, y)


# Registers shaped like x: a literal is not a register on every executor.
one_like, zero_like = family("x*", UP_TO_8)(one), family("x*", UP_TO_8)(zero)


@family("x* more main")
def scaled(x, more, main):
    """Return x more main, without low components where the leading one is not finite."""
    return finite_only([rn(rn(a * more) * main) for a in x])


@family("x* y")
def times(x, y):
    """Return x y for a power of two y."""
    return tuple(rn(a * y) for a in x)


@family("x*", UP_TO_8)
def halved(x):
    """Return x / 2."""
    return tuple(rn(a * const(0.5)) for a in x)


def powers(largest):
    """Return two powers of two whose product scales a magnitude to [1/2, 1).

    A power beyond the exponent range is applied as two factors, else the first is 1. Zero and what
    is not finite are left as they are.
    """
    exponent = ((bits64(largest[0]) >> 52) & 0x7FF) - 1022
    # Multiplying a subnormal number first makes its exponent readable.
    below = ((bits64(rn(largest[0] * const(2.0**54))) >> 52) & 0x7FF) - 1076
    exponent = where(exponent == whole(-1022), below, exponent)
    none = (largest[0] == ZERO) | (exponent == whole(1025))
    down = whole(0) - where(none, whole(0), exponent)
    main = greater(whole(-1022), lesser(whole(1023), down))
    return from_bits64((down - main + 1023) << 52), from_bits64((main + 1023) << 52)


def is_flat(flat):
    """Return whether all numbers of a column below its first are 0."""
    return flat[0] != ZERO


def conjugate(x):
    """Return a real number."""
    return x


def conjugate_by(x, way):
    """Return a real number, whichever the way."""
    return x


def mean(x, y):
    """Return |x + y| / 2 by first components."""
    return absolute(rn(rn(x[0] + y[0]) * const(0.5)))
