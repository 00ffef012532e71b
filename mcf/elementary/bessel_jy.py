"""Bessel functions J and Y of orders 0 and 1: series about zeros up to 256, then Hankel's.

Up to 256 the zero z nearest to x is stored to as many bits as x may share with it, x - z is an
exact sum rounded once, and the series are of J_n(x) / (x - z) and similar (`bessel_zeros`). So
results have small relative errors also next to zeros. Beyond,

    sqrt(pi x) J_0(x) = P_0 (cos x + sin x) - Q_0 (sin x - cos x)
    sqrt(pi x) Y_0(x) = P_0 (sin x - cos x) + Q_0 (cos x + sin x)

For order 1, sin x - cos x and -(cos x + sin x) replace cos x + sin x and sin x - cos x. P and Q are
Hankel's series (NIST's Digital Library of Mathematical Functions, 10.17,
https://dlmf.nist.gov/10.17).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import angles, bessel, bessel_zeros, fixed, logarithm, series, trigonometric
from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant, entries, lookup, table
from mcf.elementary.working import (
    collected,
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
    terms: int, fall: Fall = _fall, degrees: int = bessel_zeros.DEGREES
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
    return min(bessel_zeros.PARTS, -(-(fmt.p * given + p * terms + 24) // p))


def _series(
    name: str,
    row: Tensor,
    v: Components,
    fall: Fall = _fall,
    degrees: int = bessel_zeros.DEGREES,
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
    last = bessel_zeros.ZEROS - (kind == "y")
    row = (a[0] * (1 / math.pi) + _LEFT[kind, order]).floor().clamp(0, last).to(torch.int64)
    zeros = table(f"{kind}{order}_zeros", row.device)
    parts = parts_needed(fmt, given, terms)
    return row, collected((*a, *(-entries(zeros[k], row) for k in range(parts))), terms)


def _hankel(order: int, odd: int) -> Callable[[int], Fraction]:
    """Return the coefficients of P or Q in 1/x^2, divided by the first."""
    first = bessel_zeros.hankel(order, odd)
    return lambda k: bessel_zeros.hankel(order, 2 * k + odd) / first


def _far(
    kind: str, order: int, a: Components, fmt: Format, given: int, terms: int
) -> tuple[Components, Tensor]:
    """Return components and an exponent of J_n(a) or Y_n(a) for a >= 256."""
    q, rest, *_ = trigonometric._rest(a, fmt, given, terms)
    s, c = angles.Angle(rest).both()
    odd = (q & 1) == 1
    sine = signed(select(odd, c, s), sign_of(q >= 2))
    cosine = signed(select(odd, s, c), sign_of((q == 1) | (q == 2)))
    plus, difference = ex.add(cosine, sine), ex.add(sine, minus(cosine))
    # Each order lags the previous one by a quarter turn, and Y lags J.
    sides = (plus, difference, minus(plus), minus(difference))
    along = order + (kind == "y")
    large, raised = a[0] > working().vast, working().raised
    one = head((torch.ones_like(a[0]),), terms)
    near = sanitized(head(a, terms), ~large, FAR)
    inverse = sanitized(ex.div(one, near), ~large, 0.0)
    square = ex.mul(inverse, inverse)
    p = series.polynomial(square, BITS, _hankel(order, 0))
    tail = series.polynomial(square, BITS, _hankel(order, 1), 9.0)
    first = series.scaled(inverse, 1 / 8)
    if order == 0:
        first = minus(first)
    else:
        first = ex.mul(first, head((torch.full_like(a[0], 3.0),), terms))
    q_series = ex.mul(first, tail)
    value = ex.add(ex.mul(p, sides[along]), minus(ex.mul(q_series, sides[along + 1])))
    scaled = scale_all(head(a, terms), torch.where(large, -raised, 0))
    pi = constant(fixed.to_fraction(fixed.pi()), terms, a[0].device)
    return ex.div(value, ex.sqrt(ex.mul(scaled, pi))), torch.where(large, -raised // 2, 0)


def _first(arguments: Arguments, fmt: Format, terms: int, order: int) -> Components:
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    sign = sign_of(torch.signbit(y[0]))
    a = signed(y, sign)
    good = (a[0] > 0) & a[0].isfinite()
    a = sanitized(a, good)
    far = a[0] >= FAR
    row, v = _nearest("j", order, sanitized(a, ~far), fmt, terms, w)
    value = _series(f"j{order}_series", row, v)
    if order == 0:
        v = select(row == 0, head((torch.ones_like(a[0]),), w), v)
    # Scale first, since the product would lose the last components of a tiny number.
    faint = working().faint
    k = torch.where(v[0].abs() < 2.0**-faint, faint, 0)
    value = ex.mul(value, scale_all(v, k))
    beyond, m = _far("j", order, sanitized(a, far, FAR), fmt, terms, w)
    out = leave(select(far, beyond, value), fmt, terms, torch.where(far, m, -k))
    if order:
        out = signed(out, sign.to(fmt.dtype))
    zero = y[0] if order else torch.ones_like(y[0])
    return special(~good, torch.where(y[0] == 0, zero, math.nan).to(fmt.dtype), out)


def _second(arguments: Arguments, fmt: Format, terms: int, order: int) -> Components:
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = (y[0] > 0) & y[0].isfinite()
    a = sanitized(y, good)
    one = torch.ones_like(a[0])
    far = a[0] >= FAR
    near = sanitized(a, ~far)
    row, v = _nearest("y", order, near, fmt, terms, w)
    inverse = lookup(f"y{order}_inverses", row, w)
    # log(x / z); next to z it is log(1 + v / z).
    t = ex.mul(v, inverse)
    lift = torch.where(near[0] < working().small, working().raised, 0)
    quotient = ex.mul(scale_all(head(near, w), lift), inverse)
    close = t[0].abs() <= 0.5
    floats = select(close, (one, *t), (*quotient, torch.zeros_like(one)))
    lead = torch.where(close, collected((one, *t), 1)[0], quotient[0])
    log, k = logarithm.log(floats, lead, w, 0, -lift)
    first = ex.mul(scale_all(log, k), _series(f"y{order}_first", row, v))
    two_over_pi = constant(2 / fixed.to_fraction(fixed.pi()), w, one.device)
    value = ex.add(ex.mul(first, two_over_pi), ex.mul(v, _series(f"y{order}_series", row, v)))
    e = torch.zeros_like(row)
    if order:
        m, e = mantissa(head(near, w))
        value = ex.add(ex.mul(head(near, w), value), ex.mul(t, two_over_pi))
        value, e = ex.div(value, m), -e
    beyond, m_far = _far("y", order, sanitized(a, far, FAR), fmt, terms, w)
    out = leave(select(far, beyond, value), fmt, terms, torch.where(far, m_far, e))
    end = torch.where(y[0] == 0, -math.inf, math.nan)
    return special(~good, end.to(fmt.dtype), out)


@function("x")
def j0(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the Bessel function J_0(x), even; NaN at infinities.

    The error is relative to the result up to 256, also next to zeros; beyond, to the modulus
    sqrt(J_0(x)^2 + Y_0(x)^2), about sqrt(2 / (pi x)).
    """
    return _first(arguments, fmt, terms, 0)


@function("x")
def j1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the Bessel function J_1(x), odd; NaN at infinities.

    The error is relative to the result up to 256, also next to zeros; beyond, to the modulus
    sqrt(J_1(x)^2 + Y_1(x)^2), about sqrt(2 / (pi x)).
    """
    return _first(arguments, fmt, terms, 1)


@function("x")
def y0(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the Bessel function Y_0(x); -inf at zeros, NaN below and at infinity.

    The error is relative to the result up to 256, also next to zeros; beyond, to the modulus
    sqrt(J_0(x)^2 + Y_0(x)^2), about sqrt(2 / (pi x)).
    """
    return _second(arguments, fmt, terms, 0)


@function("x")
def y1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the Bessel function Y_1(x); -inf at zeros, NaN below and at infinity.

    The error is relative to the result up to 256, also next to zeros; beyond, to the modulus
    sqrt(J_1(x)^2 + Y_1(x)^2), about sqrt(2 / (pi x)).
    """
    return _second(arguments, fmt, terms, 1)
