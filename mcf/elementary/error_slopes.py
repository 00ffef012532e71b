"""Derivatives of erf, erfcx and gelu, without cancellation.

f(x) = exp(x^2) erfc(x) is 2/sqrt(pi) times the integral of exp(-t^2 - 2 x t) over t > 0, so that
(-1)^m times its derivative of order m is positive everywhere. From 0 to 32 the derivative of the
series of f is used, whose coefficients alternate in sign; beyond, that of the asymptotic series,

    sqrt(pi) x^(m+1) |f^(m)(x)| / m! = 1 - C(m+2, m)/(2 x^2) + C(m+4, m) 1 3/(2 x^2)^2 - ...

and below zero 2 h_m(|x|) exp(x^2) - f^(m)(|x|) with h_0 = 1, h_(m+1) = 2 x h_m + h_m', polynomials
with positive coefficients: a sum for odd m, and for even m a difference that keeps at least half
(NIST's Digital Library of Mathematical Functions, 7.12 and 7.18, https://dlmf.nist.gov/7.18).

With a = |x| the slope of gelu, x Phi(x), is T for x < 0 and 1 - T from 0 on,

    T = exp(-a^2 / 2) / sqrt(2 pi) (r(a) - a),  r(a) = sqrt(pi/2) erfcx(a / sqrt(2)),

where r(a) - a, which falls and has one zero a0, is a - a0 times a series at the nodes of erfcx.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import error, fixed, scaled_error, series, tables
from mcf.elementary.few_products import raised
from mcf.elementary.format import working
from mcf.elementary.gamma_series import quotient, quotient_about
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, _rows, _table, constant, table
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

# The highest order; beyond it f^(m+1) = 2 x f^(m) + 2 m f^(m-1) must be used.
LAST = 4
# Bits by which binomial coefficients, up to C(44, 4), slow the fall of a series.
SPARE = 18.0
DEGREES = 44


def _table_of(m: int) -> Tensor:
    """Return coefficients of (-1)^m f^(m), at the nodes of `tables.erfcx_series`."""
    rows = []
    for found, half in tables.erfcx_at_nodes(DEGREES + LAST):
        for k, c in enumerate(found[m : m + DEGREES]):
            value = (-1) ** m * math.perm(k + m, m) * c * half**k
            rows.append((value.numerator, value.denominator * fixed.ONE))
    return _rows(rows)


def growing(m: int) -> list[int]:
    """Return every second coefficient of h_m, from that of x^0 or x^1 on."""
    h = [1]
    for _ in range(m):
        slope = [k * c for k, c in enumerate(h)][1:]
        h = [a + b for a, b in zip([0, *(2 * c for c in h)], [*slope, 0, 0], strict=True)]
    return h[m % 2 :: 2]


def asymptotic(m: int, k: int) -> Fraction:
    """Return the coefficient of x^(-2 k) in the asymptotic series."""
    return scaled_error.asymptotic(k) * math.comb(2 * k + m, m)


def _far(m: int, z: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of |f^(m)(z)| for z >= 32."""
    normal, e = mantissa(z)
    inverse = ex.div(head((torch.ones_like(z[0]),), terms), normal)
    small = scale_all(inverse, -e.clamp(max=400))
    # Beyond this the series is 1.
    square = sanitized(ex.mul(small, small), z[0] < working().huge, 0.0)
    tail = series.polynomial(square, scaled_error.BITS, functools.partial(asymptotic, m))
    factor = fixed.to_fraction(fixed.two_over_root_pi()) / 2 * math.factorial(m)
    value = ex.mul(ex.mul(tail, raised(inverse, m + 1)), constant(factor, terms, z[0].device))
    return value, -(m + 1) * e


def _grown(m: int, a: Components) -> Components:
    """Return h_m(a), all terms of which are positive."""
    square, (last, *others) = ex.mul(a, a), growing(m)[::-1]
    total = head((torch.full_like(a[0], float(last)),), len(a))
    for c in others:
        total = ex.add(ex.mul(total, square), torch.full_like(a[0], float(c)))
    return ex.mul(total, a) if m % 2 else total


def _evaluated(arguments: Arguments, fmt: Format, terms: int, m: int) -> Components:
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = y[0].isfinite() & (y[0] >= -working().erf_far)
    down = good & (y[0] < 0)
    whole = signed(sanitized(y, good), sign_of(down))
    a = head(whole, w)
    far = a[0] >= scaled_error.FAR
    beyond, e = _far(m, sanitized(a, far, scaled_error.FAR), w)
    near = error.at_node(f"erfcx_{m}_series", sanitized(a, ~far), DEGREES, SPARE)
    value, k = select(far, beyond, near), torch.where(far, e, 0)
    growth, j = error._gauss(sanitized(whole, down), w, 0, 1.0)
    growth = series.scaled(ex.mul(growth, _grown(m, sanitized(a, down))), 2.0)
    beside = scale_all(sanitized(value, ~far), -j)
    below = ex.add(growth, beside if m % 2 else minus(beside))
    most = -working().bottom
    value, k = select(down, below, value), torch.where(down, j, k).clamp(-most, most)
    out = leave(signed(value, torch.full_like(a[0], (-1.0) ** m)), fmt, terms, k)
    end = torch.where(y[0] > 0, 0.0, math.inf) * (-1.0) ** m
    return special(~good, torch.where(y[0].isnan(), y[0], end).to(fmt.dtype), out)


