"""The order of canonical expansions, which is that of their components; NaN is the largest.

Canonical: each component is the rounding of what it and those below it sum to.
"""

import itertools

from mcf.kernels.algorithms.primitives import (
    ONE,
    ZERO,
    absolute,
    const,
    invert,
    neg,
    rn,
    rx,
    where,
)
from mcf.kernels.algorithms.transforms import two_sum
from mcf.kernels.statements import Family, family, recorded


def before(t, w):
    """Return whether t < w."""
    *pairs, (a, b) = zip(t, w, strict=True)
    found = a < b
    for a, b in reversed(pairs):
        found = (a < b) | ((a == b) & found)
    return found


@family("t* w*")
def precedes(t, w):
    """Return whether t < w, or w alone is NaN."""
    return before(t, w) | ((w[0] != w[0]) & (t[0] == t[0]))


@family("t* w*")
def falls_below(t, w):
    """Return whether w < t, or w alone is NaN."""
    return before(w, t) | ((w[0] != w[0]) & (t[0] == t[0]))


@family("t* w*")
def does_not_follow(t, w):
    """Return whether t <= w, or w is NaN."""
    return ((t[0] == t[0]) & (w[0] == w[0]) & invert(before(w, t))) | (w[0] != w[0])


@family("t* w*")
def does_not_precede(t, w):
    """Return whether t >= w of numbers, or w is NaN."""
    return ((t[0] == t[0]) & (w[0] == w[0]) & invert(before(t, w))) | (w[0] != w[0])


# Keys of narrow components, in float64: see `mcf.kernels.ordering`.


def summed(x, limit, huge):
    """(s, e) with s + e = x0 + x1, infinity and 0 from `limit` on."""
    s, e = two_sum(x[0], x[1])
    inside = (s < limit) & (neg(s) < limit)
    return where(inside, s, rn(s * huge)), where(inside, e, ZERO)


@family("x* limit huge", (2, 3, 4))
def summed_alone(x, limit, huge):
    """Return the sum of x where it is exact, infinity from `limit` on."""
    s, *rest = x
    for c in rest:
        s = rn(s + c)
    return (where((s < limit) & (neg(s) < limit), s, rn(s * huge)),)


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


def _short(name, holds):
    """Return a comparison of pairs, given whether it holds for (s, e) and (t, f)."""

    def form(x, y):
        return (where(holds(*_sum(x), *_sum(y)), ONE, ZERO),)

    return recorded(f"short_{name}", form, {"x": 2, "y": 2}, f"1 where x {name} y, else 0.")


def _same(s, e, t, f):
    return (s == t) & invert((e < f) | (e > f))


_HOLDS = {
    "lt": lambda s, e, t, f: (s < t) | ((s == t) & (e < f)),
    "le": lambda s, e, t, f: (s < t) | ((s == t) & invert(e > f)),
    "eq": _same,
    "ne": lambda *sums: invert(_same(*sums)),
}
SHORT = Family(lambda name: _short(name, _HOLDS[name]), _HOLDS)


# Tests whether an expansion is canonical, and canonical signs of its zeros.


@family("x*", (2, 3, 4))
def usual(x):
    """Return whether x is finite and what `canonical` of `mcf.convert.rounding` would return."""
    found = rn(x[0] - x[0]) == ZERO
    for a, b in itertools.pairwise(x):
        found = found & (rn(a + b) == a)
    # Test for half the gap to a neighbour, where the next component may change the rounding.
    for a, b, c in zip(x, x[1:], x[2:], strict=False):
        twice = rn(const(2.0) * b)
        apart = rn(rn(a + twice) - a) != twice
        found = found & (apart | (b == ZERO) | (c == ZERO))
    return found


@family("x*", (2, 3, 4))
def tidy(x):
    """Return x with +0 for zeros below the first component."""
    return x[0], *(rn(low + ZERO) for low in x[1:])


# `isclose` by first components, where these suffice.


def closeness(x, y, rtol, atol, margin, least):
    """Return 1 if |x - y| < atol + rtol |y| is certain, 0 if it is certainly larger, else 2.

    A number, also a tolerance, is within u |x0| of its first component, where u is the format's
    unit roundoff. Each operation here has an error of at most u times its result. The total error
    is at most `margin` = 16 u times the sum of the magnitudes, plus `least` where products are
    subnormal. With infinities and NaN every comparison fails.
    """
    error = absolute(rn(x[0] - y[0]))
    allowed = rn(rn(absolute(y[0]) * rtol[0]) + atol[0])
    size = rn(rn(absolute(x[0]) + absolute(y[0])) + allowed)
    around = rn(rn(size * margin[0]) + least[0])
    near, far = rn(error + around) < allowed, rn(error - around) > allowed
    return (where(near, ONE, where(far, ZERO, ONE + ONE)),)
