"""Two components, hi + lo: an expansion, or a component and the compensation of its errors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.algorithms import fast_two_sum, grow, mul, stochastic
from mcf.kernels.algorithms.primitives import LARGEST, ZERO, rn, rv, where
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import Format
from mcf.optim.storage import values
from mcf.optim.storage.base import Stale, Storage, as_one, as_stored
from mcf.optim.storage.values import Value


def kahan(hi, lo, update):
    """Fast2Sum(hi, RN(lo + update)), Kahan's summation (Kahan 1965, doi:10.1145/363707.363723).

    With registers wider than the components it is exact up to the rounding of the low component,
    also where |update| > |hi|; with strict arithmetic only where |update| <= |hi|.
    """
    return fast_two_sum(hi, rn(lo + update))


def collage(hi, lo, update):
    """Grow((hi, lo), update) of the Collage paper (arXiv:2405.03637), with TwoSum at its start."""
    return grow(hi, lo, update)


def finite(hi, lo):
    """0 next to a leading component that is not finite, which alone determines the sum; else lo.

    If a sum overflows, the computed remainder is NaN or the other infinity.
    """
    return where(rn(hi - hi) == ZERO, lo, ZERO)


def kahan_held(hi, lo, update):
    """`kahan` for an expansion tensor: the low component is 0 where the leading one is infinite.

    An optimizer's own low word is then the other infinity or NaN. (`collage` makes NaN of an
    overflow in both components.)
    """
    hi, lo = kahan(hi, lo, update)
    return hi, finite(hi, lo)


def shrink_collage(hi, lo, beta, beta_lo):
    """Mul((beta, beta_lo), (hi, lo)), the Collage paper's second moment."""
    return mul(beta, beta_lo, hi, lo)


def shrink_joined(hi, lo, beta, beta_lo):
    """beta (hi + lo) in a wide register, split into its rounding and the rest."""
    return split(rn(beta * rn(hi + lo)))


def decay_collage(hi, lo, beta, beta_lo, increment):
    """Grow(Mul((beta, beta_lo), (hi, lo)), increment)."""
    hi, lo = mul(beta, beta_lo, hi, lo)
    return grow(hi, lo, increment)


def decay_joined(hi, lo, beta, beta_lo, increment):
    """beta (hi + lo) + increment in a wide register, split into its rounding and the rest."""
    return split(rn(rn(beta * rn(hi + lo)) + increment))


def split(value):
    """Return a wide register's rounding and the rest; an infinity's rest is infinite, not NaN."""
    hi = rv(value)
    return hi, rn(value - where(hi > LARGEST, LARGEST, hi))


def joined(hi, lo):
    """hi + lo in a wide register."""
    return rn(hi + lo)


class Pair(Storage):
    """A number in two tensors of the parameter's format."""

    name = "pair"
    parameter_bytes = 2
    first_bytes = None
    second_bytes: float | None = 4
    hidden = "param_lo"
    has_low = True
    split = True
    roundings = (None, stochastic)

    def hidden_format(self, component: Format) -> Format:
        return component

    def moment(self, name: str, fmt: Format) -> dict[str, Format]:
        return {name: fmt, f"{name}_lo": fmt}

    def accumulate(self, strict: bool, held: bool, random: bool) -> Algorithm:
        if strict:
            return collage
        # With float32 registers Kahan's form is as exact as Grow, in fewer operations.
        return kahan_held if held else kahan

    def loaded(self, strict: bool) -> Algorithm:
        return super().loaded(strict) if strict else joined

    def second_moment(self, strict: bool) -> dict[str, Algorithm]:
        return {
            "decay_and_add": decay_collage if strict else decay_joined,
            "shrink": shrink_collage if strict else shrink_joined,
            "second_moment_components": as_one if strict else split,
            "stored_bits": as_stored,
        }

    def keep(self, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        hi, lo = tensors
        super().keep(value, [hi])
        rest = values.less(value, hi)
        lo.copy_(values.rounded(rest, lo.dtype))
        return values.less(rest, lo)[0]

    def stale(self, p: Tensor, hidden: Tensor, component: Format, strict: bool) -> Stale:
        # A step leaves at most half a unit in the last place. Kahan's form in 16-bit arithmetic, if
        # the update is larger than the weight, leaves up to one and a half units and a rounding.
        most = 2.0 if strict else 0.5
        value = p.double()
        smallest = float(component.min_subnormal)
        exponent = torch.frexp(torch.where(value.isfinite(), value, 0.0)).exponent - component.p
        unit = ((exponent.long() + 1023) << 52).view(torch.float64)
        unit = torch.where(value == 0, 0.0, most * unit).clamp(min=smallest)
        same = (hidden.double().abs() <= unit) | ~value.isfinite()
        return ~same, torch.zeros_like(hidden)


class Kahan(Pair):
    """A pair in Kahan's form in every arithmetic; for parameters only."""

    name = "kahan"
    second_bytes = None

    def accumulate(self, strict: bool, held: bool, random: bool) -> Algorithm:
        return kahan_held if held and not strict else kahan


PAIR = Pair()
KAHAN = Kahan()
