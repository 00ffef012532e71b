"""The order of canonical expansions, which is that of their components; NaN is the largest.

Canonical: each component is the rounding of what it and those below it sum to.
"""

import itertools

from mcf.kernels.algorithms.families import filled
from mcf.kernels.algorithms.primitives import ONE, ZERO, const, invert, neg, rn, rx, where
from mcf.kernels.algorithms.transforms import two_sum
from mcf.kernels.statements import recorded


def before1(t, w):
    """t < w of single components."""
    return t[0] < w[0]


def before2(t, w):
    """t < w of pairs."""
    return (t[0] < w[0]) | ((t[0] == w[0]) & (t[1] < w[1]))


def before3(t, w):
    """t < w of three components."""
    last = (t[1] < w[1]) | ((t[1] == w[1]) & (t[2] < w[2]))
    return (t[0] < w[0]) | ((t[0] == w[0]) & last)


def before4(t, w):
    """t < w of four components."""
    last = (t[2] < w[2]) | ((t[2] == w[2]) & (t[3] < w[3]))
    last = (t[1] < w[1]) | ((t[1] == w[1]) & last)
    return (t[0] < w[0]) | ((t[0] == w[0]) & last)


BEFORE = {1: before1, 2: before2, 3: before3, 4: before4}


# The forms: `before` is another function in each of a family.


def precedes(t, w):
    """t < w, or w alone is NaN."""
    return before(t, w) | ((w[0] != w[0]) & (t[0] == t[0]))


def does_not_follow(t, w):
    """t <= w, or w is NaN."""
    follows = before(w, t)
    return ((t[0] == t[0]) & (w[0] == w[0]) & invert(follows)) | (w[0] != w[0])


def does_not_precede(t, w):
    """t >= w of numbers, or w is NaN."""
    precedes = before(t, w)
    return ((t[0] == t[0]) & (w[0] == w[0]) & invert(precedes)) | (w[0] != w[0])


def falls_below(t, w):
    """w < t, or w alone is NaN."""
    return before(w, t) | ((w[0] != w[0]) & (t[0] == t[0]))


def _each(name, doc, form):
    return {n: filled(form, f"{name}{n}", doc, before=f) for n, f in BEFORE.items()}


PRECEDES = _each("precedes", "t < w, NaN the largest.", precedes)
FALLS_BELOW = _each("falls_below", "w < t, or w alone is NaN.", falls_below)
DOES_NOT_FOLLOW = _each("does_not_follow", "t <= w, NaN the largest.", does_not_follow)
DOES_NOT_PRECEDE = _each("does_not_precede", "t >= w, or w is NaN.", does_not_precede)


# Keys of narrow components, in float64: see `mcf.kernels.ordering`.


def summed(x, limit, huge):
    """(s, e) with s + e = x0 + x1, infinity and 0 from `limit` on."""
    s, e = two_sum(x[0], x[1])
    inside = (s < limit) & (neg(s) < limit)
    return where(inside, s, rn(s * huge)), where(inside, e, ZERO)


def _alone(s, limit, huge):
    return where((s < limit) & (neg(s) < limit), s, rn(s * huge))


def summed_alone2(x, limit, huge):
    """x0 + x1 where that is exact, infinity from `limit` on."""
    return (_alone(rn(x[0] + x[1]), limit, huge),)


def summed_alone3(x, limit, huge):
    """x0 + x1 + x2 where that is exact."""
    return (_alone(rn(rn(x[0] + x[1]) + x[2]), limit, huge),)


def summed_alone4(x, limit, huge):
    """x0 + x1 + x2 + x3 where that is exact."""
    return (_alone(rn(rn(rn(x[0] + x[1]) + x[2]) + x[3]), limit, huge),)


SUMMED_ALONE = {2: summed_alone2, 3: summed_alone3, 4: summed_alone4}


def left_over(out_e):
    """Return whether a sum is not exact."""
    return (out_e != ZERO,)


# Pairs of 16 bits are compared by their sums in float32, which keep what they round off.
# (s, e) = TwoSum(x0, x1) and (t, f) = TwoSum(y0, y1) in float32 are those of exact sums, in the
# order of s and t and, where these are equal, of e and f. Of infinities e is NaN, which is not
# before any.


def _sum(x):
    s = rx(x[0] + x[1])
    t = rx(s - x[0])
    return s, rx(rx(x[0] - rx(s - t)) + rx(x[1] - t))


def short_lt(x, y):
    """1 where x < y, else 0."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s < t) | ((s == t) & (e < f)), ONE, ZERO),)


def short_le(x, y):
    """1 where x <= y, else 0."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s < t) | ((s == t) & invert(e > f)), ONE, ZERO),)


def short_eq(x, y):
    """1 where x = y, else 0."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s == t) & invert((e < f) | (e > f)), ONE, ZERO),)


def short_ne(x, y):
    """0 where x = y, else 1."""
    s, e = _sum(x)
    t, f = _sum(y)
    return (where((s == t) & invert((e < f) | (e > f)), ZERO, ONE),)


SHORT = {"lt": short_lt, "le": short_le, "eq": short_eq, "ne": short_ne}


# Tests whether an expansion is canonical, and canonical signs of its zeros.


def _usual(x):
    """Return whether x is what `canonical` of `mcf.convert.rounding` would return."""
    found = rn(x[0] - x[0]) == ZERO
    for a, b in itertools.pairwise(x):
        found = found & (rn(a + b) == a)
    # Test for half the gap to a neighbour, where the next component may change the rounding.
    for a, b, c in zip(x, x[1:], x[2:], strict=False):
        twice = rn(const(2.0) * b)
        apart = rn(rn(a + twice) - a) != twice
        found = found & (apart | (b == ZERO) | (c == ZERO))
    return found


def _family(name, form, doc):
    return {n: recorded(f"{name}{n}", form, {"x": n}, doc) for n in (2, 3, 4)}


USUAL = _family(
    "usual",
    _usual,
    "Whether x is finite and each component the rounding of itself and those below.",
)
TIDY = _family(
    "tidy", lambda x: (x[0], *(rn(low + ZERO) for low in x[1:])), "x, its low zeros positive."
)
