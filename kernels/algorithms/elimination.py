"""Formulas of Gaussian elimination on expansions, by number of components.

Their results have the same bits as those of the families in `ieee`.
"""

from mcf.kernels.algorithms.ieee import DIV, FMA, MINUS, MUL, SQRT, each
from mcf.kernels.algorithms.primitives import ONE, ZERO, neg, where
from mcf.kernels.statements import family


def less_product(z, m, w):
    """Return z - m w, rounded as `fma` rounds it."""
    return fma(minus(m), w, z)


def root_of_positive(d):
    """Return the square root of d, or 1 where d is not positive."""
    return root(positive_or_one(d))


def _or_one(condition, name, doc):
    """Return the family of d where a condition on d[0] holds, else 1."""

    def form(d):
        good = condition(d[0])
        return where(good, d[0], ONE), *(where(good, low, ZERO) for low in d[1:])

    return family(name, form, "d*", doc)


NONZERO_OR_ONE = _or_one(lambda x: x != ZERO, "nonzero_or_one", "d, and 1 where d is 0.")
POSITIVE_OR_ONE = _or_one(
    lambda x: x > ZERO, "positive_or_one", "d, and 1 where d is not positive."
)
ROOT_OF_POSITIVE = each(
    "root_of_positive",
    "The square root of d, and 1 where d is not positive.",
    root_of_positive,
    root=SQRT,
    positive_or_one=POSITIVE_OR_ONE,
)
LESS_PRODUCT = each("less_product", "z - m w.", less_product, fma=FMA, minus=MINUS)


def magnitude(d):
    """Return |d| by its first component."""
    return where(d[0] < ZERO, neg(d[0]), d[0])


MAGNITUDE = dict.fromkeys((1, 2, 3, 4), magnitude)
QUOTIENT = DIV
NEGATIVE = MINUS
PRODUCT = MUL
