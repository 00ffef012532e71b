"""Compute Bessel functions about their zeros up to 256, in integer arithmetic.

J_0 and Y_0 are continued downwards from Hankel's series at 260 by their differential equation, x
y'' + y' + x y = 0, and J_1 = -J_0', Y_1 = -Y_0'. About a zero z, with v = x - z, J_n(x) / v has no
zero near it, and

    Y_0(x) = (2/pi) log(x/z) J_0(x) + v G(v)
    Y_1(x) = (2/pi) (log(x/z) J_1(x) + v / (x z)) + v G(v)

where G has no singularity (NIST's Digital Library of Mathematical Functions, 10.8 and 10.17,
https://dlmf.nist.gov/10.8), so that its coefficients fall like those of J.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import NamedTuple

from torch import Tensor

from mcf.elementary import bessel, fixed
from mcf.elementary.tables import _rows, _table

# The number of zeros, the last beyond 256; of floats per zero; of coefficients about each.
ZEROS = 82
PARTS = 9
DEGREES = 64
# Correct bits, and all bits: with steps of up to pi, 280 are lost to rounding.
_WANTED = 768
_BITS = 1088
_ONE = 1 << _BITS
_START = 260


class _State(NamedTuple):
    """A point, and a function's value and derivative there, in units of 2**-_BITS."""

    at: int
    value: int
    slope: int


