"""exp and expm1 by a table of 2**(j/256) and a short series, with bounds and special values."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import fixed, series, tables
from mcf.elementary import working as ex
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import WORKING, working
from mcf.elementary.operator import function
from mcf.elementary.tables import (
    Components,
    _chunks,
    constant,
    lookup,
    register_tables,
    rows,
    table,
)
from mcf.kernels.formats import FP32, Format

# exp: arguments are reduced to |r| <= log(2) / (2 * EXP_STEPS).
EXP_STEPS = 256
# exp: bits of the parts of log(2) / EXP_STEPS, whose products with an integer are exact.
EXP_CHUNK = 32
EXP_CHUNKS = 8
# expm1: the table has 2**(k / EXP_STEPS) - 1 for |k| up to this.
EXPM1_LIMIT = 512


def _powers(steps: range) -> list[Fraction]:
    factor, value, values = fixed.exp(fixed.ln2() // EXP_STEPS), fixed.ONE, []
    for _ in range(EXP_STEPS):
        values.append(value)
        value = value * factor >> fixed.BITS
    return [
        fixed.to_fraction(values[k % EXP_STEPS]) * Fraction(2) ** (k // EXP_STEPS) for k in steps
    ]


register_tables(
    # 2**(j / EXP_STEPS) for 0 <= j < EXP_STEPS.
    exp_powers=lambda: rows(_powers(range(EXP_STEPS))),
    # 2**(k / EXP_STEPS) - 1 at index k + EXPM1_LIMIT.
    exp_powers_minus_one=lambda: rows(
        [p - 1 for p in _powers(range(-EXPM1_LIMIT, EXPM1_LIMIT + 1))]
    ),
    # Parts of log(2) / EXP_STEPS, EXP_CHUNK bits each, largest first.
    exp_chunks=lambda: _chunks(
        fixed.to_fraction(fixed.ln2()) / EXP_STEPS, 8, EXP_CHUNK, EXP_CHUNKS
    ),
)
_STEPS_PER_UNIT = EXP_STEPS / math.log(2)
# -log2 of the bound of |r|, slightly above log(2)/512.
_BITS = 9.5


def _coefficient(k: int) -> Fraction:
    """Return the k-th coefficient of (exp(r) - 1 - r) / (r^2 / 2)."""
    return Fraction(2, math.factorial(k + 2))


def steps(lead: Tensor, terms: int) -> tuple[Tensor, Components]:
    """Return the whole k nearest to lead / (log(2)/256), and floats that sum to -k log(2)/256.

    Their error is below 2**-8 u**terms, whatever the magnitude of `lead`, which is at most 1100 in
    float64 and 200 in float32.
    """
    k = (lead * _STEPS_PER_UNIT).round()
    if working().format is FP32:
        # One more component than computed with; the products are exact as two floats.
        step = constant(fixed.to_fraction(fixed.ln2()) / EXP_STEPS, terms + 1, k.device)
        return k, tuple(t for c in step for t in ex.two_prod(k, -c.expand(k.shape)))
    parts = table("exp_chunks", k.device)[: min(EXP_CHUNKS, (53 * terms + 16) // EXP_CHUNK + 1)]
    return k, tuple(k * -c for c in parts)


def small(r: Components) -> Components:
    """Return exp(r) - 1 for |r| slightly above log(2)/512 at most."""
    tail = series.polynomial(r, _BITS, _coefficient, _BITS + 1)
    return ex.plus(r, series.scaled(ex.mul(r, ex.mul(r, tail)), 0.5))


def combined(k: Tensor, r: Components) -> tuple[Components, Tensor]:
    """Return components of about 1 and an exponent: exp(k log(2)/256 + r) = y * 2**e."""
    whole = ex.integer(k)
    t = lookup("exp_powers", whole & (EXP_STEPS - 1), len(r))
    return ex.plus(t, ex.mul(t, small(r))), whole >> 8


def reduced(x: Components, floats: Components, terms: int) -> Components:
    """Return the sum of x and the floats of `steps`, slightly above log(2)/512 at most.

    The error is at most u**terms / 4; for four components it is as much relative to the sum.

    Args:
        x: floats in any order, except that the first is the `lead` of `steps`.
        floats: the result of `steps`.
        terms: components wanted.
    """
    sums = ex.Sums(x[0] + floats[0], terms)
    for c in x[1:]:
        sums.add(c, 0)
    for k, c in enumerate(floats[1:], 1):
        if working().format is FP32:
            # A product with component j is at most 2**(7 - 24 j), its error 2**(-18 - 24 j): floats
            # 2 j and 2 j + 1. A sum is at most 2**(-9 - 24 place).
            sums.add(c, (k - 1) // 2)
        else:
            # The product is at most 2**(11 - EXP_CHUNK k), and a sum at most 2**(-9 - 53 place).
            sums.add(c, (EXP_CHUNK * k - 20) // 53)
    return sums.total()


def scaled_exp(x: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components y of about 1 and an exponent e with e**x = y * 2**e.

    x is any sum of up to 8 floats; the first is close to the sum and at most 1100.
    """
    k, floats = steps(x[0], terms)
    return combined(k, reduced(x, floats, terms))


