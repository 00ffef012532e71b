"""Storages in one tensor: a component, one rounded stochastically, or a float32."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.algorithms.primitives import ZERO, bits, rn
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import BF16, FP32, Format
from mcf.optim.storage import values
from mcf.optim.storage.base import Stale, Storage
from mcf.optim.storage.values import Value


def single(hi, lo, update):
    """Return RN(hi + update), for one component."""
    return rn(hi + update), lo


def shrink_single(hi, lo, beta, beta_lo):
    """Return RN(beta hi), for one component."""
    return rn(beta * hi), lo


def decay_single(hi, lo, beta, beta_lo, increment):
    """Return RN(RN(beta hi) + increment), for one component."""
    return rn(rn(beta * hi) + increment), lo


def as_one(value):
    """Return a value as one component."""
    return value, ZERO


def leading(hi, lo):
    """Return the leading component."""
    return hi


def as_stored(second, kept):
    """Return the bits of a second moment as stored."""
    return bits(kept)


def moved_components(hi, lo, new_hi, new_lo):
    """Return the difference of two stored numbers, component by component."""
    return (new_hi - hi) + (new_lo - lo)


class Single(Storage):
    """A number in one tensor, of the parameter's format."""

    def accumulate(self, strict: bool, held: bool, random: bool) -> Algorithm:
        return single

    def loaded(self, strict: bool) -> Algorithm:
        return leading

    def moved(self) -> Algorithm:
        return moved_components

    def second_moment(self, strict: bool) -> dict[str, Algorithm]:
        return {
            "decay_and_add": decay_single,
            "shrink": shrink_single,
            "second_moment_components": as_one,
            "stored_bits": as_stored,
        }


SINGLE = Single()


class Stochastic(Single):
    """A moment in bf16, rounded stochastically; for moments only.

    The random bits are those of the element's moments (`mcf.kernels.streams`), 16 for a first and
    16 others for a second moment. All second moments of an element are rounded by the same bits.
    AMSGrad's maximum is therefore the largest stored value, because rounding keeps the order.
    """

    name = "stochastic"
    parameter_bytes = None
    wide = True
    stochastic = True

    def format(self, component: Format) -> Format:
        return BF16


STOCHASTIC = Stochastic()


class Float32(Single):
    """A number in float32; the visible parameter is its rounding."""

    name = "float32"
    parameter_bytes = 4
    first_bytes = 4
    second_bytes = 4
    hidden = "master_param"
    wide = True
    visible = False
    roundings = ()

    def format(self, component: Format) -> Format:
        return FP32

    def hidden_format(self, component: Format) -> Format:
        return FP32

    def value(self, tensors: Sequence[Tensor]) -> Value:
        return values.exact(tensors[-1])

    def register(self, tensors: Sequence[Tensor], wide: torch.dtype) -> Tensor:
        found: Tensor = tensors[-1].detach().to(wide)
        return found

    def components(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (tensors[-1],)

    def keep(self, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        *visible, wide = tensors
        wide.copy_(values.rounded(value, wide.dtype))
        for p in visible:
            p.copy_(values.rounded(values.exact(wide), p.dtype))
        return values.less(value, wide)[0]

    def start(self, p: Tensor, like: Tensor, component: Format) -> Tensor:
        return super().start(p, like, component).copy_(p)

    def stale(self, p: Tensor, hidden: Tensor, component: Format, strict: bool) -> Stale:
        visible = hidden.to(p.dtype)
        same = (visible == p) | (visible.isnan() & p.isnan())
        return ~same, p.to(hidden.dtype)


FLOAT32 = Float32()
