"""Bessel functions J and Y of orders 0 and 1, and the spherical j_0.

J and Y are series about zeros up to 256, then Hankel's; j_0(x) is sin(x) / x.

Up to 256 the zero z nearest to x is stored to as many bits as x may share with it, x - z is an
exact sum rounded once, and the series are of J_n(x) / (x - z) and similar. So
results have small relative errors also next to zeros. Beyond,

    sqrt(pi x) J_0(x) = P_0 (cos x + sin x) - Q_0 (sin x - cos x)
    sqrt(pi x) Y_0(x) = P_0 (sin x - cos x) + Q_0 (cos x + sin x)

For order 1, sin x - cos x and -(cos x + sin x) replace cos x + sin x and sin x - cos x. P and Q are
Hankel's series (NIST's Digital Library of Mathematical Functions, 10.17,
https://dlmf.nist.gov/10.17).

The tables are computed in integers. J_0 and Y_0 are continued downwards from Hankel's series at 260
by their differential equation, x y'' + y' + x y = 0, and J_1 = -J_0', Y_1 = -Y_0'. About a zero z,
with v = x - z, J_n(x) / v has no zero near it, and

    Y_0(x) = (2/pi) log(x/z) J_0(x) + v G(v)
    Y_1(x) = (2/pi) (log(x/z) J_1(x) + v / (x z)) + v G(v)

where G has no singularity (NIST's Digital Library of Mathematical Functions, 10.8 and 10.17,
https://dlmf.nist.gov/10.8), so that its coefficients fall like those of J.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.elementary import angles, bessel, bessel_series, fixed, logarithm, series, tables
from mcf.elementary import working as ex
from mcf.elementary.angles import sin_cos_error
from mcf.elementary.declarations import COMPOSED, OSCILLATING, Composed
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import working
from mcf.elementary.gamma import underflow
from mcf.elementary.logarithm import log_error
from mcf.elementary.operator import function
from mcf.elementary.tables import (
    Components,
    Maker,
    _rows,
    constant,
    entries,
    lookup,
    register_tables,
    table,
    table_of,
)
from mcf.kernels.formats import FP32, FP64, Format

# The number of zeros, the last beyond 256; of floats per zero; of coefficients about each.
ZEROS = 82
PARTS = 9
DEGREES = 64
# Correct bits, and all bits: with steps of up to pi, 280 are lost to rounding.
_WANTED = 768
_BITS = 1088
_ONE = 1 << _BITS
_START = 260


class State(NamedTuple):
    """A point, and a solution's value and derivative there, in units of 2**-_BITS."""

    at: int
    value: int
    slope: int


