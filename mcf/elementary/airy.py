"""Airy's function Ai and its derivative: about zeros down to -64, at nodes from 1 on, asymptotic.

With zeta = 2/3 |x|^(3/2), x = s^2 from 1 on is exp(-zeta) times a series of exp(zeta) Ai(s^2) at
the nearest of 112 nodes in s; between -64 and 1 the nearest zero z is known to as many bits as x
may agree with it, and the series is of Ai(x) / (x - z), or about points where no zero is near. From
-64 downwards

    sqrt(2 pi s) Ai(-s^2) = P (sin zeta + cos zeta) + Q (sin zeta - cos zeta)
    sqrt(2 pi / s) Ai'(-s^2) = P' (sin zeta - cos zeta) - Q' (sin zeta + cos zeta)

P and Q the series in 1/zeta (NIST's Digital Library of Mathematical Functions, 9.7,
https://dlmf.nist.gov/9.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import (
    airy_tables,
    angles,
    bessel_jy,
    exponential,
    fixed,
    gamma,
    series,
    trigonometric,
)
from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.ordered_sums import beside
from mcf.elementary.tables import Components, constant, entries, table
from mcf.elementary.working import (
    collected,
    enter,
    exponent,
    head,
    leave,
    minus,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    two_sum,
    working_terms,
)
from mcf.kernels.formats import FP64, Format

Arguments = tuple[Components, ...]

FAR = float(airy_tables.FAR)
NAMES = ("airy_ai", "airy_ai_1")
# Coefficients of the series at nodes fall overall but not monotonically, so `absorb` cannot sum
# them.
DEGREES = airy_tables.HIGH_DEGREES
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
    k = exponent(a[0]) >> 1
    a, j = scale_all(a, -2 * k), limits().steps
    m = (_root(a[0]) * (2.0**j / 3)).round()
    h = m * (3 * 2.0**-j)
    s = ex.sqrt(head(a, terms))
    d = ex.div(beside(a, h * h, terms), ex.add(s, h))
    third = constant(Fraction(1, 3), terms, h.device)
    rest = ex.mul(d, ex.add(ex.mul(s, h), ex.mul(ex.mul(d, d), third)))
    first, second = two_sum(m * m * m * (18 * 2.0 ** (-3 * j)), 2 * rest[0])
    zeta = (first, second, *series.scaled(rest[1:], 2.0))
    return Phase(scale_all(s, k), scale_all(zeta, 3 * k))


def _high(m: int, a: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of Ai(a) or Ai'(a) for a >= 1."""
    root, zeta = phase(a, terms)
    value = gamma.taylor(
        f"{NAMES[m]}_scaled", root, terms, 0, airy_tables.OCTAVES, DEGREES, 0.0, DEGREES
    )
    decay, k = exponential.exp(minus(zeta), terms)
    return ex.mul(value, decay), k


def fall(k: int) -> float:
    """Return a lower bound of the bits by which the term of degree k is below the first."""
    return max(0.0, 0.8 * (math.factorial(k + 1).bit_length() - 1) - 0.5625 * k - 0.5)


def row_of(m: int, a: Tensor) -> Tensor:
    """Return the row of the tables for a float -1 <= a <= 64, as a float."""
    low = airy_tables.LOW[m]
    # Rows of zeros among the first rows.
    zeros = sum(point is None for _, point in low)
    up = a.clamp(min=0.0)
    number = (up * _root(up) * (2 / (3 * math.pi)) + SHIFT[m]).floor()
    first = torch.zeros_like(a)
    for edge, _ in low[1:]:
        first = first + torch.where(a >= edge, 1.0, 0.0)
    row = torch.where(number > zeros, number + (len(low) - zeros - 1), first)
    return row.clamp(0, airy_tables.ZEROS + len(low) - zeros - 1)


def _near(
    m: int, a: Components, fmt: Format, given: int, terms: int
) -> tuple[Components, Tensor]:  # fmt: skip
    """Return components and an exponent of Ai(-a) or Ai'(-a) for -1 <= a <= 64."""
    place = row_of(m, a[0])
    row = place.to(torch.int64)
    points = table(f"{NAMES[m]}_points", row.device)
    parts = bessel_jy.parts_needed(fmt, given, terms)
    v = collected((*a, *(-entries(points[k], row) for k in range(parts))), terms)
    value = bessel_jy._series(f"{NAMES[m]}_series", row, v, fall, airy_tables.DEGREES)
    one = head((torch.ones_like(a[0]),), terms)
    for at, (_, point) in enumerate(airy_tables.LOW[m]):
        if point is not None:
            v = select(place == at, one, v)
    # Scale first, since the product would lose the last components of a tiny number.
    faint = working().faint
    k = torch.where(v[0].abs() < 2.0**-faint, faint, 0)
    return ex.mul(value, scale_all(v, k)), -k


