"""Precision strategies: which format stores each tensor of an optimizer.

A strategy names the storage of (parameter, first moment, second moment); the update rule does not
know it. What a strategy adds to the rule is how a stored number takes an update, one function per
storage (`mcf.optim.rules.accumulation`).
"""

from __future__ import annotations

import dataclasses
import enum

import torch

from mcf.kernels.algorithms import join8, join16
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, INT8, INT16, Format, format_of
from mcf.optim.rules import accumulation


class Storage(enum.Enum):
    """How one tensor of an optimizer is kept."""

    SINGLE = "one component"
    KAHAN = "a component and its compensation"
    PAIR = "an expansion of two components"
    WIDE = "float32"
    SPLIT16 = "bf16 and the 16 bits below it"
    SPLIT8 = "bf16 and the 8 bits below it"
    FP8 = "an e4m3 number, and a power of two for each block"
    FP8_PAIR = "an expansion of two e4m3 numbers, and a power of two for each block"
    E5M2 = "an e5m2 number, and a power of two for each block"
    E5M2_PAIR = "an expansion of two e5m2 numbers, and a power of two for each block"

    @property
    def has_low(self) -> bool:
        """Whether a second component is stored."""
        return self in (Storage.KAHAN, Storage.PAIR)

    @property
    def eight_bits(self) -> bool:
        """Whether blocks of numbers of 8 bits are stored; moments only."""
        return self.codes != ()

    @property
    def codes(self) -> tuple[Format, ...]:
        """The formats of those numbers, one or two."""
        formats = {
            Storage.FP8: (E4M3,),
            Storage.FP8_PAIR: (E4M3, E4M3),
            Storage.E5M2: (E5M2,),
            Storage.E5M2_PAIR: (E5M2, E5M2),
        }
        return formats.get(self, ())

    @property
    def bits(self) -> Format | None:
        """The integers that extend a bf16 number, where they are stored."""
        return {Storage.SPLIT16: INT16, Storage.SPLIT8: INT8}.get(self)


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One storage per tensor.

    Args:
        name: the value of an optimizer's `precision`.
        param: storage of the parameter; WIDE keeps a float32 master copy beside the parameter.
        first: storage of the first moment or momentum buffer.
        second: storage of the second moment.
        stochastic: whether the parameter's last component is rounded stochastically when stored.
        feedback: whether the parameter's rounding error goes into the first moment.
    """

    name: str
    param: Storage
    first: Storage = Storage.SINGLE
    second: Storage = Storage.SINGLE
    stochastic: bool = False
    feedback: bool = False

    @property
    def wide(self) -> bool:
        """Whether anything is stored that only float32 registers can compute."""
        stored = (self.param, self.first, self.second)
        beyond = self.param.bits is not None or self.stochastic or self.feedback
        return Storage.WIDE in stored or beyond or self.eight_bits

    @property
    def eight_bits(self) -> bool:
        """Whether a moment is stored in blocks of numbers of 8 bits."""
        return self.first.eight_bits or self.second.eight_bits

    @property
    def bf16_only(self) -> bool:
        """Whether the parameter's bits are those of the upper half of a float32."""
        return self.param.bits is not None or self.stochastic

    def with_low(self, low: str) -> Strategy:
        """The strategy with its low component rounded as an optimizer's `low` says.

        Raises:
            ValueError: for "stochastic" where there is no low component.
        """
        if low == "nearest" or (self.stochastic and self.param.has_low):
            return self
        if not self.param.has_low:
            allowed = ", ".join(repr(s.name) for s in STRATEGIES.values() if s.param.has_low)
            raise ValueError(
                f"low={low!r} with precision={self.name!r}, which stores no low component of the "
                f"parameter; allowed are {allowed}"
            )
        return dataclasses.replace(self, name=f"{self.name}_{low}", stochastic=True)


PLAIN = Strategy("plain", Storage.SINGLE)

STRATEGIES: dict[str, Strategy] = {
    s.name: s
    for s in (
        PLAIN,
        Strategy("kahan", Storage.KAHAN),
        Strategy("light", Storage.PAIR),
        Strategy("plus", Storage.PAIR, second=Storage.PAIR),
        Strategy("split16", Storage.SPLIT16),
        Strategy("split8", Storage.SPLIT8),
        Strategy("stochastic", Storage.SINGLE, stochastic=True),
        Strategy("eco", Storage.SINGLE, feedback=True),
        Strategy("eco_stochastic", Storage.SINGLE, stochastic=True, feedback=True),
        Strategy("fp32_states", Storage.SINGLE, Storage.WIDE, Storage.WIDE),
        Strategy("master", Storage.WIDE, Storage.WIDE, Storage.WIDE),
    )
}


