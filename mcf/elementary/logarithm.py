"""Logarithms by a table of log(j/256) and the series of atanh, with bounds and special values."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import fixed, series
from mcf.elementary import working as ex
from mcf.elementary.declarations import quotient_by, scaled_inverse
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.tables import (
    TERMS,
    Components,
    _rows,
    constant,
    lookup,
    register_tables,
    rows,
)
from mcf.kernels.formats import Format

# log: mantissas are compared with multiples of 1 / LOG_STEPS between sqrt(1/2) and sqrt(2).
LOG_STEPS = 256
LOG_FIRST, LOG_LAST = 181, 363
# log: exponents of the argument; that of atanh, 2/(1 - x), may be the inverse of a subnormal
# number.
LOG_EXPONENTS = range(-1080, 1080)
# log10: powers of ten that four components may hold.
TENS = 96


@functools.cache
def log_base(base: int) -> Fraction:
    """Return log(base) for base 2 and 10, 1 for base 0 (e)."""
    return {
        0: Fraction(1),
        2: fixed.to_fraction(fixed.ln2()),
        10: fixed.to_fraction(fixed.ln10()),
    }[base]


def _declare_tables(base: int) -> None:
    """Register log(j / LOG_STEPS) at j - LOG_FIRST, and k log(2) at k - LOG_EXPONENTS[0]."""

    def nodes() -> Tensor:
        logs = (fixed.log(Fraction(j, LOG_STEPS)) for j in range(LOG_FIRST, LOG_LAST))
        return rows([fixed.to_fraction(v) / log_base(base) for v in logs])

    def exponents() -> Tensor:
        step = log_base(2) / log_base(base)
        return _rows([(k * step.numerator, step.denominator) for k in LOG_EXPONENTS])

    register_tables(**{f"log_nodes_{base}": nodes, f"log_exponents_{base}": exponents})


for _base in (0, 2, 10):
    _declare_tables(_base)
# 10**k for 0 <= k < TENS.
register_tables(tens=lambda: rows([Fraction(10**k) for k in range(TENS)]))
# -log2 of the square of (m - f) / (m + f), with |m - f| <= 1/512 and m + f >= sqrt(2).
_ATANH_BITS = 18.9
# Below _TINY, log(1 + d) = d to 4 components; it is scaled by 2**600 so that no bits are lost.
_TINY = 2.0**-250
_TINY_SHIFT = 600
_TINY_SCALE = 2.0**_TINY_SHIFT
# Shifts for float32, where a quotient d of about 2**-149 has bits below the range.
_NEAR_SHIFT = 120
_SPLIT_SHIFT = 149


def _atanh_coefficient(k: int) -> Fraction:
    """Return the k-th coefficient of (atanh(s)/s - 1) * 3 / s^2 in s^2."""
    return Fraction(3, 2 * k + 3)


def normalized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return exponent e and m = x / 2**e from sqrt(1/2) to sqrt(2), for positive normal numbers."""
    e = ex.exponent(x)
    most = 1000 if x.dtype is torch.float64 else 100
    m = x * ex.power(-e.clamp(-most, most)) * ex.power(e.clamp(-most, most) - e)
    high = m > math.sqrt(2)
    return e + high.to(torch.int64), torch.where(high, m * 0.5, m)


