"""A storage, the format of one tensor of an optimizer, and the storages that need one tensor each.

They keep a component, one rounded stochastically, or a float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.algorithms import stochastic
from mcf.kernels.algorithms.primitives import ZERO, bits, rn
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import BF16, FP32, Format
from mcf.optim.storage import values
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


# A mask of elements whose state does not belong to the weight, and the state's reset values.
Stale = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Coding:
    """The conversion of a moment to a code.

    Args:
        decode: computes the number from a code and, for a first moment, the stored second moment.
        encode: computes the code from a number, random bits and, for a first moment, the second
            moment as computed and as stored.
        relative: whether both read a second moment.
    """

    decode: Algorithm
    encode: Algorithm
    relative: bool


class Storage:
    """A way to store one number per element, and everything that depends on it.

    As a parameter it is the model's tensor, and the state `hidden` next to it, if any. As a moment
    it is a state of the moment's name, and further ones whose names begin with it. This class
    stores a number in one tensor; subclasses override the differences. To add a storage, write a
    subclass and list it in `mcf.optim.storage.strategies`.

    Attributes:
        name: its name in `mcf.optim.Precision`.
        parameter_bytes: bytes in addition to a 16-bit parameter; None if not for parameters.
        first_bytes: bytes of a first moment; None if not for first moments.
        second_bytes: bytes of a second moment; None if not for second moments.
        hidden: the state next to a parameter, "" for none.
        has_low: whether that state, or a second tensor of a moment, is a further component.
        wide: whether the stored values can be computed in float32 registers only.
        bf16_only: whether it works on the bits of a bf16 parameter.
        visible: whether a kernel reads the parameter itself, rather than the hidden state instead.
        split: whether a kernel computes components, the leading one of them already rounded.
        roundings: the stochastic roundings of a parameter's words, in the order of its tensors;
            None for a word rounded to nearest. Empty if there is none.
        stochastic: whether a moment is rounded stochastically.
        coding: the conversion of a moment to a code of 8 bits or fewer; None if it is a number.
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
        """Return the format of a moment's components, for parameters of a format."""
        return component

    def hidden_format(self, component: Format) -> Format:
        """Return the format of the state next to a parameter."""
        raise NotImplementedError

    def moment(self, name: str, fmt: Format) -> dict[str, Format]:
        """Return the states that store a moment, by name, whose components have a format."""
        return {name: fmt}

    # -- slots of rules: how a kernel loads a value and stores an update -----------------------

    def accumulate(self, strict: bool, held: bool, random: bool) -> Algorithm:
        """Return the algorithm that adds an update to a parameter.

        Args:
            strict: whether every operation is rounded (`mcf.optim.storage.strategies`).
            held: whether the parameter is an expansion that holds its low word.
            random: whether its words are rounded by `roundings` when they are stored.
        """
        return single

    def loaded(self, strict: bool) -> Algorithm:
        """Return the algorithm that loads a parameter or second moment into one register."""
        return leading

    def moved(self) -> Algorithm:
        """Return the algorithm that computes by how much a stored parameter changed."""
        return moved_components

    def second_moment(self, strict: bool) -> dict[str, Algorithm]:
        """Return the algorithms by which a second moment decays and grows, by slot."""
        return {
            "decay_and_add": decay_single,
            "shrink": shrink_single,
            "second_moment_components": as_one,
            "stored_bits": as_stored,
        }

    # -- exact values ------------------------------------------------------------------------

    def value(self, tensors: Sequence[Tensor]) -> Value:
        """Return the exact number that a parameter or moment stores in its tensors."""
        return values.exact(*self.components(tensors))

    def register(self, tensors: Sequence[Tensor], wide: torch.dtype) -> Tensor:
        """Return the number rounded once to a wide dtype; it may share memory with the tensors."""
        first, *low = (t.detach().to(wide) for t in self.components(tensors))
        return first + low[0] if low else first

    def components(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return floating-point tensors whose sum is the value, the largest first."""
        return tuple(tensors)

    def keep(self, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        """Write a value into tensors, rounded to nearest; return the rounding error in float64."""
        tensors[0].copy_(values.rounded(value, tensors[0].dtype))
        return values.less(value, tensors[0])[0]

    def start(self, p: Tensor, component: Format) -> Tensor:
        """Return the initial state next to a parameter, in the parameter's memory layout."""
        return torch.zeros_like(
            p, dtype=self.hidden_format(component).dtype, memory_format=torch.preserve_format
        )

    def stale(self, p: Tensor, hidden: Tensor, component: Format, strict: bool) -> Stale:
        """Return where a hidden state cannot belong to its weight, and the reset values."""
        raise NotImplementedError


SINGLE = Storage()


class Stochastic(Storage):
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


class Float32(Storage):
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

    def components(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (tensors[-1],)

    def keep(self, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        *visible, wide = tensors
        wide.copy_(values.rounded(value, wide.dtype))
        for p in visible:
            p.copy_(values.rounded(values.exact(wide), p.dtype))
        return values.less(value, wide)[0]

    def start(self, p: Tensor, component: Format) -> Tensor:
        return super().start(p, component).copy_(p)

    def stale(self, p: Tensor, hidden: Tensor, component: Format, strict: bool) -> Stale:
        visible = hidden.to(p.dtype)
        same = (visible == p) | (visible.isnan() & p.isnan())
        return ~same, p.to(hidden.dtype)


FLOAT32 = Float32()