def coefficients(m: int, odd: int) -> Callable[[int], Fraction]:
    """Return the coefficients of P or Q in 1 / zeta^2, divided by the first."""
    first = airy_tables.asymptotic(m, odd)
    return lambda k: (-1) ** k * airy_tables.asymptotic(m, 2 * k + odd) / first


def _far(m: int, a: Components, terms: int) -> Components:
    """Return Ai(-a) or Ai'(-a) for a >= 64."""
    root, zeta = phase(a, terms)
    # Only the absolute error of the angle matters, so no bits are kept for cancellation.
    q, rest, *_ = trigonometric._rest(zeta, FP64, 0, terms)
    s, c = angles.Angle(rest).both()
    odd = (q & 1) == 1
    sine = signed(select(odd, c, s), sign_of(q >= 2))
    cosine = signed(select(odd, s, c), sign_of((q == 1) | (q == 2)))
    plus, difference = ex.add(cosine, sine), ex.add(sine, minus(cosine))
    one, device = head((torch.ones_like(a[0]),), terms), a[0].device
    inverse = ex.div(one, collected(zeta, terms))
    square = ex.mul(inverse, inverse)
    p = series.polynomial(square, BITS, coefficients(m, 0))
    tail = series.polynomial(square, BITS, coefficients(m, 1), SMALLER)
    first = airy_tables.asymptotic(m, 1) * (1 - 2 * m)
    q_series = ex.mul(ex.mul(inverse, constant(first, terms, device)), tail)
    along, across = (difference, plus) if m else (plus, difference)
    value = ex.add(ex.mul(p, along), ex.mul(q_series, across))
    two_pi = 2 * fixed.to_fraction(fixed.pi())
    if m:
        return ex.mul(value, ex.sqrt(ex.mul(root, constant(1 / two_pi, terms, device))))
    return ex.div(value, ex.sqrt(ex.mul(root, constant(two_pi, terms, device))))


def _airy(arguments: Arguments, fmt: Format, terms: int, m: int) -> Components:
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    high = (y[0] >= 1.0) & (y[0] < limits().zero)
    far = (y[0] <= -FAR) & (y[0] >= -limits().lost)
    near = (y[0] < 1.0) & (y[0] > -FAR)
    value = head((torch.zeros_like(y[0]),), w)
    k = torch.zeros_like(y[0], dtype=torch.int64)
    if bool(near.any()):
        found, e = _near(m, sanitized(minus(y), near), fmt, terms, w)
        value, k = select(near, found, value), torch.where(near, e, k)
    if bool(high.any()):
        found, e = _high(m, sanitized(y, high), w)
        value, k = select(high, found, value), torch.where(high, e, k)
    if bool(far.any()):
        found = _far(m, sanitized(minus(y), far, FAR), w)
        value = select(far, found, value)
    out = leave(value, fmt, terms, k)
    # NaN at infinities, as in PyTorch. For inconsistent components such as (22.5, inf), the sign
    # and low components would depend on the executor.
    none = out[0].isnan()
    end = torch.where(y[0].isfinite() & ~none, 0.0, math.nan)
    return special(~(near | high | far) | none, end.to(fmt.dtype), out)


@function("x")
def airy_ai(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return Airy's function Ai(x); NaN at infinities.

    The error is relative to the result above -64, also next to zeros. Below, it is relative to the
    effect of a relative change of x: |x|^(3/2) times the modulus sqrt(Ai(x)^2 + Bi(x)^2), about 1 /
    sqrt(pi sqrt(|x|)). Below -2^142 (-2^65 in float32 registers), where the phase is unknown, the
    result is 0.
    """
    return _airy(arguments, fmt, terms, 0)


@function("x")
def airy_ai_1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the derivative Ai'(x); NaN at infinities.

    The error is relative to the result above -64, also next to zeros. Below, it is relative to
    |x|^(3/2) times the modulus sqrt(Ai'(x)^2 + Bi'(x)^2), about sqrt(sqrt(|x|) / pi). Below -2^142
    (-2^65 in float32 registers) the result is 0.
    """
    return _airy(arguments, fmt, terms, 1)