def parts(
    x: Components, lead: Tensor, terms: int, base: int, shift: Tensor | None = None
) -> tuple[tuple[Components, Components, Components], Tensor]:
    """Return three expansions and an exponent k: log(sum(x) * 2**shift) = (a + b + c) * 2**k.

    They are 2 atanh((m - f)/(m + f)) and, from tables, the logarithms of the node f nearest to the
    mantissa m and of the power of two; all divided by log(base).

    Args:
        x: floats in descending order, except that their sum may cancel with that of 1.
        lead: the float nearest to their sum, positive and normal.
        terms: components wanted.
        base: 0 for e, 2 or 10.
        shift: int64; it enters the second and third expansion.
    """
    e, m0 = normalized(lead)
    node = (m0 * LOG_STEPS).round()
    f = node * (1 / LOG_STEPS)
    # Scale by 2**-e in two steps, since one factor may not be representable.
    half = e >> 1
    first, second = ex.power(-half), ex.power(half - e)
    m = tuple(c * first * second for c in x)
    # m - f is exact except for its last component, so a tiny logarithm does not cancel.
    top, rest = ex.two_sum(m[0], -f)
    difference = ex.collected((top, *m[1:], rest), terms)
    near = (e == 0) & (f == 1.0)
    if shift is not None:
        # Terms next to the logarithm of a power of two are not scaled.
        near = near & (shift == 0)
    total = ex.collected((*m, f), terms)
    third = constant(Fraction(1, 3), terms, f.device)
    if f.dtype is torch.float64:
        # log(1 + d) is d to the last bit, and its powers underflow.
        tiny = near & (difference[0].abs() < _TINY)
        s = ex.div(difference, total)
        atanh = _atanh(s, s, third)
        atanh = ex.select(tiny, series.scaled(difference, _TINY_SCALE), atanh)
        lift = torch.where(tiny, _TINY_SHIFT, 0)
    else:
        # Near 1 everything is scaled except the square, which is compared with 1 and may underflow.
        lift = torch.where(near, _NEAR_SHIFT, 0)
        s = ex.div(ex.scale_all(difference, lift), total)
        atanh = _atanh(s, ex.scale_all(s, -lift), third)
    if base:
        atanh = ex.mul(atanh, constant(1 / log_base(base), terms, f.device))
    if shift is not None:
        e = e + shift
    whole = lookup(f"log_exponents_{base}", e - LOG_EXPONENTS[0], terms)
    nodes = lookup(f"log_nodes_{base}", ex.integer(node) - LOG_FIRST, terms)
    return (atanh, nodes, whole), -lift


def _atanh(s: Components, t: Components, third: Components) -> Components:
    """Return 2 s atanh(t) / t for |t| below 1/700."""
    z = ex.mul(t, t)
    tail = ex.mul(z, series.polynomial(z, _ATANH_BITS, _atanh_coefficient, _ATANH_BITS + 1))
    return series.scaled(ex.add(s, ex.mul(s, ex.mul(tail, third))), 2.0)


def scaled_log(
    x: Components, lead: Tensor, terms: int, base: int = 0, shift: Tensor | None = None
) -> tuple[Components, Tensor]:
    """Return components y and an exponent k of the logarithm, y * 2**k; see `parts`."""
    (small, node, whole), k = parts(x, lead, terms, base, shift)
    return ex.add(ex.add(small, node), whole), k