# What any rule can have; the others need a first moment of which the update is a multiple.
WITHOUT_FEEDBACK = tuple(s.name for s in STRATEGIES.values() if not s.feedback)


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """A strategy applied to parameters of one dtype, with the arithmetic between load and store.

    Args:
        strategy: the storage of each tensor.
        component: the parameter's format.
        strict: whether every operation is rounded to the parameter's format, as in the Collage
            paper, or registers keep float32 and only what is stored is rounded.
        held: whether the parameter is an expansion, which holds its low word itself.
    """

    strategy: Strategy
    component: Format
    strict: bool
    held: bool = False

    @property
    def inside(self) -> Arithmetic:
        """The arithmetic of the step itself, in which moments of 8 bits are float32."""
        if not self.strategy.eight_bits:
            return self
        first, second = (
            Storage.WIDE if s.eight_bits else s for s in (self.strategy.first, self.strategy.second)
        )
        strategy = dataclasses.replace(self.strategy, first=first, second=second)
        return dataclasses.replace(self, strategy=strategy)

    @property
    def format(self) -> Format:
        """The format operations round to."""
        return self.component if self.strict else self.component.register

    def stored(self, storage: Storage) -> Format:
        """The format of a tensor in a storage."""
        return FP32 if storage is Storage.WIDE else self.component

    @property
    def second_moment(self) -> Format:
        """The format of the second moment's components.

        That of fp16 parameters is bf16 unless arithmetic is strict: g^2 of ordinary gradients is
        below fp16's smallest number, and a second moment of 0 makes the update explode.
        """
        if self.component == FP16 and not self.strict and self.strategy.second is not Storage.WIDE:
            return BF16
        return self.stored(self.strategy.second)

    @property
    def roundings(self) -> tuple[tuple[str, Format], ...]:
        """The primitives `rc` and `rv`."""
        return (("rc", self.component), ("rv", self.second_moment))

    def slots(self) -> dict[str, Algorithm]:
        """The functions that fill a rule's slots."""
        param, second = self.strategy.param, self.strategy.second
        wide_pairs = not self.strict
        accumulate = {
            Storage.SINGLE: accumulation.single,
            Storage.WIDE: accumulation.single,
            Storage.KAHAN: accumulation.kahan,
            # With float32 registers Kahan's form is as exact as Grow, in fewer operations.
            Storage.PAIR: accumulation.kahan if wide_pairs else accumulation.collage,
            Storage.SPLIT16: accumulation.whole16,
            Storage.SPLIT8: accumulation.whole8,
        }
        if self.held and wide_pairs:
            accumulate |= dict.fromkeys((Storage.KAHAN, Storage.PAIR), accumulation.kahan_held)
        moved = {
            Storage.SPLIT16: accumulation.moved16,
            Storage.SPLIT8: accumulation.moved8,
        }
        decay, shrink = accumulation.decay_single, accumulation.shrink_single
        components = accumulation.as_one
        if second is Storage.PAIR and wide_pairs:
            decay, shrink = accumulation.decay_joined, accumulation.shrink_joined
            components = accumulation.split
        elif second is Storage.PAIR:
            decay, shrink = accumulation.decay_collage, accumulation.shrink_collage
        return {
            "accumulate": accumulate[param],
            "decay_and_add": decay,
            "shrink": shrink,
            "second_moment_components": components,
            "param_value": _value(param, wide_pairs),
            "param_moved": moved.get(param, accumulation.moved_components),
            "second_moment_value": _value(second, wide_pairs),
            "unbias": (
                accumulation.unbias_by_division if self.strict else accumulation.unbias_by_inverse
            ),
        }


def _value(storage: Storage, wide_pairs: bool) -> Algorithm:
    if storage.bits is not None:
        return join16 if storage is Storage.SPLIT16 else join8
    return accumulation.joined if storage.has_low and wide_pairs else accumulation.leading


def arithmetic(
    strategy: Strategy, dtype: torch.dtype, compute_dtype: torch.dtype, what: str
) -> Arithmetic:
    """The arithmetic for a parameter; float32 and float64 parameters are plain in their own dtype.

    Raises:
        ValueError: when strict arithmetic is asked for and is not that of the parameter's dtype,
            or the strategy stores float32, or is for bf16 alone and the parameter is fp16; `what`
            names the parameter in the message.
    """
    component = format_of(dtype, what)
    if component in (FP32, FP64):
        return Arithmetic(PLAIN, component, strict=False)
    strict = compute_dtype != torch.float32
    if strict and compute_dtype != dtype:
        raise ValueError(
            f"compute_dtype is {compute_dtype}, but {what} has dtype {dtype}; allowed are "
            f"torch.float32 and {dtype}"
        )
    if strict and strategy.wide:
        allowed = ", ".join(repr(s.name) for s in STRATEGIES.values() if not s.wide)
        raise ValueError(
            f"compute_dtype={compute_dtype} with precision={strategy.name!r}: that precision "
            f"needs the bits of float32, which {compute_dtype} arithmetic would round away; use "
            f"compute_dtype=torch.float32, or one of {allowed}"
        )
    if strategy.bf16_only and component != BF16:
        raise ValueError(
            f"precision={strategy.name!r} with {what} of dtype {dtype}: that precision works on "
            "the bits of bfloat16, the upper half of a float32; allowed is torch.bfloat16"
        )
    return Arithmetic(strategy, component, strict)