@functools.cache
def slope(m: int) -> Callable[..., Components]:
    """Return the derivative of an order from 1 to `LAST` of erfcx, on component tuples."""

    def compute(arguments: Arguments, fmt: Format, terms: int) -> Components:
        return _evaluated(arguments, fmt, terms, m)

    compute.__name__ = f"erfcx_{m}"
    compute.__doc__ = f"""The derivative of order {m} of exp(x^2) erfc(x).

    Relative to the result everywhere.
    """
    table: Any = functools.partial(_table_of, m)
    table.__name__ = f"erfcx_{m}_series"
    _table(table)
    return function("x")(compute)


for _m in range(1, LAST + 1):
    slope(_m)


@function("x")
def erf_1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the derivative of erf, 2/sqrt(pi) exp(-x^2).

    The error is relative to the result everywhere, so all bits of x^2 are used.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = y[0].abs() <= working().erf_far
    g, e = error._gauss(sanitized(y, good), w, 0)
    factor = fixed.to_fraction(fixed.two_over_root_pi())
    out = leave(ex.mul(g, constant(factor, w, y[0].device)), fmt, terms, e)
    return special(~good, torch.where(x[0].isnan(), x[0], torch.zeros_like(x[0])), out)


# Floats of the zero of gelu's slope; bits and coefficients used to compute the table.
PARTS = 8
_BITS = 448
_COUNT = tables.ERFCX_DEGREES + 10


@functools.cache
def gelu_zero() -> Fraction:
    """Return z = a / sqrt(2) with r(a) = a: sqrt(pi) / 2 erfcx(z) = z, by Newton's method."""
    node, _ = tables.erfcx_nodes()[17]
    whole = fixed.erfcx_series(node, tables.erfcx_at_nodes(_COUNT)[17][0][0], 180)
    root, z = fixed.to_fraction(fixed.quotient(fixed.ONE, fixed.two_over_root_pi())), node
    for _ in range(12):
        f = fixed.to_fraction(fixed.evaluate(whole, z - node))
        # erfcx' = 2 z erfcx - 2/sqrt(pi).
        step = (root * f - z) / (2 * z * root * f - 2)
        z = Fraction(round((z - step) * 2**640), 2**640)
    return z


@_table
def gelu_1_series() -> Tensor:
    """Return coefficients of (a - r(a)) / (a - a0) in z."""
    rows: list[int] = []
    root = fixed.quotient(fixed.ONE, fixed.two_over_root_pi()) >> (fixed.BITS - _BITS)
    nodes = tables.erfcx_nodes()
    for (found, half), (node, _) in zip(tables.erfcx_at_nodes(_COUNT), nodes, strict=True):
        p, q = half.as_integer_ratio()
        row = [-(c * root * p**k // (q**k << fixed.BITS)) for k, c in enumerate(found)]
        row[0] += (node.numerator << _BITS) // node.denominator
        row[1] += (p << _BITS) // q
        at = node - gelu_zero()
        divide = quotient_about if abs(at) < half else quotient
        rows += divide(row, round(at * (1 << _BITS)), half, _BITS)[: tables.ERFCX_DEGREES]
    return _rows([(c, 1 << _BITS) for c in rows])


@_table
def gelu_1_zero() -> Tensor:
    """Return a0 as floats."""
    root = fixed.to_fraction(fixed.root(2 * fixed.ONE))
    return _rows([(root * gelu_zero()).as_integer_ratio()], PARTS)[:, 0]


@function("x")
def gelu_1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the derivative of x Phi(x); relative error also next to its zero at -0.7518."""
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = y[0].abs() <= working().gauss_far
    y = sanitized(y, good)
    down = y[0] < 0
    a = signed(y, sign_of(down))
    half_root = constant(fixed.to_fraction(fixed.root(fixed.ONE // 2)), w, a[0].device)
    value = error.at_node("gelu_1_series", ex.mul(head(a, w), half_root), tables.ERFCX_DEGREES)
    zero = table("gelu_1_zero", a[0].device)
    parts = tuple(-zero[j].expand(a[0].shape) for j in range(PARTS))
    value = ex.mul(value, collected((*a, *parts), w))
    g, e = error._gauss(a, w, 1)
    factor = fixed.to_fraction(fixed.quotient(fixed.ONE, fixed.root(2 * fixed.pi())))
    value = ex.mul(value, ex.mul(g, constant(factor, w, a[0].device)))
    above = ex.add(scale_all(value, e), torch.ones_like(a[0]))
    out = leave(select(down, minus(value), above), fmt, terms, torch.where(down, e, 0))
    beyond = torch.where(x[0].isnan(), x[0], (x[0] > 0).to(fmt.dtype))
    return special(~good, beyond, out)