def _coefficients(state: State, count: int) -> list[int]:
    """Return the coefficients of a solution of order 0, in powers of x - at."""
    inverse = (_ONE << _BITS) // state.at
    a = [state.value, state.slope]
    for k in range(count - 2):
        last = a[k - 1] if k else 0
        rest = ((k + 1) ** 2 * a[k + 1] + last) * inverse >> _BITS
        a.append(-(rest + a[k]) // ((k + 1) * (k + 2)))
    return a


def evaluated(a: list[int], t: int) -> tuple[int, int]:
    """Return value and derivative of a polynomial."""
    value = slope = 0
    for c in reversed(a):
        slope = value + (slope * t >> _BITS)
        value = c + (value * t >> _BITS)
    return value, slope


def _moved(state: State, to: int) -> State:
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
        value, slope = evaluated(_coefficients(state, count + 4), step)
        state = State(state.at + step, value, slope)
    return state


@functools.cache
def _starts() -> tuple[State, State]:
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
    return State(at, j, -dj), State(at, y, -dy)


def hankel(order: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in Hankel's P_n (even k) and Q_n (odd k), with signs."""
    return bessel_series.hankel(order, k) * (-1 if (k // 2 + k) % 2 else 1)


def _at_zero(state: State, order: int, guess: int) -> State:
    """Return the state at a zero of a function or its derivative near a guess, by Newton steps."""
    state = _moved(state, guess)
    a = _coefficients(state, 260 if guess < 20 * _ONE else 120)
    return newton(state, a, order)


def newton(state: State, a: list[int], order: int) -> State:
    """Return the state at a zero of a function or its derivative, from a state near it.

    Args:
        state: the state.
        a: the coefficients of the function about it.
        order: 0 for a zero of the function, 1 for one of its derivative.
    """
    b = [(k + 1) * c for k, c in enumerate(a[1:])] if order else a
    at, step = 0, _ONE
    # The next error is about the square of this one.
    while abs(step) >> (_BITS // 2 - 16):
        value, slope = evaluated(b, at)
        step = (value << _BITS) // slope
        at -= step
    return State(state.at + at, *evaluated(a, at))


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


def _first_series(order: int) -> Tensor:
    """Return coefficients of J_n(x) / v about zeros, after those about 0."""
    rows = [row.first[1:] for row in about("j", order)]
    if order == 0:
        rows[0] = about("j", 0)[0].first
    return table_of(rows, _BITS, DEGREES)


def _zeros(kind: str, order: int) -> Tensor:
    return _rows([(row.zero, _ONE) for row in about(kind, order)], PARTS)


def _tables(order: int) -> dict[str, Maker]:
    """Return the tables of an order: series, zeros as 9 floats each, and inverses of zeros."""
    return {
        # J_n(x) / v about its zeros, after J_0(x) or J_1(x) / v about 0.
        f"j{order}_series": lambda: _first_series(order),
        # G and J_n about the zeros of Y_n.
        f"y{order}_series": lambda: table_of(
            (_regular(order, r)[1:] for r in about("y", order)), _BITS, DEGREES
        ),
        f"y{order}_first": lambda: table_of(
            (row.first for row in about("y", order)), _BITS, DEGREES
        ),
        f"j{order}_zeros": lambda: _zeros("j", order),
        f"y{order}_zeros": lambda: _zeros("y", order),
        f"y{order}_inverses": lambda: _rows([(_ONE, row.zero) for row in about("y", order)]),
    }


register_tables(**_tables(0), **_tables(1))


# A function from a degree to the bits by which its term is below the first.
Fall = Callable[[int], float]
FAR = bessel.FAR
# -log2 of 1/x^2 from 256 on.
BITS = 16.0
# Rows of the tables: the zero is in [row + LEFT, row + LEFT + 1] pi, except in the first row.
_LEFT = {("j", 0): 0.75, ("j", 1): 0.34375, ("y", 0): 0.25, ("y", 1): -0.25}


def _fall(k: int) -> float:
    """Return a lower bound of the bits by which the term of degree k is below the first."""
    return max(0.0, math.factorial(k + 1).bit_length() - 3 - 0.9375 * k)


def degree_needed(
    terms: int, fall: Fall = _fall, degrees: int = DEGREES
) -> int:  # fmt: skip
    """Return the degree of the tables' series that `terms` components need."""
    wanted = working().format.p * terms + 8
    found = (k for k in range(degrees) if fall(k) >= wanted)
    return next(found, degrees - 1)


def components_needed(terms: int, k: int, fall: Fall = _fall) -> int:
    """Return the components in which the coefficient of degree k is added."""
    p = working().format.p
    return min(terms, max(1, -int(-(p * terms + 8 - fall(k)) // p)))


def parts_needed(fmt: Format, given: int, terms: int) -> int:
    """Return the floats needed of a zero, since x may differ in its last bits only."""
    p = working().format.p
    return min(PARTS, -(-(fmt.p * given + p * terms + 24) // p))


def _series(
    name: str,
    row: Tensor,
    v: Components,
    fall: Fall = _fall,
    degrees: int = DEGREES,
) -> Components:
    """Evaluate a table's series, whose coefficients fall with v as `fall` says."""
    terms = len(v)
    start, degree = row * degrees, degree_needed(terms, fall, degrees)
    return series.at_node(
        v,
        degree,
        lambda k, count: lookup(name, start + k, count),
        lambda k: components_needed(terms, k, fall),
        None,
    )


def _nearest(kind: str, order: int, a: Components, fmt: Format, given: int, terms: int) -> tuple[
    Tensor, Components
]:  # fmt: skip
    """Return the row of the zero near a < 256, and a minus the zero."""
    last = ZEROS - (kind == "y")
    row = (a[0] * (1 / math.pi) + _LEFT[kind, order]).floor().clamp(0, last).to(torch.int64)
    zeros = table(f"{kind}{order}_zeros", row.device)
    parts = parts_needed(fmt, given, terms)
    return row, ex.collected((*a, *(-entries(zeros[k], row) for k in range(parts))), terms)


def _hankel(order: int, odd: int) -> Callable[[int], Fraction]:
    """Return the coefficients of P or Q in 1/x^2, divided by the first."""
    first = hankel(order, odd)
    return lambda k: hankel(order, 2 * k + odd) / first


def _far(
    kind: str, order: int, a: Components, fmt: Format, given: int, terms: int
) -> tuple[Components, Tensor]:
    """Return components and an exponent of J_n(a) or Y_n(a) for a >= 256."""
    sine, cosine = angles.sine_and_cosine(a, fmt, given, terms)
    plus, difference = ex.add(cosine, sine), ex.add(sine, ex.minus(cosine))
    # Each order lags the previous one by a quarter turn, and Y lags J.
    sides = (plus, difference, ex.minus(plus), ex.minus(difference))
    along = order + (kind == "y")
    large, raised = a[0] > working().vast, working().raised
    one = ex.head((torch.ones_like(a[0]),), terms)
    near = ex.sanitized(ex.head(a, terms), ~large, FAR)
    inverse = ex.sanitized(ex.div(one, near), ~large, 0.0)
    square = ex.mul(inverse, inverse)
    p = series.polynomial(square, BITS, _hankel(order, 0))
    tail = series.polynomial(square, BITS, _hankel(order, 1), 9.0)
    first = series.scaled(inverse, 1 / 8)
    if order == 0:
        first = ex.minus(first)
    else:
        first = ex.mul(first, ex.head((torch.full_like(a[0], 3.0),), terms))
    q_series = ex.mul(first, tail)
    value = ex.add(ex.mul(p, sides[along]), ex.minus(ex.mul(q_series, sides[along + 1])))
    scaled = ex.scale_all(ex.head(a, terms), torch.where(large, -raised, 0))
    pi = constant(fixed.to_fraction(fixed.pi()), terms, a[0].device)
    return ex.div(value, ex.sqrt(ex.mul(scaled, pi))), torch.where(large, -raised // 2, 0)


def _first(x: Components, fmt: Format, terms: int, order: int) -> Components:
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign = ex.magnitude(y)
    good = (a[0] > 0) & a[0].isfinite()
    a = ex.sanitized(a, good)
    far = a[0] >= FAR
    row, v = _nearest("j", order, ex.sanitized(a, ~far), fmt, terms, w)
    value = _series(f"j{order}_series", row, v)
    if order == 0:
        v = ex.select(row == 0, ex.head((torch.ones_like(a[0]),), w), v)
    v, k = ex.lifted(v)
    value = ex.mul(value, v)
    beyond, m = _far("j", order, ex.sanitized(a, far, FAR), fmt, terms, w)
    out = ex.leave(ex.select(far, beyond, value), fmt, terms, torch.where(far, m, -k))
    if order:
        out = ex.signed(out, sign.to(fmt.dtype))
    zero = y[0] if order else torch.ones_like(y[0])
    return ex.special(~good, torch.where(y[0] == 0, zero, math.nan).to(fmt.dtype), out)


def _second(x: Components, fmt: Format, terms: int, order: int) -> Components:
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = (y[0] > 0) & y[0].isfinite()
    a = ex.sanitized(y, good)
    one = torch.ones_like(a[0])
    far = a[0] >= FAR
    near = ex.sanitized(a, ~far)
    row, v = _nearest("y", order, near, fmt, terms, w)
    inverse = lookup(f"y{order}_inverses", row, w)
    # log(x / z); next to z it is log(1 + v / z).
    t = ex.mul(v, inverse)
    lift = torch.where(near[0] < working().small, working().raised, 0)
    quotient = ex.mul(ex.scale_all(ex.head(near, w), lift), inverse)
    close = t[0].abs() <= 0.5
    floats = ex.select(close, (one, *t), (*quotient, torch.zeros_like(one)))
    lead = torch.where(close, ex.collected((one, *t), 1)[0], quotient[0])
    log, k = logarithm.scaled_log(floats, lead, w, 0, -lift)
    first = ex.mul(ex.scale_all(log, k), _series(f"y{order}_first", row, v))
    two_over_pi = constant(2 / fixed.to_fraction(fixed.pi()), w, one.device)
    value = ex.add(ex.mul(first, two_over_pi), ex.mul(v, _series(f"y{order}_series", row, v)))
    e = torch.zeros_like(row)
    if order:
        m, e = ex.mantissa(ex.head(near, w))
        value = ex.add(ex.mul(ex.head(near, w), value), ex.mul(t, two_over_pi))
        value, e = ex.div(value, m), -e
    beyond, m_far = _far("y", order, ex.sanitized(a, far, FAR), fmt, terms, w)
    out = ex.leave(ex.select(far, beyond, value), fmt, terms, torch.where(far, m_far, e))
    end = torch.where(y[0] == 0, -math.inf, math.nan)
    return ex.special(~good, end.to(fmt.dtype), out)


_POINTS = 128


class Interval(NamedTuple):
    """An interval about a zero."""

    zero: float
    low: float
    high: float


class SeriesError(NamedTuple):
    """Largest error of a series on one interval, and its least value with the first's sign."""

    error: float
    least: float


def _intervals(e: Steps, kind: str, order: int) -> list[Interval]:
    zeros = tables.table(f"{kind}{order}_zeros", torch.device("cpu"))[0].tolist()
    left = _LEFT[kind, order]
    edges = [max(0.0, (k - left) * math.pi) for k in range(len(zeros) + 1)]
    # Margin for the rounding error of the float that selects a row.
    margin = 2.0**-40 if e.fmt is FP64 else 2.0**-20
    found = []
    for k, zero in enumerate(zeros):
        if edges[k] < FAR:
            high = min(edges[k + 1], FAR)
            found.append(Interval(zero, edges[k] * (1 - margin), high * (1 + margin)))
    return found


def _least(row: list[float], low: float, high: float) -> float:
    """Return a lower bound of a polynomial, from its values at points and its steepest slope."""
    sign, limit = math.copysign(1.0, row[0]), max(-low, high)
    slope = sum(k * abs(c) * limit ** (k - 1) for k, c in enumerate(row) if k)
    step, least = (high - low) / _POINTS, math.inf
    for j in range(_POINTS + 1):
        value, v = 0.0, low + j * step
        for c in reversed(row):
            value = value * v + c
        least = min(least, sign * value)
    return least - slope * step / 2


def series_error(
    e: Steps,
    name: str,
    rows: list[Interval],
    fall: Fall = _fall,
    degrees: int = DEGREES,
) -> list[SeriesError]:
    """Return the errors of a series about each zero."""
    table = tables.table(name, torch.device("cpu"))[0].reshape(-1, degrees)
    degree = degree_needed(e.terms, fall, degrees)
    needed = [components_needed(e.terms, k, fall) for k in range(degree)]
    found = []
    for given, row in zip(table.tolist(), rows, strict=False):
        low, high = row.low - row.zero, row.high - row.zero
        limit = max(-low, high)
        sizes = [abs(c) for c in given]
        error, _ = e.horner(
            [*zip(sizes, needed, strict=False), (sizes[degree], 1)], limit, offset_error(e)
        )
        # Terms beyond the table fall at least by half, too.
        error += 2 * sum(c * limit**k for k, c in enumerate(sizes) if k > degree)
        error += 2 * max(sizes[-1], sizes[-2]) * limit ** len(sizes) + _underflow(e, limit, degree)
        found.append(SeriesError(error, _least(given, low, high)))
    return found


def _underflow(e: Steps, limit: float, degree: int) -> float:
    """Return the underflow error of Horner's rule in float32: 16 smallest numbers per step."""
    if e.fmt is FP64:
        return 0.0
    return 16 * float(FP32.min_subnormal) * sum(limit**k for k in range(degree + 1))


def offset_error(e: Steps) -> float:
    """Return the error of x - z, where z has `bessel_jy.parts_needed` floats."""
    return e.collect() + e.constant()


def _far_error(e: Steps, order: int) -> float:
    """Return the error of P times one side plus Q times the other, over a root.

    It is relative to the modulus. The errors of the sides, sums of sine and cosine, are relative to
    sqrt(2).
    """
    square = 2 * e.div() + e.mul()
    limit = 2.0**-BITS
    p = e.polynomial(limit, BITS, _hankel(order, 0), 0.0, square)
    q = e.polynomial(limit, BITS, _hankel(order, 1), 9.0, square)
    side = max(sin_cos_error(e)) + e.add()
    # |P cos| + |Q sin| is at most the modulus; Q is at most 3/8 of 1/256.
    value = p + side + e.mul() + 3 / 2048 * (q + side + 2 * e.mul() + e.div()) + e.add()
    return 1.01 * value + e.sqrt() + (e.mul() + e.constant()) / 2 + e.div()


def first_error(e: Steps, order: int) -> tuple[float, float]:
    """Return the errors of J_n: (x - z) times a series, and Hankel's."""
    series = series_error(e, f"j{order}_series", _intervals(e, "j", order))
    near = max(s.error / s.least for s in series)
    return near + offset_error(e) + e.mul(), _far_error(e, order)


def second_error(e: Steps, order: int) -> tuple[float, float]:
    """Return the errors of Y_n: log(x/z) times a series plus (x - z) times another; Hankel's."""
    rows, c = _intervals(e, "y", order), 2 / math.pi
    j_n = series_error(e, f"y{order}_first", rows)
    rest = series_error(e, f"y{order}_series", rows)
    t = offset_error(e) + e.constant() + e.mul()
    # t / ((1 + t) log(1 + t)) is at most 1.45 for |t| <= 1/2, and 1 / log(3/2) is 2.47.
    common = log_error(e) + 2.5 * t + 2 * e.mul() + e.constant() + e.add() + offset_error(e)
    worst = 0.0
    for k, (row, j, g) in enumerate(zip(rows, j_n, rest, strict=True)):
        # All terms are divided by x - z. If J_n has passed its zero, the first term changes sign.
        most = math.log(row.low / row.zero) / (row.low - row.zero) if row.low else 1.06
        least = g.least - c * most * max(0.0, -j.least) * (k > 0)
        grown = c * most * j.error / least
        if order == 0 and k == 0:
            # From 0 to 1, where J_0 is above 0.765, relative to the first term; then as for other
            # rows.
            grown = max(grown, j.error / 0.765)
        if order:
            # For order 1 terms are multiplied by x, and x log(x / z) / (x - z) grows with x; 2/(pi
            # z) is added.
            most = row.high * math.log(row.high / row.zero) / (row.high - row.zero)
            grown = c * most * j.error / (row.low * least if k else c / row.zero)
        worst = max(worst, grown + g.error / least)
    more = t + 2 * e.mul() + e.constant() + e.add() + e.div() if order else 0.0
    # Terms of opposite signs increase the error by at most a tenth.
    return 1.1 * (worst + common + more), _far_error(e, order)


def _spherical_weight(x: Any, of: Any) -> Any:
    """Return (j_0(x) - cos(x)) / x^2, by a series for |x| < 1."""
    near = x.abs() < 1
    low, far = torch.where(near, x, 0), torch.where(near, 1, x)
    beyond = (of.spherical_bessel_j0(far) - far.cos()) / far / far
    return torch.where(near, series.spherical_weight(low * low), beyond)


def _spherical_slope(x: Any, of: Any) -> Any:
    """Return -j_1(x); for |x| >= 1 as (cos(x) - j_0(x)) / x, since x^2 may overflow."""
    near = x.abs() < 1
    low, far = torch.where(near, x, 0), torch.where(near, 1, x)
    beyond = (far.cos() - of.spherical_bessel_j0(far)) / far
    return torch.where(near, -(low * series.spherical_weight(low * low)), beyond)


# The second derivative follows from the differential equation.
COMPOSED["spherical_bessel_j0_1"] = Composed(
    _spherical_slope, lambda x, of: 2 * _spherical_weight(x, of) - of.spherical_bessel_j0(x)
)


COMPOSED["j1_over"] = bessel.over_x("j", -1)


def _declare(
    kind: str, order: int, about: str, derivative: Any, slope: Any
) -> Callable[..., Components]:
    compute, error = (_first, first_error) if kind == "j" else (_second, second_error)
    return function(
        "x",
        called=f"{kind}{order}",
        doc=f"""Return the Bessel function {kind.upper()}_{order}(x){about}

    The error is relative to the result up to 256, also next to zeros; beyond, to the modulus
    sqrt(J_{order}(x)^2 + Y_{order}(x)^2), about sqrt(2 / (pi x)).
    """,
        undifferentiated=(f"bessel_{kind}{order}",),
        derivative=derivative,
        slope=slope,
        bound=lambda e: error(e, order),
    )(lambda x, fmt, terms: compute(x, fmt, terms, order))


_AT_ENDS = "; -inf at zeros, NaN below and at infinity."
# Names of the module, where the site's reference looks for them.
j0 = _declare("j", 0, ", even; NaN at infinities.", lambda x, of: -of.j1(x), ("j1",))
j1 = _declare(
    "j", 1, ", odd; NaN at infinities.", lambda x, of: of.j0(x) - of.j1_over(x), OSCILLATING
)
y0 = _declare("y", 0, _AT_ENDS, lambda x, of: -of.y1(x), ("y1",))
y1 = _declare(
    "y",
    1,
    _AT_ENDS,
    lambda x, of: torch.where(x == 0, torch.inf, of.y0(x) - of.y1(x) / x),
    OSCILLATING,
)


@function(
    "x",
    undifferentiated=("spherical_bessel_j0",),
    derivative=lambda x, of: of.spherical_bessel_j0_1(x),
    slope=OSCILLATING,
    bound=lambda e: (max(sin_cos_error(e)) + e.div() + underflow(e), 0.0),
)
def spherical_bessel_j0(x: Components, fmt: Format, terms: int) -> Components:
    """The spherical Bessel function j_0(x) = sin(x) / x, 1 at 0 and 0 at infinities.

    The bound is relative to the result everywhere, next to zeros too: the angle is reduced exactly.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = (y[0].abs() >= working().tiny) & y[0].isfinite()
    y = ex.sanitized(y, good)
    q, r, *_ = angles.rest_of(y, fmt, terms, w)
    sine = ex.signed(angles.Angle(r).one((q & 1) == 1), ex.sign_of(q >= 2))
    m, e = ex.mantissa(ex.head(y, w))
    out = ex.leave(ex.div(sine, m), fmt, terms, -e)
    end = torch.where(x[0].isnan(), x[0], torch.where(x[0].isinf(), 0.0, 1.0))
    return ex.special(~good, end.to(fmt.dtype), out)
