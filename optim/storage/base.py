"""What a storage says: how one tensor of an optimizer, a parameter or a moment, is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.algorithms import stochastic
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import Format
from mcf.optim.storage import values
from mcf.optim.storage.values import Value

# A tensor of truth, whether what is beside a weight belongs to another, and what begins anew there.
Stale = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Coding:
    """How a moment becomes a code.

    Args:
        decode: the number of a code; of a first moment after that the second moment as stored.
        encode: the code of a number and random bits; of a first moment after those the second
            moment, as computed and as stored.
        relative: whether there is a second moment that both read.
    """

    decode: Algorithm
    encode: Algorithm
    relative: bool


class Storage:
    """One way to keep a number for each element, and everything that depends on it.

    As a parameter: the model's tensor, and the state `hidden` beside it, if any. As a moment: a
    state of the moment's name, and further ones whose names begin with it. This class is a number
    in one tensor; others override what is different. To add a storage is to write one, and to list
    it in `mcf.optim.storage.strategies`.

    Attributes:
        name: what `mcf.optim.Precision` calls it.
        parameter_bytes: bytes beside those of a 16-bit parameter; None where no parameter is kept
            so.
        first_bytes: bytes of a first moment; None where none is kept so.
        second_bytes: bytes of a second moment; None where none is kept so.
        hidden: the state beside a parameter, "" for none.
        has_low: whether that, or a second tensor of a moment, is a further component.
        wide: whether only float32 registers compute what is kept.
        bf16_only: whether it is made of the bits of a bf16 parameter.
        visible: whether a kernel reads the parameter itself, and not what is hidden in its place.
        split: whether a kernel computes components, the leading one of which comes out rounded.
        roundings: how a kernel rounds the words of a parameter at random, in the order of its
            tensors; None for a word that is rounded to nearest. Empty where no word is rounded
            at random.
        stochastic: whether a moment is rounded up or down at random.
        coding: how a moment becomes a code of few bits; None where it is a number.
    """

    name = "single"
    parameter_bytes: float | None = 0
    first_bytes: float | None = 2
    second_bytes: float | None = 2
    hidden = ""
    has_low = False
    wide = False
    bf16_only = False
    visible = True
    split = False
    roundings: tuple[Algorithm | None, ...] = (stochastic,)
    stochastic = False
    coding: Coding | None = None

    def __repr__(self) -> str:
        return self.name

    # -- formats -----------------------------------------------------------------------------

    def format(self, component: Format) -> Format:
        """The format of a moment's components, beside parameters of a format."""
        return component

    def hidden_format(self, component: Format) -> Format:
        """The format of the state beside a parameter."""
        raise NotImplementedError

    def moment(self, name: str, fmt: Format) -> dict[str, Format]:
        """The states that keep a moment, by name, whose components have a format."""
        return {name: fmt}

    def names(self, name: str, state: Mapping[str, Any]) -> list[str]:
        """The states among some that keep a moment so."""
        return [n for n in (name, f"{name}_lo") if n in state]

    # -- slots of rules: how a kernel loads a value and stores an update -----------------------

    def accumulate(self, strict: bool, held: bool, random: bool) -> Algorithm:
        """Return the algorithm by which a parameter takes an update.

        Args:
            strict: whether every operation is rounded; see `mcf.optim.storage.strategy_arithmetic`.
            held: whether the parameter is an expansion; see there.
            random: whether its words are rounded by `roundings` when they are stored.
        """
        raise NotImplementedError

    def loaded(self, strict: bool) -> Algorithm:
        """A parameter or second moment as one register."""
        raise NotImplementedError

    def moved(self) -> Algorithm:
        """How far a stored parameter moved."""
        raise NotImplementedError

    def second_moment(self, strict: bool) -> dict[str, Algorithm]:
        """How a second moment decays and grows: the slots of that name."""
        raise NotImplementedError

    # -- exact values ------------------------------------------------------------------------

    def value(self, tensors: Sequence[Tensor]) -> Value:
        """The exact number that is kept in a parameter (a moment) and what is beside it."""
        return values.exact(*tensors)

    def register(self, tensors: Sequence[Tensor], wide: torch.dtype) -> Tensor:
        """The same rounded once to a wide dtype; it may share memory with the tensors."""
        found: Tensor = tensors[0].detach().to(wide)
        return found

    def components(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Floating-point tensors whose sum the value is, the largest first."""
        return tuple(tensors)

    def keep(self, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        """Write a value into tensors, rounded to nearest; what is left of it, in float64."""
        tensors[0].copy_(values.rounded(value, tensors[0].dtype))
        return values.less(value, tensors[0])[0]

    def start(self, p: Tensor, like: Tensor, component: Format) -> Tensor:
        """The state beside a parameter that nobody has stepped; `like` is laid out as it is."""
        return torch.zeros_like(
            like, dtype=self.hidden_format(component).dtype, memory_format=torch.preserve_format
        )

    def stale(self, p: Tensor, hidden: Tensor, component: Format, strict: bool) -> Stale:
        """Where what is hidden beside a weight cannot belong to it, and what begins anew there."""
        raise NotImplementedError
