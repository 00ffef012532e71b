"""Formulas of Gaussian elimination on expansions, by number of components.

Their results have the same bits as those of the families in `ieee`.
"""

from mcf.kernels.algorithms.ieee import DIV, FMA, MINUS, MUL, SQRT, each
from mcf.kernels.algorithms.primitives import ONE, ZERO, invert, neg, rn, where
from mcf.kernels.algorithms.reflection import CHOSEN
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


def first_zero(known, d, index):
    """Return `known`, the index of an earlier pivot 0; if it is 0 and d is, return `index`."""
    return (where((known[0] == ZERO) & (magnitude(d) == ZERO), index, known[0]),)


def first_not_positive(known, d, index):
    """Return the index of the first pivot that is not positive, as `first_zero`."""
    return (where((known[0] == ZERO) & invert(d[0] > ZERO), index, known[0]),)


def signed(odd, x):
    """Return -x where a number of exchanges is odd."""
    return chosen(odd[0] != ZERO, minus(x), x)


FIRST_ZERO = each("first_zero", "The first pivot 0.", first_zero, magnitude=MAGNITUDE)
FIRST_NOT_POSITIVE = dict.fromkeys((1, 2, 3, 4), first_not_positive)
SIGNED = each("signed", "-x where odd, else x.", signed, chosen=CHOSEN, minus=MINUS)


def larger(size, largest):
    """Return whether a magnitude exceeds the largest; a NaN exceeds all but a NaN."""
    return (size[0] > largest[0]) | ((size[0] != size[0]) & (largest[0] == largest[0]))


def equals(index, other):
    """Return whether an index is `other`."""
    return index[0] == other


def alike(x, index):
    """Return an index as a register shaped like x."""
    return (where(x[0] == x[0], index[0], index[0]),)


def toggled(odd, index, own):
    """Return the parity of exchanges after one of row `own` with row `index`."""
    return (where(index[0] == own, odd[0], rn(ONE - odd[0])),)


def still_flat(flat, x):
    """Return `flat` where x is 0, else 0."""
    return (where(magnitude(x) == ZERO, flat[0], ZERO),)


STILL_FLAT = each("still_flat", "flat where x is 0.", still_flat, magnitude=MAGNITUDE)
# Selections among magnitudes and indices, each of which is a tuple of one register.
SELECTION = {
    "larger": larger,
    "equals": equals,
    "alike": alike,
    "toggled": toggled,
    "chosen_one": CHOSEN[1],
}
