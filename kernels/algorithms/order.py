"""The order of canonical expansions, which is that of their components; NaN is the largest.

Canonical: each component is the rounding of what it and those below it sum to.
"""

from mcf.kernels.algorithms.families import filled
from mcf.kernels.algorithms.primitives import invert


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
