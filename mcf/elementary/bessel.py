"""Modified Bessel functions of the first kind: Taylor series up to 256, then Hankel's.

i0e(x) = exp(-|x|) I_0(x) and i1e(x) / x have no zero. Their coefficients follow from the
differential equation, x y'' + (2 x + 1) y' + y = 0 for y = i0e, and the power series of I_0 and I_1
at the nodes. From 256 on, sqrt(2 pi x) exp(-x) I_n(x) is Hankel's asymptotic series (NIST's Digital
Library of Mathematical Functions, 10.25 and 10.40, https://dlmf.nist.gov/10.40).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import angles, exponential, fixed, series, trigonometric
from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.gamma import components_needed, degree_needed
from mcf.elementary.gamma_series import quotient
from mcf.elementary.operator import function
from mcf.elementary.ordered_sums import beside
from mcf.elementary.tables import Components, _rows, _table, constant, lookup
from mcf.elementary.working import (
    enter,
    exponent,
    head,
    leave,
    mantissa,
    power,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    working_terms,
)
from mcf.kernels.formats import Format

Arguments = tuple[Components, ...]

# From FAR on Hankel's series is used; BITS is -log2 of 1 / FAR.
FAR = 256.0
BITS = 8.0
# 32 nodes in each of [0, 1), [1, 2), [2, 4), ..., [128, 256).
STEPS = 32
OCTAVES = 9
DEGREES = 40
_BITS = 448


def _nodes() -> list[tuple[Fraction, Fraction]]:
    """Return (node, half-width of its interval), ascending."""
    found = []
    for octave in range(OCTAVES):
        low, length = (2 ** (octave - 1), 2 ** (octave - 1)) if octave else (0, 1)
        half = Fraction(length, 2 * STEPS)
        found += [(low + half * (2 * j + 1), half) for j in range(STEPS)]
    return found


def _values(c: Fraction) -> tuple[int, int]:
    """Return i0e(c) and i1e(c) by their power series, in units of 2**-_BITS."""
    bits = _BITS + 2 * int(c) + 16
    p, q = (c * c / 4).as_integer_ratio()
    term, total, first, k = 1 << bits, 0, 0, 0
    while term:
        total += term
        first += term // (k + 1)
        k += 1
        term = term * p // (q * k * k)
    first = first * c.numerator // (2 * c.denominator)
    whole, part = divmod(c, 1)
    decay = fixed.exp(-fixed.to_fixed(part))
    for _ in range(int(whole)):
        decay = decay * _inverse_e() >> fixed.BITS
    cut = bits + fixed.BITS - _BITS
    return total * decay >> cut, first * decay >> cut


@functools.cache
def _inverse_e() -> int:
    return fixed.exp(-fixed.ONE // 2) ** 2 >> fixed.BITS


@functools.cache
def _series(count: int = DEGREES) -> list[list[int]]:
    """Return coefficients of i0e at each node in v = (x - node) / half, two more than `count`."""
    found = []
    for c, h in _nodes():
        zero, one = _values(c)
        a = [zero, int((one - zero) * h)]
        for k in range(count):
            total = (k + 1) * (k + 2 * c + 1) * h * a[k + 1] + (2 * k + 1) * h * h * a[k]
            a.append(int(-total / (c * (k + 2) * (k + 1))))
        found.append(a)
    return found


@_table
def i0e_series() -> Tensor:
    """Return Taylor coefficients of exp(-x) I_0(x)."""
    return _rows([(c, 1 << _BITS) for row in _series() for c in row[:DEGREES]])


@_table
def i1e_series() -> Tensor:
    """Return Taylor coefficients of exp(-x) I_1(x) / x."""
    rows = []
    for a, (c, h) in zip(_series(), _nodes(), strict=True):
        slope = [int((k + 1) * a[k + 1] / h) for k in range(DEGREES)]
        total = [x + y for x, y in zip(a, slope, strict=False)]
        rows += quotient(total, int(c * (1 << _BITS)), h, _BITS)
    return _rows([(c, 1 << _BITS) for c in rows])


def _taylor(
    name: str, a: Components, terms: int, degrees: int = DEGREES, spare: float = 0.0
) -> Components:
    """Evaluate a table's series for 0 <= a < 256; `spare` bits allow for larger coefficients."""
    octave = (exponent(a[0]) + 1).clamp(0, OCTAVES - 1)
    below = (octave - 1).clamp(min=0)
    width = power(below - 5)
    origin = torch.where(octave == 0, 0.0, power(below))
    j = ((a[0] - origin) / width).floor().clamp(0, STEPS - 1)
    v = beside(a, origin + width * (j + 0.5), terms)
    v = tuple(c * (2.0 / width) for c in v)
    row = (octave * STEPS + j.to(torch.int64)) * degrees
    return series.at_node(
        v,
        degree_needed(terms, spare, degrees),
        lambda k, count: lookup(name, row + k, count),
        lambda k: components_needed(terms, k, spare),
    )


