"""exp and expm1 of expansions, by a table of 2**(j/256) and a short series."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import fixed, series
from mcf.elementary.format import working
from mcf.elementary.ordered_sums import Sums
from mcf.elementary.tables import (
    EXP_CHUNK,
    EXP_CHUNKS,
    EXP_STEPS,
    EXPM1_LIMIT,
    Components,
    constant,
    lookup,
    table,
)
from mcf.elementary.working import head, integer, plus, power, scale_all, select, two_prod
from mcf.kernels.formats import FP32

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
        return k, tuple(t for c in step for t in two_prod(k, -c.expand(k.shape)))
    parts = table("exp_chunks", k.device)[: min(EXP_CHUNKS, (53 * terms + 16) // EXP_CHUNK + 1)]
    return k, tuple(k * -c for c in parts)


def small(r: Components) -> Components:
    """Return exp(r) - 1 for |r| slightly above log(2)/512 at most."""
    tail = series.polynomial(r, _BITS, _coefficient, _BITS + 1)
    return plus(r, series.scaled(ex.mul(r, ex.mul(r, tail)), 0.5))


def combined(k: Tensor, r: Components) -> tuple[Components, Tensor]:
    """Return components of about 1 and an exponent: exp(k log(2)/256 + r) = y * 2**e."""
    whole = integer(k)
    t = lookup("exp_powers", whole & (EXP_STEPS - 1), len(r))
    return plus(t, ex.mul(t, small(r))), whole >> 8


def reduced(x: Components, floats: Components, terms: int) -> Components:
    """Return the sum of x and the floats of `steps`, slightly above log(2)/512 at most.

    The error is at most u**terms / 4; for four components it is as much relative to the sum.

    Args:
        x: floats in any order, except that the first is the `lead` of `steps`.
        floats: the result of `steps`.
        terms: components wanted.
    """
    sums = Sums(x[0] + floats[0], terms)
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


def exp(x: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components y of about 1 and an exponent e with e**x = y * 2**e.

    x is any sum of up to 8 floats; the first is close to the sum and at most 1100.
    """
    k, floats = steps(x[0], terms)
    return combined(k, reduced(x, floats, terms))


def expm1(x: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent: exp(x) - 1 = y * 2**e, for -200 <= x <= 1100."""
    steps_taken, floats = steps(x[0], terms)
    p = small(reduced(x, floats, terms))
    k = integer(steps_taken)
    t = lookup("exp_powers", k & (EXP_STEPS - 1), terms)
    e = k >> 8
    # The 1 as a multiple of 2**e; beyond the limit it is below the last bit.
    most = working().one
    one = torch.where(e < most, power(-e.clamp(-most, most)), 0.0)
    base = ex.add(t, -one)
    near = k.abs() <= EXPM1_LIMIT
    index = k.clamp(-EXPM1_LIMIT, EXPM1_LIMIT)
    exactly = lookup("exp_powers_minus_one", index + EXPM1_LIMIT, terms)
    base = select(near, scale_all(exactly, -e.clamp(-2, 2)), base)
    y = ex.add(base, ex.mul(t, p))
    return select(k == 0, head(p, terms), y), e