def split(m: Components, e: Tensor, terms: int) -> tuple[Components, tuple[Tensor, Tensor], Tensor]:
    """Return log(m * 2**e) 2**lift as an expansion and two floats, with 8 to 18 bits to spare.

    The floats are about the logarithms of the power of two and the node, and 2 (m - f)/(m + f); the
    expansion is the rest. m is between sqrt(1/2) and sqrt(2). lift is 0, or 600 if the logarithm is
    below 2**-250 and its last components may underflow. In float32 it scales a logarithm of a
    number near 1 to about 1.
    """
    node = (m[0] * LOG_STEPS).round()
    f = node * (1 / LOG_STEPS)
    near, wide = (e == 0) & (f == 1.0), f.dtype is torch.float64
    if wide:
        difference = ex.gathered(m[0] - f, [(0, m[1:])], terms)
        total = ex.gathered(m[0], [(0, (f,)), (1, m[1:])], terms)
        tiny = near & (difference[0].abs() < _TINY)
        lift = torch.where(tiny, _TINY_SHIFT, 0)
        lifted = difference
    else:
        difference = ex.collected((m[0] - f, *m[1:]), terms)
        total = ex.collected((*m, f), terms)
        lift = torch.where(near, (-ex.exponent(difference[0])).clamp(0, _SPLIT_SHIFT), 0)
        lifted = ex.scale_all(difference, lift)
    # The leading float of the quotient, and the exact remainder of the numerator.
    s0 = lifted[0] / total[0]
    taken = tuple(t for c in (*m, f) for t in ex.two_prod(c, -s0))
    if wide:
        # Nearly all of the first three cancels.
        ordered = (taken[0], taken[-2], *lifted[1:], *taken[1:-2], taken[-1])
        numerator = ex.gathered(lifted[0], [(0, (c,)) for c in ordered], terms, spare=True)
    else:
        numerator = ex.collected((*lifted, *taken), terms)
    left = ex.div(numerator, total)
    s = ex.add(left, s0)
    t = s if wide else ex.scale_all(s, -lift)
    z = ex.mul(t, t)
    tail = ex.mul(z, series.polynomial(z, _ATANH_BITS, _atanh_coefficient, _ATANH_BITS + 1))
    third = constant(Fraction(1, 3), terms, f.device)
    rest = ex.add(left, ex.mul(s, ex.mul(tail, third)))
    whole = lookup("log_exponents_0", e - LOG_EXPONENTS[0], TERMS + 1)
    nodes = lookup("log_nodes_0", ex.integer(node) - LOG_FIRST, TERMS + 1)
    if wide:
        tables, over = ex.two_sum(whole[0], nodes[0])
        # `over` and the second components are below 2**-43, the third below 2**-96; the rest
        # 2**-28.
        rest = series.scaled(rest, 2.0)
        firsts = (over, whole[1], nodes[1])
        groups = [*((0, (c,)) for c in firsts), (1, rest[1:]), (1, whole[2:]), (1, nodes[2:])]
        rest = ex.gathered(rest[0], groups, terms)
    else:
        tables = ex.collected((*whole, *nodes), 1)[0]
        rest = ex.collected((*whole, *nodes, -tables, *series.scaled(rest, 2.0)), terms)
    first, second = ex.two_sum(tables, 2.0 * s0)
    if wide:
        # Where log(1 + d) is d to the last bit.
        scaled = series.scaled((*difference, torch.zeros_like(f)), _TINY_SCALE)
        first, second = torch.where(tiny, scaled[0], first), torch.where(tiny, 0.0, second)
        rest = ex.select(tiny, scaled[1:], rest)
    return rest, (first, second), lift


def log_error(e: Steps, base: int = 0) -> float:
    """Return the error of 2 atanh((m - f) / (m + f)) plus two tabulated logarithms."""
    s = 1 / 512 / math.sqrt(2)
    quotient = 2 * e.collect() + e.div()
    square = 2 * quotient + e.mul()
    p = e.polynomial(s * s * 1.001, 18.9, _atanh_coefficient, 19.9, square)
    tail = square + p + e.mul()
    share = s * s / 3 * 1.001
    near = quotient + share * (tail + e.constant() + 2 * e.mul() + quotient) + e.add()
    if base:
        near += e.mul() + e.constant()
    # f = 1: the rest is zeros. Then f next to 1, then x beyond sqrt(1/2) and sqrt(2).
    worst = near + 2 * e.add()
    for j in range(LOG_FIRST, LOG_LAST):
        f = j / LOG_STEPS
        if f != 1:
            node, part = abs(math.log(f)), 2 * math.atanh(1 / 512 / (2 * f - 1 / 512))
            total = node * e.constant() + part * near
            worst = max(worst, total / (node - part) + 2 * e.add())
    half = math.log(2) / 2
    total = (2 * half + half) * e.constant() + 0.003 * near + (half + 0.003) * e.add()
    return max(worst, total / (half - 0.003) + e.add())


def log1p_error(e: Steps, z: float) -> float:
    """Return the error of log(1 + z), z > 0; z / ((1 + z) log(1 + z)) is at most 1."""
    return z + log_error(e)


