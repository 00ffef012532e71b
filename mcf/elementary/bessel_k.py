"""Modified Bessel functions of the second kind: power series up to 1, nodes, Hankel's from 256.

Up to 1, with q = x^2/4 and the digamma function,

    K_0(x) = sum (log 2 + digamma(k + 1)) q^k / k!^2 - log(x) I_0(x)
    x K_1(x) = 1 - 2 q (sum (log 2 + (digamma(k + 1) + digamma(k + 2))/2) q^k / (k! (k + 1)!)
                        - log(x) sum q^k / (k! (k + 1)!))

where all terms are positive. Beyond, y = exp(x) K_0(x) satisfies x y'' + (1 - 2 x) y' - y = 0, and
exp(x) K_1(x) = y - y' (NIST's Digital Library of Mathematical Functions, 10.31 and 10.40,
https://dlmf.nist.gov/10.31).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import bessel, exponential, fixed, gamma, gamma_tables, series
from mcf.elementary.format import working
from mcf.elementary.gamma_series import Series
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, _rows, _table
from mcf.elementary.working import (
    enter,
    head,
    leave,
    mantissa,
    minus,
    sanitized,
    select,
    special,
    working_terms,
)
from mcf.kernels.formats import Format

Arguments = tuple[Components, ...]

# The tables have 32 nodes in each of [1, 2), [2, 4), ..., [128, 256).
OCTAVES = 8
# -log2 of q in the range of the power series.
BITS = 2.0
_BITS = 576
_KEPT = gamma_tables.DEGREES


def _start() -> tuple[int, int]:
    """Return exp(x) K_0(x) and exp(x) K_1(x) at 256 by Hankel's series, to about 730 bits."""
    root = fixed.root(fixed.pi() // 512)
    found = []
    for order in (0, 1):
        total = sum(_hankel(order, k) / 256**k for k in range(500))
        found.append(root * total.numerator // total.denominator >> (fixed.BITS - _BITS))
    return found[0], found[1]


def _hankel(order: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in sqrt(2 x / pi) exp(x) K_n(x)."""
    return bessel.hankel(order, k) * (-1 if k % 2 else 1)


def _continued(y: int, slope: int, start: int, r: int, count: int) -> list[int]:
    """Return coefficients of exp(x) K_0(x) at start r/64 in v = 64 (x - node) / start."""
    a = [y, slope]
    for k in range(count - 2):
        top = (k + 1) * (2 * start * r - 64 * (k + 1)) * a[k + 1] + (2 * k + 1) * start * a[k]
        a.append(top // (64 * r * (k + 1) * (k + 2)))
    return a


@functools.cache
def _series() -> list[tuple[list[int], list[int]]]:
    """Return coefficients of exp(x) K_0(x) and (up to `_KEPT`) exp(x) K_1(x) at each node.

    They are continued from node to node downwards, a direction in which errors shrink.
    """
    zero, one = _start()
    found = []
    start, r = 256, 64
    slope = (zero - one) * start // 64
    a = _continued(zero, slope, start, r, 120)
    while (start, r) != (1, 65):
        following = (start, r - 2) if r > 65 else (start // 2, 127)
        # The step in units of this node's v, doubled.
        step = Fraction(following[0] * following[1], start) - r
        p, q = step.as_integer_ratio()
        y = slope = 0
        for k in range(len(a) - 1, 0, -1):
            y, slope = a[k] + y * p // q, k * a[k] + slope * p // q
        y = a[0] + y * p // q
        slope = slope * following[0] // start
        start, r = following
        a = _continued(y, slope, start, r, 120)
        second = [x - (k + 1) * a[k + 1] * 64 // start for k, x in enumerate(a[:_KEPT])]
        found.append((a, second))
    return found[::-1]


@_table
def k0e_series() -> Tensor:
    """Return Taylor coefficients of exp(x) K_0(x)."""
    return _rows([(c, 1 << _BITS) for row, _ in _series() for c in row[:_KEPT]])


@_table
def k1e_series() -> Tensor:
    """Return Taylor coefficients of exp(x) K_1(x)."""
    return _rows([(c, 1 << _BITS) for _, row in _series() for c in row])


@functools.cache
def _euler() -> Fraction:
    """Return log 2 minus Euler's constant, i.e. log 2 + digamma(1)."""
    slope = Series(704).log_gamma(Fraction(1), Fraction(1), 3)[1]
    return fixed.to_fraction(fixed.ln2()) + Fraction(slope, 1 << 704)


@functools.cache
def _harmonic(k: int) -> Fraction:
    """Return digamma(k + 1) - digamma(1)."""
    return sum((Fraction(1, j) for j in range(1, k + 1)), Fraction(0))


@functools.cache
def first(order: int, k: int) -> Fraction:
    """Return the coefficient of q^k in I_n(x) / (x/2)^n."""
    return Fraction(1, math.factorial(k) * math.factorial(k + order))


@functools.cache
def second(order: int, k: int) -> Fraction:
    """Return the coefficient of q^k in the series without the logarithm."""
    return first(order, k) * (_euler() + (_harmonic(k) + _harmonic(k + order)) / 2)


def power_series(order: int, q: Components, log_x: Components) -> Components:
    """Return x^n K_n(x) for 0 < x <= 1, from x^2 / 4 and log(x)."""
    growing = series.polynomial(q, BITS, functools.partial(first, order))
    beside = series.polynomial(q, BITS, functools.partial(second, order))
    total = ex.add(minus(ex.mul(log_x, growing)), beside)
    if order == 0:
        return total
    return ex.add(series.scaled(ex.mul(q, total), -2.0), torch.ones_like(q[0]))


def _low(order: int, a: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of K_n(a) for 0 < a <= 1."""
    x = head(a, terms)
    q = series.scaled(ex.mul(x, x), 0.25)
    value = power_series(order, q, gamma._log(a, terms))
    if order == 0:
        return value, torch.zeros_like(a[0], dtype=torch.int64)
    m, e = mantissa(x)
    return ex.div(value, m), -e


def _second(
    arguments: Arguments, fmt: Format, terms: int, order: int, *, scaled: bool
) -> Components:
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    limit = float(working().format.max) if scaled else working().exp_limit
    good = (y[0] > 0) & (y[0] <= limit)
    a = sanitized(y, good)
    low, far = a[0] < 1.0, a[0] >= bessel.FAR
    value, k = _low(order, sanitized(a, low), w)
    middle = gamma.taylor(f"k{order}e_series", sanitized(a, ~(low | far)), w, 0, OCTAVES)
    two_over_pi = 2 / fixed.to_fraction(fixed.pi())
    coefficient = functools.partial(_hankel, order)
    beyond, m = bessel.asymptotic(coefficient, two_over_pi, sanitized(a, far, bessel.FAR), w)
    value = select(low, value, select(far, beyond, middle))
    k = torch.where(low, k, torch.where(far, m, 0))
    # The power series give K_n itself, the others exp(x) K_n(x).
    factor = low if scaled else ~low
    power = a if scaled else minus(a)
    growth, e = exponential.exp(sanitized(power, factor, 0.0), w)
    value = select(factor, ex.mul(value, growth), value)
    out = leave(value, fmt, terms, k + torch.where(factor, e, 0))
    end = torch.where(y[0] == 0, math.inf, torch.where(y[0] > 0, 0.0, math.nan))
    return special(~good, end.to(fmt.dtype), out)


@function("x")
def k0(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function K_0(x); infinite at zeros, NaN below."""
    return _second(arguments, fmt, terms, 0, scaled=False)


@function("x")
def k0e(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return exp(x) K_0(x)."""
    return _second(arguments, fmt, terms, 0, scaled=True)


@function("x")
def k1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function K_1(x); infinite at zeros, NaN below."""
    return _second(arguments, fmt, terms, 1, scaled=False)


@function("x")
def k1e(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return exp(x) K_1(x)."""
    return _second(arguments, fmt, terms, 1, scaled=True)