def _coefficients(state: _State, count: int) -> list[int]:
    """Return the coefficients of a solution of order 0, in powers of x - at."""
    inverse = (_ONE << _BITS) // state.at
    a = [state.value, state.slope]
    for k in range(count - 2):
        last = a[k - 1] if k else 0
        rest = ((k + 1) ** 2 * a[k + 1] + last) * inverse >> _BITS
        a.append(-(rest + a[k]) // ((k + 1) * (k + 2)))
    return a


def _evaluated(a: list[int], t: int) -> tuple[int, int]:
    """Return value and derivative of a polynomial."""
    value = slope = 0
    for c in reversed(a):
        slope = value + (slope * t >> _BITS)
        value = c + (value * t >> _BITS)
    return value, slope


def _moved(state: _State, to: int) -> _State:
    """Move to another point, by steps of at most a third of the distance to 0."""
    while state.at != to:
        step = max(to - state.at, -state.at // 3)
        # Count terms until both the distance to 0 and 1/k! make them negligible.
        count, left = int(_WANTED / math.log2(state.at / -step)), float(_WANTED)
        for k in range(1, count + 1):
            left -= math.log2(k * _ONE / -step)
        while left > 0:
            count += 1
            left -= math.log2(count * _ONE / -step)
        value, slope = _evaluated(_coefficients(state, count + 4), step)
        state = _State(state.at + step, value, slope)
    return state


@functools.cache
def _starts() -> tuple[_State, _State]:
    """Return J_0 and Y_0 at _START, to about 740 bits."""
    sine, cosine = fixed.sin_cos(Fraction(_START))
    root = fixed.root(fixed.pi() * _START)
    found: list[list[int]] = []
    for order in (0, 1):
        p = q = Fraction(0)
        for k in range(0, 500, 2):
            p += hankel(order, k) / _START**k
            q += hankel(order, k + 1) / _START ** (k + 1)
        found.append([x.numerator * fixed.ONE // x.denominator for x in (p, q)])
    (p_0, q_0), (p_1, q_1) = found
    plus, minus = sine + cosine, sine - cosine

    def over(x: int) -> int:
        return fixed.quotient(x >> fixed.BITS, root) >> (fixed.BITS - _BITS)

    j, dj = over(p_0 * plus - q_0 * minus), over(p_1 * minus + q_1 * plus)
    y, dy = over(p_0 * minus + q_0 * plus), over(q_1 * minus - p_1 * plus)
    at = _START << _BITS
    return _State(at, j, -dj), _State(at, y, -dy)


def hankel(order: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in Hankel's P_n (even k) and Q_n (odd k), with signs."""
    return bessel.hankel(order, k) * (-1 if (k // 2 + k) % 2 else 1)


def _at_zero(state: _State, order: int, guess: int) -> _State:
    """Return the state at a zero of a function or its derivative near a guess, by Newton steps."""
    state = _moved(state, guess)
    a = _coefficients(state, 260 if guess < 20 * _ONE else 120)
    b = [(k + 1) * c for k, c in enumerate(a[1:])] if order else a
    t, near = 0.0, [c / _ONE for c in b[:40]]
    for _ in range(5):
        value = slope = 0.0
        for x in reversed(near):
            slope = value + slope * t
            value = x + value * t
        t -= value / slope
    at = int(t * 2.0**60) << (_BITS - 60)
    for _ in range(5):
        value, slope = _evaluated(b, at)
        at -= (value << _BITS) // slope
    return _State(guess + at, *_evaluated(a, at))


class About(NamedTuple):
    """A zero, and coefficients about it in units of 2**-_BITS.

    Attributes:
        zero: the zero in the same units; 0 for the expansion about 0.
        first: coefficients of J_n.
        second: coefficients of Y_n; empty about zeros of J_n.
    """

    zero: int
    first: list[int]
    second: list[int]


@functools.cache
def about(kind: str, order: int) -> list[About]:
    """Return expansions about zeros of J_n (or Y_n), ascending, with 0 first for J_n."""
    j, y = _starts()
    pi = fixed.pi() >> (fixed.BITS - _BITS)
    # The first terms of McMahon's expansion.
    shift = {("j", 0): 1, ("j", 1): -1, ("y", 0): 3, ("y", 1): 1}[kind, order]
    guess = pi * ZEROS - pi * shift // 4
    found = []
    for _ in range(ZEROS):
        if kind == "j":
            j = _at_zero(j, order, guess)
            zero, states = j.at, [j]
        else:
            y = _at_zero(y, order, guess)
            j = _moved(j, y.at)
            zero, states = y.at, [j, y]
        rows: list[list[int]] = [[], []]
        for k, state in enumerate(states):
            a = _coefficients(state, DEGREES + 3)
            rows[k] = [-(i + 1) * c for i, c in enumerate(a[1:])] if order else a
        found.append(About(zero, *rows))
        guess = zero - pi
    if kind == "j":
        found.append(About(0, _power_series(order), []))
    return found[::-1]


def _power_series(order: int) -> list[int]:
    """Return the coefficients of J_n at 0."""
    a = [0] * (DEGREES + 2)
    for k in range(DEGREES // 2 + 1):
        top = (-1) ** k * Fraction(1, math.factorial(k) * math.factorial(k + order))
        a[2 * k + order] = int(top * _ONE) >> (2 * k + order)
    return a


def _regular(order: int, row: About) -> list[int]:
    """Return the coefficients of v G(v)."""
    z, rest = row.zero, list(row.second[: DEGREES + 1])
    log, power = [0], _ONE
    for k in range(1, DEGREES + 1):
        power = -(power << _BITS) // z
        log.append(-power // k)
    two_over_pi = fixed.quotient(2 * fixed.ONE, fixed.pi()) >> (fixed.BITS - _BITS)
    inverse, side = (_ONE << _BITS) // z, _ONE
    for k in range(DEGREES + 1):
        total = sum(x * y for x, y in zip(log[: k + 1], row.first[k::-1], strict=True)) >> _BITS
        if order:
            # Add the series of 1/z - 1/x.
            side = -(side * inverse >> _BITS) if k else -inverse
            total += side + inverse if k == 0 else side
        rest[k] -= total * two_over_pi >> _BITS
    return rest


def _table_of(rows: list[list[int]]) -> Tensor:
    return _rows([(c, _ONE) for row in rows for c in row[:DEGREES]])


def _first_series(order: int) -> Tensor:
    """Return coefficients of J_n(x) / v about zeros, after those about 0."""
    rows = [row.first[1:] for row in about("j", order)]
    if order == 0:
        rows[0] = about("j", 0)[0].first
    return _table_of(rows)


def _zeros(kind: str, order: int) -> Tensor:
    return _rows([(row.zero, _ONE) for row in about(kind, order)], PARTS)


def _inverses(order: int) -> Tensor:
    return _rows([(_ONE, row.zero) for row in about("y", order)])


@_table
def j0_series() -> Tensor:
    """Return coefficients of J_0(x) / v about its zeros, after those of J_0(x) about 0."""
    return _first_series(0)


@_table
def j1_series() -> Tensor:
    """Return coefficients of J_1(x) / v about 0 and its zeros."""
    return _first_series(1)


@_table
def y0_series() -> Tensor:
    """Return coefficients of G about the zeros of Y_0."""
    return _table_of([_regular(0, row)[1:] for row in about("y", 0)])


@_table
def y1_series() -> Tensor:
    """Return coefficients of G about the zeros of Y_1."""
    return _table_of([_regular(1, row)[1:] for row in about("y", 1)])


@_table
def y0_first() -> Tensor:
    """Return coefficients of J_0 about the zeros of Y_0."""
    return _table_of([row.first for row in about("y", 0)])


@_table
def y1_first() -> Tensor:
    """Return coefficients of J_1 about the zeros of Y_1."""
    return _table_of([row.first for row in about("y", 1)])


@_table
def j0_zeros() -> Tensor:
    """Return 0 and the zeros of J_0, as 9 floats each."""
    return _zeros("j", 0)


@_table
def j1_zeros() -> Tensor:
    """Return 0 and the positive zeros of J_1, as 9 floats each."""
    return _zeros("j", 1)


@_table
def y0_zeros() -> Tensor:
    """Return the zeros of Y_0, as 9 floats each."""
    return _zeros("y", 0)


@_table
def y1_zeros() -> Tensor:
    """Return the zeros of Y_1, as 9 floats each."""
    return _zeros("y", 1)


@_table
def y0_inverses() -> Tensor:
    """Return 1/z for the zeros z of Y_0."""
    return _inverses(0)


@_table
def y1_inverses() -> Tensor:
    """Return 1/z for the zeros z of Y_1."""
    return _inverses(1)