def _log(x: Components, fmt: Format, terms: int, base: int) -> Components:
    y = ex.enter(x, fmt)
    good = (y[0] > 0) & (y[0] < math.inf)
    y = ex.sanitized(y, good)
    # Subnormal numbers have no exponent of their own.
    shift = torch.where(y[0] < working().low, working().lift, 0)
    y = ex.scale_all(y, shift)
    result, k = scaled_log(y, y[0], ex.working_terms(fmt, terms), base, -shift)
    out = ex.leave(result, fmt, terms, k)
    # -inf at 0, NaN below, infinity and NaN themselves.
    beyond = torch.where(x[0] == 0, -math.inf, torch.where(x[0] < 0, math.nan, x[0]))
    return ex.special(~good, beyond, out)


@function("x", torch=("log",), bound=log_error, worst=2.81, slope=("div",))
def log(x: Components, fmt: Format, terms: int) -> Components:
    """Return the natural logarithm; -inf at 0, NaN below."""
    return _log(x, fmt, terms, 0)


@function(
    "x",
    torch=("log2",),
    bound=lambda e: log_error(e, 2),
    worst=3.03,
    derivative=lambda x, of: 1 / (x * log_base(2)),
    slope=scaled_inverse,
)
def log2(x: Components, fmt: Format, terms: int) -> Components:
    """Return the logarithm to base 2, log(x) / log(2); exact for powers of two."""
    return _log(x, fmt, terms, 2)


@function(
    "x",
    torch=("log10",),
    bound=lambda e: log_error(e, 10),
    worst=1.75,
    derivative=lambda x, of: 1 / (x * log_base(10)),
    slope=scaled_inverse,
)
def log10(x: Components, fmt: Format, terms: int) -> Components:
    """Return the logarithm to base 10, log(x) / log(10); exact for powers of ten."""
    out = _log(x, fmt, terms, 10)
    k = out[0].to(working().format.dtype).round()
    possible = (k >= 0) & (k < TENS) & (x[0] >= 1)
    ten = lookup("tens", torch.where(possible, k, 0.0).to(torch.int64), TERMS + 1)
    y = ex.sanitized(ex.enter(x, fmt), possible)
    rest = ex.collected((*y, *ex.minus(ten)), TERMS)
    exactly = possible
    for c in rest:
        exactly = exactly & (c == 0)
    return ex.special(exactly, k.to(fmt.dtype), out)


@function("x", torch=("log1p",), bound=log_error, worst=1.56, slope=quotient_by("add"))
def log1p(x: Components, fmt: Format, terms: int) -> Components:
    """Return log(1 + x), accurate for small x too; -inf at -1, NaN below."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    second = y[1] if len(y) > 1 else torch.zeros_like(y[0])
    # Test x > -1 and x < -1; for normalised components the first two suffice.
    above = (y[0] > -1) | ((y[0] == -1) & (second > 0))
    below = (y[0] < -1) | ((y[0] == -1) & (second < 0))
    good = above & (y[0] < math.inf)
    y = ex.sanitized(y, good)
    one = torch.ones_like(y[0])
    # If x0 is -1, the 1 cancels, and the rest may be as small as any number.
    alone = y[0] == -1.0
    zero = torch.zeros_like(one)
    floats = ex.select(alone, (*y[1:], zero, zero), (one, *y))
    shift = torch.where(alone & (second < working().low), working().lift, 0)
    floats = ex.scale_all(floats, shift)
    lead = ex.collected(floats, 1)[0]
    result, k = scaled_log(floats, lead, w, 0, -shift)
    out = ex.leave(result, fmt, terms, k)
    beyond = torch.where(below, math.nan, torch.where(x[0] == -1, -math.inf, x[0]))
    return ex.special((x[0] == 0) | ~good, beyond.to(fmt.dtype), out)
