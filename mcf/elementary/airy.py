"""Airy's function Ai and its derivative: about zeros down to -64, at nodes from 1 on, asymptotic.

With zeta = 2/3 |x|^(3/2), x = s^2 from 1 on is exp(-zeta) times a series of exp(zeta) Ai(s^2) at
the nearest of 112 nodes in s; between -64 and 1 the nearest zero z is known to as many bits as x
may agree with it, and the series is of Ai(x) / (x - z), or about points where no zero is near. From
-64 downwards

    sqrt(2 pi s) Ai(-s^2) = P (sin zeta + cos zeta) + Q (sin zeta - cos zeta)
    sqrt(2 pi / s) Ai'(-s^2) = P' (sin zeta - cos zeta) - Q' (sin zeta + cos zeta)

P and Q the series in 1/zeta (NIST's Digital Library of Mathematical Functions, 9.7,
https://dlmf.nist.gov/9.7).

The tables are computed in integers: w(a) = Ai(-a) is continued downwards from its asymptotic series
at 64 by w'' = -a w. For x = s^2 >= 1 the functions F(s) = exp(2 s^3 / 3) Ai(s^2) and G(s) =
exp(2 s^3 / 3) Ai'(s^2) are entire, F' = 2 s^2 F + 2 s G and G' = 2 s^2 G + 2 s^3 F. w is continued
upwards from -144 to their nodes, a direction in which errors shrink (DLMF 9.2).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import angles, bessel_jy, exponential, fixed, series, tables
from mcf.elementary import working as ex
from mcf.elementary.angles import sin_cos_error
from mcf.elementary.bessel_jy import PARTS
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import exp_error
from mcf.elementary.format import computing_in, working
from mcf.elementary.operator import function
from mcf.elementary.tables import (
    Components,
    Maker,
    _rows,
    constant,
    entries,
    register_tables,
    table,
    table_of,
)
from mcf.kernels.formats import FP64, Format

# The number of zeros kept per function (Ai's last is beyond 64), and of coefficients about each.
ZEROS = 109
DEGREES = 70
_EDGE = 64
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
OCTAVES, LAST, HIGH_DEGREES = 4, 12, 40
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


@functools.cache
def _start() -> bessel_jy.State:
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
    return bessel_jy.State(_EDGE << _BITS, value, -2 * over(dp * minus - dq * plus))


def _coefficients(state: bessel_jy.State, count: int) -> list[int]:
    """Return the coefficients of w in powers of a - at."""
    c = [state.value, state.slope]
    for k in range(count - 2):
        last = c[k - 1] if k else 0
        c.append(-((state.at * c[k] >> _BITS) + last) // ((k + 1) * (k + 2)))
    return c


def _moved(state: bessel_jy.State, to: int) -> bessel_jy.State:
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
        value, slope = bessel_jy.evaluated(_coefficients(state, count), step)
        state = bessel_jy.State(state.at + step, value, slope)
    return state


def _at_zero(state: bessel_jy.State, m: int, guess: int) -> bessel_jy.State:
    """Return the state at a zero of the function or its derivative, by Newton's method."""
    state = _moved(state, guess)
    return bessel_jy.newton(state, _coefficients(state, 130), m)


class About(NamedTuple):
    """A zero of Ai(-a) or Ai'(-a), or another number, in units of 2**-_BITS.

    Attributes:
        at: the number.
        row: coefficients of the function about it; about a zero, of the function over a - at.
    """

    at: int
    row: list[int]


def _about(state: bessel_jy.State, m: int, zero: bool) -> About:
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


def _high_start() -> bessel_jy.State:
    """Return w and w' at -144, times exp(zeta), where zeta is 1152."""
    found, root = [], fixed.root(fixed.pi())
    for m in (0, 1):
        total = _summed(m, Fraction(1152), 0, 1, -1)
        found.append(fixed.quotient(total, 2 * root) >> (fixed.BITS - _BITS))
    root = math.isqrt(LAST << (2 * _BITS))
    return bessel_jy.State(
        -(LAST**2) << _BITS, (found[0] << _BITS) // root, found[1] * root >> _BITS
    )


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
def _high_rows() -> list[tuple[list[int], list[int]]]:
    """Return coefficients of F and G at each node, ascending."""
    found = []
    at, state = Fraction(LAST), _high_start()
    for node, half in reversed(_nodes(0).points()):
        if node <= LAST:
            state = _moved(state, int(-(node**2) * _ONE))
            decay = _decay(Fraction(2, 3) * (at**3 - node**3))
            f, g = (x * decay >> _BITS for x in (state.value, state.slope))
            at, state = node, bessel_jy.State(state.at, f, g)
            found.append(_continued(f, -g, node, half, HIGH_DEGREES))
    return found[::-1]


