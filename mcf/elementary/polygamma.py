"""Polygamma functions of the orders 2, 3 and 4, by the tables and series of `mcf.elementary.gamma`.

f(x) = (-1)^(m+1) psi^(m)(x) = m! (1/x^(m+1) + 1/(x + 1)^(m+1) + ...) is positive for x > 0. Below
1/2 it is m! / x^(m+1) + f(1 + x), below zero, with c and s the cosine and sine of pi x,

    f(x) = pi^(m+1) g(c) / s^(m+1) + (-1)^m f(1 - x),
    g(c) = 2 c, 2 (1 + 2 c^2), 8 c (2 + c^2) for m = 2, 3, 4

(NIST's Digital Library of Mathematical Functions, 5.15, https://dlmf.nist.gov/5.15).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import gamma, gamma_arguments, gamma_tables, series
from mcf.elementary.gamma_series import Series, bernoulli
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, _rows, _table
from mcf.elementary.working import (
    enter,
    head,
    leave,
    mantissa,
    minus,
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

# Orders from 2 on.
LAST = 4
DEGREES = 44
# Bits by which binomial coefficients, up to that of 4 in 44, make the series fall less.
SPARE = 18.0
# Below, 1/r^(m+1) is all that counts.
_TINY = 2.0**-110
_BITS = 440


@functools.cache
def _series() -> list[list[int]]:
    """Coefficients of log Gamma at each node, in v = (x - node) / half."""
    found = Series(_BITS)
    return [found.log_gamma(c, half, DEGREES + LAST + 1) for c, half in gamma_tables.nodes()]


def _table_of(m: int) -> Tensor:
    rows = []
    for found, (_, half) in zip(_series(), gamma_tables.nodes(), strict=True):
        unit = half ** (m + 1)
        slopes = enumerate(found[m + 1 : m + 1 + DEGREES])
        rows += [int((-1) ** (m + 1) * math.perm(k + m + 1, m + 1) * s / unit) for k, s in slopes]
    return _rows([(c, 1 << _BITS) for c in rows])


@_table
def polygamma_2_series() -> Tensor:
    """Of -psi''(x)."""
    return _table_of(2)


@_table
def polygamma_3_series() -> Tensor:
    """Of psi'''(x)."""
    return _table_of(3)


@_table
def polygamma_4_series() -> Tensor:
    """Of -psi''''(x)."""
    return _table_of(4)


def stirling(m: int, j: int) -> Fraction:
    """Of z^-2j in what follows 1 + m/(2 z) in z^m f(z) / (m - 1)!, divided by m (m + 1) / (12 z^2).

    B_2j (2j + m - 1)! / ((2j)! (m - 1)!) from j = 1 on.
    """
    b = bernoulli(64)[j] * math.perm(2 * j + m + 1, m - 1) / math.factorial(m - 1)
    return b / Fraction(m * (m + 1), 12)


def _times(x: Components, factor: float) -> Components:
    return ex.mul(x, head((torch.full_like(x[0], factor),), len(x)))


def _powers(x: Components, last: int) -> Components:
    """x**last for last from 2 to 5."""
    square = ex.mul(x, x)
    if last == 2:
        return square
    if last == 3:
        return ex.mul(square, x)
    fourth = ex.mul(square, square)
    return fourth if last == 4 else ex.mul(fourth, x)


def _weight(m: int, c: Components) -> Components:
    """g(c)."""
    square = ex.mul(c, c)
    if m == 2:
        return series.scaled(c, 2.0)
    one = torch.ones_like(c[0])
    if m == 3:
        return series.scaled(ex.add(series.scaled(square, 2.0), one), 2.0)
    return ex.mul(series.scaled(c, 8.0), ex.add(square, 2.0 * one))


def _polygamma(arguments: Arguments, fmt: Format, terms: int, m: int) -> Components:
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    at = gamma_arguments.argument_of(y, w, reflected=True)
    one = torch.ones_like(y[0])
    far = head(sanitized(at.z, at.far, gamma_arguments.FAR), w)
    inverse = gamma._inverse(far, w)
    square = ex.mul(inverse, inverse)
    tail = series.polynomial(square, gamma._BITS, functools.partial(stirling, m), 8.0)
    rest = ex.mul(_times(square, float(m * (m + 1))), gamma._part(12, tail))
    rest = ex.add(_times(inverse, m / 2), rest)
    normal, e = mantissa(far)
    beyond = ex.div(_times(ex.add(rest, one), float(math.factorial(m - 1))), _powers(normal, m))
    near = sanitized(at.z, ~at.far)
    value = gamma.taylor(f"polygamma_{m}_series", near, w, degrees=DEGREES, spare=SPARE)
    value = select(at.far, beyond, value)
    f = gamma_arguments.beside_whole(at.x, w)
    low = at.low & ~at.down
    shifted = low | at.down
    # What the power is taken of: |x| up to 1/2, else s / pi, and next to poles r.
    size = head(signed(at.x, sign_of(at.down)), w)
    r = select(low, size, head(f.r, w))
    lift = torch.where(f.tiny & ~low, gamma_arguments.LIFT, 0)
    tiny = shifted & ((r[0] < _TINY) | (lift > 0))
    part, k = mantissa(sanitized(r, tiny))
    below = select(tiny, part, select(low, sanitized(r, low), f.sine))
    plain = low | tiny
    above = select(plain, head((one,), w), head(gamma_arguments.pi(w, one), w))
    factor = head((torch.full_like(one, float(math.factorial(m))),), w)
    step = ex.mul(_powers(ex.div(above, below), m + 1), select(plain, factor, _weight(m, f.cosine)))
    if m % 2 == 0:
        step = signed(step, torch.where(at.down, f.sign, 1.0))
    flat = scale_all(value, torch.where(at.far & ~tiny, -m * e, 0).clamp(min=-900))
    if m % 2:
        flat = select(low, flat, minus(flat))
    joined = ex.add(flat, sanitized(step, ~tiny))
    value = select(shifted, select(tiny, step, joined), value)
    exponents = torch.where(tiny, (m + 1) * (lift - k), torch.where(at.far & ~shifted, -m * e, 0))
    out = leave(value, fmt, terms, exponents.clamp(-2000, 2000))
    pole = torch.where(x[0].isnan(), x[0], torch.where(x[0] == math.inf, 0.0, math.inf))
    out = special(~at.good | (at.down & f.whole), pole.to(fmt.dtype), out)
    return out if m % 2 else minus(out)


@function("x")
def polygamma_2(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """The third derivative of log Gamma(x); -inf at 0, at negative whole numbers and at -inf.

    Of positive x relative to the result. Below zero it is a sum (see the module), and the error
    relative to the sum of the magnitudes of its terms: near zeros the result has the bits that the
    cancellation leaves.
    """
    return _polygamma(arguments, fmt, terms, 2)


@function("x")
def polygamma_3(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """The fourth derivative of log Gamma(x); infinite at 0, at negative whole numbers and at -inf.

    Relative to the result everywhere.
    """
    return _polygamma(arguments, fmt, terms, 3)


@function("x")
def polygamma_4(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """The fifth derivative of log Gamma(x); -inf at 0, at negative whole numbers and at -inf.

    Errors as those of `polygamma_2`.
    """
    return _polygamma(arguments, fmt, terms, 4)
