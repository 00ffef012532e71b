"""Compute tables of Airy's function Ai about its zeros and at nodes, in integer arithmetic.

w(a) = Ai(-a) is continued downwards from its asymptotic series at 64 by w'' = -a w. About a zero z
of Ai(-a) or Ai'(-a) the series are those of the function divided by a - z. For x = s^2 >= 1 the
functions F(s) = exp(2 s^3 / 3) Ai(s^2) and G(s) = exp(2 s^3 / 3) Ai'(s^2) are entire, F' = 2 s^2 F
+ 2 s G and G' = 2 s^2 G + 2 s^3 F. w is continued upwards from -144 to their nodes, a direction in
which errors shrink (NIST's Digital Library of Mathematical Functions, 9.2 and 9.7,
https://dlmf.nist.gov/9.7).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import NamedTuple

from torch import Tensor

from mcf.elementary import fixed
from mcf.elementary.bessel_zeros import PARTS
from mcf.elementary.tables import _rows, _table

# The number of zeros kept per function (Ai's last is beyond 64), and of coefficients about each.
ZEROS = 109
DEGREES = 70
FAR = 64
# Starts of intervals of a, up to some zeros, and the expansion point of each: None is the next
# zero. The first zeros are far apart, so series between them would converge slowly.
LOW: tuple[tuple[tuple[float, float | None], ...], ...] = (
    ((-1.0, -0.5), (0.0, 0.5), (1.0, 1.4375), (1.875, None), (2.8125, 3.0)),
    (
        (-1.0, -0.625), (-0.25, 0.125), (0.5, None), (1.5, 1.8125), (2.125, 2.4375), (2.75, None),
        (3.75, 3.9375),
    ),
)  # fmt: skip
# The tables in s have 32 nodes in each of [1, 2), [2, 4), [4, 8), [8, 16), but none beyond 12.
STEPS, OCTAVES, LAST, HIGH_DEGREES = 32, 4, 12, 40
# Correct bits, and bits including those lost to rounding.
_WANTED = 768
_BITS = 1088
_ONE = 1 << _BITS
# Terms of the asymptotic series at 64 and 144, of which the last are at most 2^-880.
_TERMS = 400


@functools.cache
def asymptotic(m: int, k: int) -> Fraction:
    """Return the coefficient of 1 / zeta^k: u_k for Ai (m = 0), v_k for Ai' (m = 1)."""
    if k == 0:
        return Fraction(1)
    u = asymptotic(0, k - 1) * Fraction((6 * k - 5) * (6 * k - 3) * (6 * k - 1), 216 * k)
    u /= 2 * k - 1
    return u if m == 0 else -u * Fraction(6 * k + 1, 6 * k - 1)


def _summed(m: int, zeta: Fraction, first: int, step: int, sign: int) -> int:
    """Return the sum of every step-th term, with alternating or equal signs, in fixed point."""
    total, power = Fraction(0), (1 / zeta) ** step
    scale = (1 / zeta) ** first
    for k in range(first, _TERMS, step):
        c = asymptotic(m, k)
        # Sums of exact fractions would become long.
        total += Fraction(fixed.to_fixed(c * scale), fixed.ONE)
        scale = Fraction(fixed.to_fixed(scale * power * sign), fixed.ONE)
    return fixed.to_fixed(total)


class _State(NamedTuple):
    """A point, and w and w' there, in units of 2**-_BITS."""

    at: int
    value: int
    slope: int


@functools.cache
def _start() -> _State:
    """Return Ai(-64) and its derivative with respect to a, where zeta is 1024/3."""
    zeta = Fraction(1024, 3)
    sine, cosine = fixed.sin_cos(zeta)
    plus, minus = sine + cosine, sine - cosine
    root = fixed.root(fixed.pi())
    (p, q), (dp, dq) = (
        [_summed(m, zeta, odd, 2, -1) for odd in (0, 1)] for m in (0, 1)
    )  # fmt: skip

    def over(x: int) -> int:
        return fixed.quotient(x >> fixed.BITS, root) >> (fixed.BITS - _BITS)

    value = over(p * plus + q * minus) // 4
    return _State(FAR << _BITS, value, -2 * over(dp * minus - dq * plus))