def _tables(m: int, name: str) -> dict[str, Maker]:
    """Return the tables of Ai or Ai': series, points as 9 floats each, and series at nodes."""
    return {
        # The function of -a about the points, and divided by a - z about zeros.
        f"{name}_series": lambda: table_of((it.row for it in about(m)), _BITS),
        f"{name}_points": lambda: _rows([(r.at, _ONE) for r in about(m)], PARTS),
        # F or G.
        f"{name}_scaled": lambda: table_of((pair[m] for pair in _high_rows()), _BITS),
    }


register_tables(**_tables(0, "airy_ai"), **_tables(1, "airy_ai_1"))


FAR = 64.0
NAMES = ("airy_ai", "airy_ai_1")
# Bits by which 1 / zeta^2 is below 1 from there on, and Q and Q' below P and P'.
BITS, SMALLER = 16.0, 11.0
# Offsets added to zeta / pi that give the number of a zero.
SHIFT = (0.75, 1.25)


class Limits(NamedTuple):
    """Limits that depend on the working format.

    Attributes:
        steps: a root in [1, 2) is split at a multiple m of 3 2**-steps, whose 9 m^3 is a number of
            the format.
        zero: from there on Ai is 0 in every format.
        lost: below the negative of it zeta has no correct bits beyond its whole turns.
    """

    steps: int
    zero: float
    lost: float


def limits() -> Limits:
    """Return the limits of the working format."""
    if working().format is FP64:
        return Limits(17, 128.0, 2.0**142)
    return Limits(7, 32.0, 2.0**65)


class Phase(NamedTuple):
    """The root of a number a = s^2, and zeta = 2/3 s^3 as a sum of floats.

    The first two floats of zeta are an exact one and the leading part of the rest. The rest is
    about a thousandth of zeta (2^-14 in float64), and only it has errors.
    """

    root: Components
    zeta: Components


def _root(x: Tensor) -> Tensor:
    """Return the correctly rounded root of a float, which selects an interval."""
    return ex.sqrt((x,))[0]


def phase(a: Components, terms: int) -> Phase:
    """Return root and zeta of a >= 1.

    With a whole m the root is s = h + d, h = 3 m 2^-j and d = (a - h^2) / (s + h), and zeta is 18
    m^3 2^-3j + 2 d (h s + d^2 / 3), whose first term is exact.
    """
    k = ex.exponent(a[0]) >> 1
    a, j = ex.scale_all(a, -2 * k), limits().steps
    m = (_root(a[0]) * (2.0**j / 3)).round()
    h = m * (3 * 2.0**-j)
    s = ex.sqrt(ex.head(a, terms))
    d = ex.div(ex.beside(a, h * h, terms), ex.add(s, h))
    third = constant(Fraction(1, 3), terms, h.device)
    rest = ex.mul(d, ex.add(ex.mul(s, h), ex.mul(ex.mul(d, d), third)))
    first, second = ex.two_sum(m * m * m * (18 * 2.0 ** (-3 * j)), 2 * rest[0])
    zeta = (first, second, *series.scaled(rest[1:], 2.0))
    return Phase(ex.scale_all(s, k), ex.scale_all(zeta, 3 * k))


def _nodes(m: int) -> series.Nodes:
    return series.Nodes(f"{NAMES[m]}_scaled", OCTAVES, HIGH_DEGREES, 0, steep=HIGH_DEGREES)