def scaled_expm1(x: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent: exp(x) - 1 = y * 2**e, for -200 <= x <= 1100."""
    steps_taken, floats = steps(x[0], terms)
    p = small(reduced(x, floats, terms))
    k = ex.integer(steps_taken)
    t = lookup("exp_powers", k & (EXP_STEPS - 1), terms)
    e = k >> 8
    # The 1 as a multiple of 2**e; beyond the limit it is below the last bit.
    most = working().one
    one = torch.where(e < most, ex.power(-e.clamp(-most, most)), 0.0)
    base = ex.add(t, -one)
    near = k.abs() <= EXPM1_LIMIT
    index = k.clamp(-EXPM1_LIMIT, EXPM1_LIMIT)
    exactly = lookup("exp_powers_minus_one", index + EXPM1_LIMIT, terms)
    base = ex.select(near, ex.scale_all(exactly, -e.clamp(-2, 2)), base)
    y = ex.add(base, ex.mul(t, p))
    return ex.select(k == 0, ex.head(p, terms), y), e


# log(2) / 512, plus the rounding of the multiple of log(2) / 256.
_REST = math.log(2) / 512 * (1 + 2.0**-30)
_GROWTH = math.expm1(_REST)


def _reduced_error(e: Steps) -> float:
    """Return the absolute error of x - k log(2) / 256, with log(2) truncated at 2**-8 u^n.

    Below four components: the first place of the sum is below 2**-9.4. Each of at most five floats
    (three if three components are wanted) passes half of its last bit to the next place, and so on.
    In the last place there are six roundings of at most 2**-7 u^n. Four components have one place
    more. In float32 these are seven roundings of at most 2**-8 u^n.
    """
    own = e.collect() * _REST if e.terms == tables.TERMS else 2.0**-4 * e.constant()
    return own + 2.0**-8 * e.constant()


def _small_error(e: Steps) -> float:
    """Return the error of exp(r) - 1 = r + r (r p(r)) / 2, for an exact r."""
    p = e.polynomial(_REST, 9.5, _coefficient, 10.5, 0.0)
    share = _REST / 2 * math.exp(_REST) / (1 - _REST)
    return e.plus() + share * (p + 2 * e.mul())


def exp_error(e: Steps, argument: float = 0.0) -> float:
    """Return the error of t + t (exp(r) - 1), with an absolute error of the argument."""
    share = _GROWTH / (1 - _GROWTH)
    return (
        e.constant() + share * (e.mul() + _small_error(e)) + e.plus() + _reduced_error(e) + argument
    )


def expm1_error(e: Steps) -> float:
    """Return the error of (t - 1) + t (exp(r) - 1), the difference from a table or a sum."""
    small, reduced = _small_error(e), _reduced_error(e)
    worst = small + e.collect()
    # For very negative arguments the exponential is left out, for large ones the 1.
    limits = WORKING[e.fmt]
    left = math.exp(limits.least) + 2.0**-limits.one
    for k in range(1, 2 * EXPM1_LIMIT):
        for sign in (1, -1):
            t = 2.0 ** (sign * k / EXP_STEPS)
            base, step = abs(t - 1), t * _GROWTH
            own = e.constant() if k <= EXPM1_LIMIT else e.constant() * t / base + e.add()
            total = base * own + step * (e.constant() + e.mul() + small) + t * reduced
            worst = max(worst, total / (base - step) + e.add())
    return worst + left


@function("x", torch=("exp",), bound=exp_error, worst=0.5, slope=("exp",))
def exp(x: Components, fmt: Format, terms: int) -> Components:
    """Return e**x; 0 at -inf."""
    y = ex.enter(x, fmt)
    good = y[0].abs() <= working().exp_limit
    result, e = scaled_exp(ex.sanitized(y, good, 0.0), ex.working_terms(fmt, terms))
    out = ex.leave(result, fmt, terms, e)
    # exp(inf) = inf, exp(-inf) = 0, exp(nan) = nan.
    beyond = torch.where(x[0] < 0, 0.0, x[0] * math.inf)
    return ex.special(~good, beyond.to(fmt.dtype), out)


@function(
    "x",
    torch=("expm1",),
    bound=expm1_error,
    worst=0.98,
    derivative=lambda x, of: torch.exp(x),
    slope=("exp",),
)
def expm1(x: Components, fmt: Format, terms: int) -> Components:
    """Return e**x - 1, accurate for small x too."""
    y = ex.enter(x, fmt)
    good = (y[0] <= working().exp_limit) & (y[0] >= working().least)
    result, e = scaled_expm1(ex.sanitized(y, good, 0.0), ex.working_terms(fmt, terms))
    out = ex.leave(result, fmt, terms, e)
    beyond = torch.where(x[0] < 0, -1.0, x[0] * math.inf)
    out = ex.special(~good, beyond.to(fmt.dtype), out)
    return ex.special(x[0] == 0, x[0], out)
