"""A bf16 parameter and the 16 or 8 bits below it: a float32, or the upper 24 bits of one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.algorithms import (
    join8,
    join16,
    split8,
    split16,
    stochastic8_high,
    stochastic8_low,
)
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import INT8, INT16, Format
from mcf.optim.storage import values
from mcf.optim.storage.base import Stale, Storage
from mcf.optim.storage.values import Value


def whole16(hi, low, update):
    """Add the update to the float32 of 16 + 16 bits and split it again: a float32 master weight."""
    return split16(rn(join16(hi, low) + update))


def whole8(hi, low, update):
    """Add the update to the number of 16 + 8 bits, round to 24 bits and split it again."""
    return split8(rn(join8(hi, low) + update))


def whole(hi, low, update):
    """Return the number of 16 + 8 bits plus the update, once for each of its words."""
    x = rn(join8(hi, low) + update)
    return x, x


def moved16(hi, low, new_hi, new_low):
    """Return the difference of two stored numbers of 16 + 16 bits."""
    return join16(new_hi, new_low) - join16(hi, low)


def moved8(hi, low, new_hi, new_low):
    """Return the difference of two stored numbers of 16 + 8 bits."""
    return join8(new_hi, new_low) - join8(hi, low)


class Split(Storage):
    """A parameter and integers that extend it; for parameters only."""

    first_bytes = None
    second_bytes = None
    hidden = "param_bits"
    wide = True
    bf16_only = True
    split = True

    def __init__(
        self,
        name: str,
        bits: Format,
        add: Algorithm,
        join: Algorithm,
        moved: Algorithm,
        roundings: tuple[Algorithm, ...] = (),
    ) -> None:
        """Take the name, the format of the integers, and the algorithms for the slots of rules."""
        self.name = name
        self.parameter_bytes = bits.itemsize
        self._bits, self._add, self._join, self._moved = bits, add, join, moved
        self.roundings = roundings

    def hidden_format(self, component: Format) -> Format:
        return self._bits

    def accumulate(self, strict: bool, held: bool, random: bool) -> Algorithm:
        # Stochastic rounding of the sum may carry into the leading word, so both words need the
        # sum.
        return whole if random else self._add

    def loaded(self, strict: bool) -> Algorithm:
        return self._join

    def moved(self) -> Algorithm:
        return self._moved

    def components(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (values.join(*tensors),)

    def keep(self, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        p, bits = tensors
        high, low = values.split(value, bits.dtype)
        p.copy_(high)
        bits.copy_(low)
        return values.less(value, values.join(high, low))[0]

    def stale(self, p: Tensor, hidden: Tensor, component: Format, strict: bool) -> Stale:
        # Any bits give a number near the weight, except for some next to 0 and infinity.
        high, _ = values.split(values.exact(values.join(p, hidden)), hidden.dtype)
        same = (high == p) | p.isnan()
        return ~same, torch.zeros_like(hidden)


SPLIT16 = Split("split16", INT16, whole16, join16, moved16)
SPLIT8 = Split("split8", INT8, whole8, join8, moved8, (stochastic8_high, stochastic8_low))