def _high(m: int, a: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of Ai(a) or Ai'(a) for a >= 1."""
    root, zeta = phase(a, terms)
    value = _nodes(m).at(root, terms)
    decay, k = exponential.scaled_exp(ex.minus(zeta), terms)
    return ex.mul(value, decay), k


def fall(k: int) -> float:
    """Return a lower bound of the bits by which the term of degree k is below the first."""
    return max(0.0, 0.8 * (math.factorial(k + 1).bit_length() - 1) - 0.5625 * k - 0.5)


def row_of(m: int, a: Tensor) -> Tensor:
    """Return the row of the tables for a float -1 <= a <= 64, as a float."""
    low = LOW[m]
    # Rows of zeros among the first rows.
    zeros = sum(point is None for _, point in low)
    up = a.clamp(min=0.0)
    number = (up * _root(up) * (2 / (3 * math.pi)) + SHIFT[m]).floor()
    first = torch.zeros_like(a)
    for edge, _ in low[1:]:
        first = first + torch.where(a >= edge, 1.0, 0.0)
    row = torch.where(number > zeros, number + (len(low) - zeros - 1), first)
    return row.clamp(0, ZEROS + len(low) - zeros - 1)


def _near(
    m: int, a: Components, fmt: Format, given: int, terms: int
) -> tuple[Components, Tensor]:  # fmt: skip
    """Return components and an exponent of Ai(-a) or Ai'(-a) for -1 <= a <= 64."""
    place = row_of(m, a[0])
    row = place.to(torch.int64)
    points = table(f"{NAMES[m]}_points", row.device)
    parts = bessel_jy.parts_needed(fmt, given, terms)
    v = ex.collected((*a, *(-entries(points[k], row) for k in range(parts))), terms)
    value = bessel_jy._series(f"{NAMES[m]}_series", row, v, fall, DEGREES)
    one = ex.head((torch.ones_like(a[0]),), terms)
    for at, (_, point) in enumerate(LOW[m]):
        if point is not None:
            v = ex.select(place == at, one, v)
    # Scale first, since the product would lose the last components of a tiny number.
    faint = working().faint
    k = torch.where(v[0].abs() < 2.0**-faint, faint, 0)
    return ex.mul(value, ex.scale_all(v, k)), -k


def coefficients(m: int, odd: int) -> Callable[[int], Fraction]:
    """Return the coefficients of P or Q in 1 / zeta^2, divided by the first."""
    first = asymptotic(m, odd)
    return lambda k: (-1) ** k * asymptotic(m, 2 * k + odd) / first


def _far(m: int, a: Components, terms: int) -> Components:
    """Return Ai(-a) or Ai'(-a) for a >= 64."""
    root, zeta = phase(a, terms)
    # Only the absolute error of the angle matters, so no bits are kept for cancellation.
    sine, cosine = angles.sine_and_cosine(zeta, FP64, 0, terms)
    plus, difference = ex.add(cosine, sine), ex.add(sine, ex.minus(cosine))
    one, device = ex.head((torch.ones_like(a[0]),), terms), a[0].device
    inverse = ex.div(one, ex.collected(zeta, terms))
    square = ex.mul(inverse, inverse)
    p = series.polynomial(square, BITS, coefficients(m, 0))
    tail = series.polynomial(square, BITS, coefficients(m, 1), SMALLER)
    first = asymptotic(m, 1) * (1 - 2 * m)
    q_series = ex.mul(ex.mul(inverse, constant(first, terms, device)), tail)
    along, across = (difference, plus) if m else (plus, difference)
    value = ex.add(ex.mul(p, along), ex.mul(q_series, across))
    two_pi = 2 * fixed.to_fraction(fixed.pi())
    if m:
        return ex.mul(value, ex.sqrt(ex.mul(root, constant(1 / two_pi, terms, device))))
    return ex.div(value, ex.sqrt(ex.mul(root, constant(two_pi, terms, device))))


def _airy(x: Components, fmt: Format, terms: int, m: int) -> Components:
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    high = (y[0] >= 1.0) & (y[0] < limits().zero)
    far = (y[0] <= -FAR) & (y[0] >= -limits().lost)
    near = (y[0] < 1.0) & (y[0] > -FAR)
    value = ex.head((torch.zeros_like(y[0]),), w)
    k = torch.zeros_like(y[0], dtype=torch.int64)
    if bool(near.any()):
        found, e = _near(m, ex.sanitized(ex.minus(y), near), fmt, terms, w)
        value, k = ex.select(near, found, value), torch.where(near, e, k)
    if bool(high.any()):
        found, e = _high(m, ex.sanitized(y, high), w)
        value, k = ex.select(high, found, value), torch.where(high, e, k)
    if bool(far.any()):
        found = _far(m, ex.sanitized(ex.minus(y), far, FAR), w)
        value = ex.select(far, found, value)
    out = ex.leave(value, fmt, terms, k)
    # NaN at infinities, as in PyTorch. For inconsistent components such as (22.5, inf), the sign
    # and low components would depend on the executor.
    none = out[0].isnan()
    end = torch.where(y[0].isfinite() & ~none, 0.0, math.nan)
    return ex.special(~(near | high | far) | none, end.to(fmt.dtype), out)


def phase_error(e: Steps) -> float:
    """Return the relative error of zeta: only its inexact part, at most 3d/s, contributes."""
    with computing_in(e.fmt):
        steps = limits().steps
    share = 3 * 1.5 * 2.0**-steps * 1.01
    d = e.beside() + e.sqrt() / 2 + e.add() + e.div()
    # A third of d^2 is at most a thousandth of the other term.
    both = e.sqrt() + e.mul() + 2.0**-10 * (2 * d + 2 * e.mul() + e.constant()) + e.add()
    return share * (d + both + e.mul())


def _intervals(e: Steps, m: int) -> list[bessel_jy.Interval]:
    """Return the intervals about zeros, as `airy.row_of` selects them."""
    zeros = tables.table(f"{NAMES[m]}_points", torch.device("cpu"))[0].tolist()
    step = 2.0**-10
    points = torch.arange(-(1 << 10), (64 << 10) + 1, dtype=torch.float64, device="cpu") * step
    # Count the points in each row; rows ascend.
    counts = torch.bincount(row_of(m, points).to(torch.int64), minlength=len(zeros))
    ends = (counts.cumsum(0) * step - 1).tolist()
    # Extend to the next point on either side, which covers the error of the row's float.
    return [
        bessel_jy.Interval(zero, max(-1.0, low - step), min(64.0, high) + step)
        for zero, low, high in zip(zeros, [-1.0, *ends], ends, strict=False)
    ]


def _far_error(e: Steps, m: int) -> float:
    """Return the error of P times one side plus Q times the other, over a root.

    It is relative to the modulus. The errors of the sides, sums of sine and cosine, are relative to
    sqrt(2).
    """
    square = 2 * (e.div() + phase_error(e) + e.collect()) + e.mul()
    limit = 2.0**-BITS
    p = e.polynomial(limit, BITS, coefficients(m, 0), 0.0, square)
    q = e.polynomial(limit, BITS, coefficients(m, 1), SMALLER, square)
    # The digits of the angle are truncated at 2^-15 u^n.
    side = max(sin_cos_error(e)) + e.add() + e.constant()
    share: float = 2.0**-SMALLER
    value = p + side + e.mul() + share * (q + side + 2 * e.mul() + square + e.constant()) + e.add()
    root = e.sqrt() + (e.sqrt() + e.mul() + e.constant()) / 2 + max(e.div(), e.mul())
    return 1.01 * value + root


def airy_error(e: Steps, m: int) -> tuple[float, float]:
    """Return the error bounds of the derivative of order m.

    From 1 on it is a table's series in sqrt(x) times exp(-zeta); about a zero z, x - z times a
    series. Below -64, zeta is 2/3 of |x|^(3/2), which is at least 512.
    """
    with computing_in(e.fmt):
        zeta: float = 2 / 3 * limits().zero ** 1.5
    high = e.at_table(_nodes(m), e.sqrt()) + exp_error(e, zeta * phase_error(e)) + e.mul()
    found = bessel_jy.series_error(e, f"{NAMES[m]}_series", _intervals(e, m), fall, DEGREES)
    near = max(s.error / s.least for s in found) + bessel_jy.offset_error(e) + e.mul()
    least: float = FAR**1.5
    return max(high, near), _far_error(e, m) / least + 2 / 3 * 1.01 * phase_error(e)


# Coefficients of the series at nodes fall overall but not monotonically, so `absorb` cannot sum
# them.


@function(
    "x",
    undifferentiated=("airy_ai",),
    bound=lambda e: airy_error(e, 0),
    derivative=lambda x, of: of.airy_ai_1(x),
    slope=("airy_ai_1",),
)
def airy_ai(x: Components, fmt: Format, terms: int) -> Components:
    """Return Airy's function Ai(x); NaN at infinities.

    The error is relative to the result above -64, also next to zeros. Below, it is relative to the
    effect of a relative change of x: |x|^(3/2) times the modulus sqrt(Ai(x)^2 + Bi(x)^2), about 1 /
    sqrt(pi sqrt(|x|)). Below -2^142 (-2^65 in float32 registers), where the phase is unknown, the
    result is 0.
    """
    return _airy(x, fmt, terms, 0)


@function(
    "x",
    auxiliary=True,
    bound=lambda e: airy_error(e, 1),
    derivative=lambda x, of: x * of.airy_ai(x),
)
def airy_ai_1(x: Components, fmt: Format, terms: int) -> Components:
    """Return the derivative Ai'(x); NaN at infinities.

    The error is relative to the result above -64, also next to zeros. Below, it is relative to
    |x|^(3/2) times the modulus sqrt(Ai'(x)^2 + Bi'(x)^2), about sqrt(sqrt(|x|) / pi). Below -2^142
    (-2^65 in float32 registers) the result is 0.
    """
    return _airy(x, fmt, terms, 1)