def _coefficients(state: _State, count: int) -> list[int]:
    """Return the coefficients of w in powers of a - at."""
    c = [state.value, state.slope]
    for k in range(count - 2):
        last = c[k - 1] if k else 0
        c.append(-((state.at * c[k] >> _BITS) + last) // ((k + 1) * (k + 2)))
    return c


def _evaluated(c: list[int], t: int) -> tuple[int, int]:
    """Return value and derivative of a polynomial."""
    value = slope = 0
    for x in reversed(c):
        slope = value + (slope * t >> _BITS)
        value = x + (value * t >> _BITS)
    return value, slope


def _moved(state: _State, to: int) -> _State:
    """Move to another point by steps of at most 1, so that no power of a step is large."""
    while state.at != to:
        step = min(max(to - state.at, -_ONE), _ONE)
        # Terms fall at least like the power of the phase over k!.
        far = max(abs(state.at), abs(state.at + step))
        phase = abs(step) / _ONE * math.sqrt(far / _ONE + 1)
        count, left = 4, float(_WANTED)
        while left > 0:
            left -= math.log2(max(count / phase, 2.0**-30))
            count += 1
        value, slope = _evaluated(_coefficients(state, count), step)
        state = _State(state.at + step, value, slope)
    return state


def _at_zero(state: _State, m: int, guess: int) -> _State:
    """Return the state at a zero of the function or its derivative, by Newton's method."""
    state = _moved(state, guess)
    c = _coefficients(state, 130)
    b = [(k + 1) * x for k, x in enumerate(c[1:])] if m else c
    at, step = 0, _ONE
    # The next error is about the square of this one.
    while abs(step) >> (_BITS // 2 - 16):
        value, slope = _evaluated(b, at)
        step = (value << _BITS) // slope
        at -= step
    return _State(guess + at, *_evaluated(c, at))


class About(NamedTuple):
    """A zero of Ai(-a) or Ai'(-a), or another number, in units of 2**-_BITS.

    Attributes:
        at: the number.
        row: coefficients of the function about it; about a zero, of the function over a - at.
    """

    at: int
    row: list[int]


def _about(state: _State, m: int, zero: bool) -> About:
    c = _coefficients(state, DEGREES + 2)
    row = [-(i + 1) * x for i, x in enumerate(c[1:])] if m else c
    return About(state.at, row[zero : DEGREES + zero])


@functools.cache
def about(m: int) -> list[About]:
    """Return expansions about zeros of Ai(-a) (m = 0) or Ai'(-a) (m = 1) and points of `LOW`."""
    state, found, low = _start(), [], LOW[m]
    firsts = sum(x is None for _, x in low)
    for k in range(ZEROS, 0, -1):
        # Approximate zeta at the k-th zero.
        zeta = math.pi * (k - (0.75 if m else 0.25))
        guess = int((1.5 * zeta) ** (2 / 3) * 2.0**40) << (_BITS - 40)
        state = _at_zero(state, m, guess)
        found.append(_about(state, m, True))
    zeros = found[-firsts:]
    del found[-firsts:]
    for _, point in reversed(low):
        if point is None:
            found.append(zeros.pop(0))
        else:
            state = _moved(state, int(Fraction(point) * _ONE))
            found.append(_about(state, m, False))
    return found[::-1]


def _series(m: int) -> Tensor:
    return _rows([(c, _ONE) for about_it in about(m) for c in about_it.row])


def _points(m: int) -> Tensor:
    return _rows([(r.at, _ONE) for r in about(m)], PARTS)


@_table
def airy_ai_series() -> Tensor:
    """Return coefficients of Ai(-a) about the points, and of Ai(-a) / (a - z) about zeros."""
    return _series(0)


@_table
def airy_ai_1_series() -> Tensor:
    """Return coefficients of Ai'(-a) about the points, and of Ai'(-a) / (a - z) about zeros."""
    return _series(1)


@_table
def airy_ai_points() -> Tensor:
    """Return the points and zeros of Ai(-a), as 9 floats each."""
    return _points(0)


@_table
def airy_ai_1_points() -> Tensor:
    """Return the points and zeros of Ai'(-a), as 9 floats each."""
    return _points(1)


def _high_start() -> _State:
    """Return w and w' at -144, times exp(zeta), where zeta is 1152."""
    found, root = [], fixed.root(fixed.pi())
    for m in (0, 1):
        total = _summed(m, Fraction(1152), 0, 1, -1)
        found.append(fixed.quotient(total, 2 * root) >> (fixed.BITS - _BITS))
    root = math.isqrt(LAST << (2 * _BITS))
    return _State(-(LAST**2) << _BITS, (found[0] << _BITS) // root, found[1] * root >> _BITS)


def _decay(x: Fraction) -> int:
    """Return exp(-x) in units of 2**-_BITS."""
    value = fixed.exp(-fixed.to_fixed(x / 128))
    for _ in range(7):
        value = value * value >> fixed.BITS
    return value >> (fixed.BITS - _BITS)


def _continued(f: int, g: int, c: Fraction, h: Fraction, count: int) -> tuple[list[int], list[int]]:
    """Return coefficients of F and G at c in v = (s - c) / h."""
    # Express s^2, s and s^3 in powers of v, times 2 h.
    rows = [
        [2 * h * math.comb(n, j) * c ** (n - j) * h**j for j in range(n + 1)] for n in (2, 1, 3)
    ]
    scale = math.lcm(*(x.denominator for row in rows for x in row))
    square, one, cube = ([int(x * scale) for x in row] for row in rows)
    a, b = [f], [g]

    def convolved(weights: list[int], x: list[int], k: int) -> int:
        return sum(w * x[k - j] for j, w in enumerate(weights) if j <= k)

    for k in range(count - 1):
        below = scale * (k + 1)
        following = convolved(square, a, k) + convolved(one, b, k)
        b.append((convolved(square, b, k) + convolved(cube, a, k)) // below)
        a.append(following // below)
    return a, b


@functools.cache
def _high() -> list[tuple[list[int], list[int]]]:
    """Return coefficients of F and G at each node, ascending."""
    found = []
    at, state = Fraction(LAST), _high_start()
    for octave in reversed(range(OCTAVES)):
        half = Fraction(2**octave, 2 * STEPS)
        for j in reversed(range(STEPS)):
            node = 2**octave + half * (2 * j + 1)
            if node > LAST:
                continue
            state = _moved(state, int(-(node**2) * _ONE))
            decay = _decay(Fraction(2, 3) * (at**3 - node**3))
            f, g = (x * decay >> _BITS for x in (state.value, state.slope))
            at, state = node, _State(state.at, f, g)
            found.append(_continued(f, -g, node, half, HIGH_DEGREES))
    return found[::-1]


@_table
def airy_ai_scaled() -> Tensor:
    """Return coefficients of F at the nodes."""
    return _rows([(c, _ONE) for row, _ in _high() for c in row])


@_table
def airy_ai_1_scaled() -> Tensor:
    """Return coefficients of G at the nodes."""
    return _rows([(c, _ONE) for _, row in _high() for c in row])
