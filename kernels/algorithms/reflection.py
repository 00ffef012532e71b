"""Formulas of Householder reflections on expansions, by number of components."""

from mcf.kernels.algorithms.ieee import DIV, MINUS, SQRT, SUB, each
from mcf.kernels.algorithms.primitives import ONE, ZERO, rn, where
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


CHOSEN = family("chosen", _chosen, "c x* y*", "x where c, else y.")
# Registers shaped like x: a literal is not a register on every executor.
ONE_LIKE = family("one_like", lambda x: (ONE, *[ZERO] * (len(x) - 1)), "x*", "1.")
ZERO_LIKE = family("zero_like", lambda x: (ZERO,) * len(x), "x*", "0.")
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
