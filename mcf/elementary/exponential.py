"""exp and expm1 of float64 expansions, by a table of 2**(j/256) and a short series."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import series
from mcf.elementary.tables import (
    EXP_CHUNK,
    EXP_CHUNKS,
    EXP_STEPS,
    EXPM1_LIMIT,
    Components,
    lookup,
    table,
)
from mcf.elementary.working import head, power, scale_all, select
from mcf.kernels import expansions as ex

# Beyond, exp is 0 or infinite in every format.
LIMIT = 1100.0
_STEPS_PER_UNIT = EXP_STEPS / math.log(2)
# |r| <= log(2)/512 and a little.
_BITS = 9.5


def _coefficient(k: int) -> Fraction:
    """Of (exp(r) - 1 - r) / (r^2 / 2)."""
    return Fraction(2, math.factorial(k + 2))


def reduced(x: Components, terms: int) -> tuple[Tensor, Components, Components]:
    """Integer k, r and exp(r) - 1 with x = k log(2)/256 + r; x may be any sum of floats <= 1100.

    The multiple of log(2) is taken from x before anything is rounded, so r has an absolute error
    below 2**-(53 * terms + 8), whatever the magnitude of x; where k = 0 it is x itself.
    """
    k = (x[0] * _STEPS_PER_UNIT).round()
    parts = table("exp_chunks", k.device)[: min(EXP_CHUNKS, (53 * terms + 16) // EXP_CHUNK + 1)]
    r = ex.renormalize((*x, *(k * -c for c in parts)), terms)
    tail = series.polynomial(r, _BITS, _coefficient)
    half = series.scaled(ex.mul(r, ex.mul(r, tail)), 0.5)
    return k.to(torch.int64), r, ex.add(r, half)


def exp(x: Components, terms: int) -> tuple[Components, Tensor]:
    """Components of about 1 and an exponent: exp(x) = y * 2**e, for |x| <= 1100."""
    k, _, p = reduced(x, terms)
    t = lookup("exp_powers", k & (EXP_STEPS - 1), terms)
    return ex.add(t, ex.mul(t, p)), k >> 8


def expm1(x: Components, terms: int) -> tuple[Components, Tensor]:
    """Components and an exponent: exp(x) - 1 = y * 2**e, for -200 <= x <= 1100."""
    k, _, p = reduced(x, terms)
    t = lookup("exp_powers", k & (EXP_STEPS - 1), terms)
    e = k >> 8
    # The 1 as a multiple of 2**e; beyond 2**400 it is below the last bit.
    one = torch.where(e < 400, power(-e.clamp(-400, 400)), 0.0)
    base = ex.add(t, -one)
    near = k.abs() <= EXPM1_LIMIT
    index = k.clamp(-EXPM1_LIMIT, EXPM1_LIMIT)
    exactly = lookup("exp_powers_minus_one", index + EXPM1_LIMIT, terms)
    base = select(near, scale_all(exactly, -e.clamp(-2, 2)), base)
    y = ex.add(base, ex.mul(t, p))
    return select(k == 0, head(p, terms), y), e
