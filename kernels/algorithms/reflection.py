"""Formulas of Householder reflections on expansions, by number of components."""

from mcf.kernels.algorithms.ieee import DIV, MINUS, SQRT, SUB, each
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
from mcf.kernels.statements import family


def reflector(first, squares, flat):
    """Return the divisor of x below its first number, and tau; squares = x^T x.

    With beta = -sign(x_0) |x| these are x_0 - beta and (beta - x_0) / beta, but 1 and 0 if `flat`,
    i.e. all of x below is zero.
    """
    norm = root(squares)
    beta = chosen(first[0] > ZERO, minus(norm), norm)
    gap = difference(first, beta)
    tau = minus(quotient(gap, chosen(flat, one(beta), beta)))
    return chosen(flat, one(gap), gap), chosen(flat, zero(tau), tau)


def _chosen(c, x, y):
    return tuple(where(c, a, b) for a, b in zip(x, y, strict=True))


def _scaled(x, more, main):
    h = [rn(rn(a * more) * main) for a in x]
    finite = rn(h[0] - h[0]) == ZERO
    return h[0], *(where(finite, low, ZERO) for low in h[1:])


# Complex numbers have up to 8 components.
UP_TO_8 = range(1, 9)
CHOSEN = family("chosen", _chosen, "c x* y*", "x where c, else y.", UP_TO_8)
# Registers shaped like x: a literal is not a register on every executor.
ONE_LIKE = family("one_like", lambda x: (ONE, *[ZERO] * (len(x) - 1)), "x*", "1.", UP_TO_8)
ZERO_LIKE = family("zero_like", lambda x: (ZERO,) * len(x), "x*", "0.", UP_TO_8)
SCALED = family(
    "scaled",
    _scaled,
    "x* more main",
    "x more main, without low components where the leading one is not finite.",
)
REFLECTOR = each(
    "reflector",
    "What x is divided by below its first number, and tau.",
    reflector,
    root=SQRT,
    minus=MINUS,
    difference=SUB,
    quotient=DIV,
    chosen=CHOSEN,
    one=ONE_LIKE,
    zero=ZERO_LIKE,
)

TIMES = family(
    "times", lambda x, y: tuple(rn(a * y) for a in x), "x* y", "x y for a power of two y."
)
HALVED = family("halved", lambda x: tuple(rn(a * const(0.5)) for a in x), "x*", "x / 2.", UP_TO_8)


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