def hankel(order: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in sqrt(2 pi x) exp(-x) I_n(x)."""
    top = math.prod((2 * j - 1) ** 2 - 4 * order**2 for j in range(1, k + 1))
    return Fraction(top, math.factorial(k) * 8**k)


def asymptotic(
    coefficient: Callable[[int], Fraction], square: Fraction, a: Components, terms: int
) -> tuple[Components, Tensor]:
    """Return components and an exponent of a series in 1/a over sqrt(square * a), for a >= 256."""
    large, raised = a[0] > working().vast, working().raised
    near = sanitized(head(a, terms), ~large, FAR)
    one = head((torch.ones_like(a[0]),), terms)
    inverse = sanitized(ex.div(one, near), ~large, 0.0)
    value = series.polynomial(inverse, BITS, coefficient)
    scaled = scale_all(head(a, terms), torch.where(large, -raised, 0))
    factor = constant(square, terms, a[0].device)
    return ex.div(value, ex.sqrt(ex.mul(scaled, factor))), torch.where(large, -raised // 2, 0)


def _modified(
    arguments: Arguments, fmt: Format, terms: int, order: int, *, scaled: bool
) -> Components:
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    sign = sign_of(torch.signbit(y[0]))
    a = signed(y, sign)
    limit = float(working().format.max) if scaled else working().exp_limit
    good = (a[0] > 0) & (a[0] <= limit)
    a = sanitized(a, good)
    far = a[0] >= FAR
    near = sanitized(a, ~far)
    value = _taylor(f"i{order}e_series", near, w)
    k = torch.zeros_like(sign, dtype=torch.int64)
    if order:
        # Scale first, since the product would lose the last components of a tiny number.
        k = torch.where(near[0] < 2.0 ** -working().faint, working().faint, 0)
        value, k = ex.mul(value, scale_all(head(near, w), k)), -k
    two_pi = 2 * fixed.to_fraction(fixed.pi())
    coefficient = functools.partial(hankel, order)
    beyond, m = asymptotic(coefficient, two_pi, sanitized(a, far, FAR), w)
    value, k = select(far, beyond, value), torch.where(far, m, k)
    if not scaled:
        growth, e = exponential.exp(a, w)
        value, k = ex.mul(value, growth), k + e
    out = leave(value, fmt, terms, k)
    side = torch.ones_like(sign) if order == 0 else sign
    out = signed(out, side.to(fmt.dtype))
    end = torch.where(y[0].isnan(), y[0], side * (0.0 if scaled else math.inf))
    zero = y[0] if order else torch.ones_like(y[0])
    return special(~good, torch.where(y[0] == 0, zero, end).to(fmt.dtype), out)


@function("x")
def i0(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function I_0(x); infinite beyond the range."""
    return _modified(arguments, fmt, terms, 0, scaled=False)


@function("x")
def i0e(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return exp(-|x|) I_0(x)."""
    return _modified(arguments, fmt, terms, 0, scaled=True)


@function("x")
def i1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function I_1(x), odd; relative error also near 0."""
    return _modified(arguments, fmt, terms, 1, scaled=False)


@function("x")
def i1e(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return exp(-|x|) I_1(x)."""
    return _modified(arguments, fmt, terms, 1, scaled=True)


@function("x")
def spherical_bessel_j0(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """The spherical Bessel function j_0(x) = sin(x) / x, 1 at 0 and 0 at infinities.

    Relative to the result everywhere: the angle is reduced exactly whatever its size.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = (y[0].abs() >= working().tiny) & y[0].isfinite()
    y = sanitized(y, good)
    q, r, *_ = trigonometric._rest(y, fmt, terms, w)
    sine = signed(angles.Angle(r).one((q & 1) == 1), sign_of(q >= 2))
    m, e = mantissa(head(y, w))
    out = leave(ex.div(sine, m), fmt, terms, -e)
    end = torch.where(x[0].isnan(), x[0], torch.where(x[0].isinf(), 0.0, 1.0))
    return special(~good, end.to(fmt.dtype), out)
