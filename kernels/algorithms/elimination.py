"""Formulas of Gaussian elimination on expansions, by number of components.

Their results have the same bits as those of the families in `ieee`. Magnitudes and indices are
tuples of one register.
"""

from mcf.kernels.algorithms.ieee import DIV, FMA, MUL, SQRT, minus, negated
from mcf.kernels.algorithms.primitives import ONE, ZERO, invert, neg, rn, where
from mcf.kernels.algorithms.reflection import chosen
from mcf.kernels.algorithms.selection import negated_where
from mcf.kernels.statements import family

quotient, negative, product = DIV, minus, MUL


@family("z* m* w*", fma=FMA)
def less_product(z, m, w, fma):
    """Return z - m w, rounded as `fma` rounds it."""
    return fma(negated(m), w, z)


def or_one(good, d):
    """Return d where a condition holds, else 1."""
    return where(good, d[0], ONE), *(where(good, low, ZERO) for low in d[1:])


@family("d*")
def nonzero_or_one(d):
    """Return d, or 1 where d is 0."""
    return or_one(d[0] != ZERO, d)


@family("d*", root=SQRT)
def root_of_positive(d, root):
    """Return the square root of d, or 1 where d is not positive."""
    return root(or_one(d[0] > ZERO, d))


def of_any_length(function):
    """Return a function of tuples of any length by number of components."""
    return dict.fromkeys((1, 2, 3, 4), function)


@of_any_length
def magnitude(d):
    """Return |d| by its first component."""
    return where(d[0] < ZERO, neg(d[0]), d[0])


def first_bad(known, bad, index):
    """Return the index of the first bad pivot: `known`, or `index` where that is 0."""
    return (where((known[0] == ZERO) & bad, index, known[0]),)


@of_any_length
def first_zero(known, d, index):
    """Return `known`, the index of an earlier pivot 0; if it is 0 and d is, return `index`."""
    return first_bad(known, d[0] == ZERO, index)


@of_any_length
def first_not_positive(known, d, index):
    """Return the index of the first pivot that is not positive."""
    return first_bad(known, invert(d[0] > ZERO), index)


@family("odd. x*")
def signed(odd, x):
    """Return -x where a number of exchanges is odd, else x."""
    return negated_where(odd[0] != ZERO, x)


@of_any_length
def still_flat(flat, x):
    """Return `flat` where x is 0, else 0."""
    return (where(x[0] == ZERO, flat[0], ZERO),)


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


# Selections among magnitudes and indices.
SELECTION = {
    "larger": larger,
    "equals": equals,
    "alike": alike,
    "toggled": toggled,
    "chosen_one": chosen[1],
}
