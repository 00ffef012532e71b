"""Precision strategies: the storage of each tensor of an optimizer.

A strategy names the storages of parameter, first and second moment; the update rule does not know
it. Its storages define how a stored number takes an update.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from mcf.kernels.algorithms.primitives import div, rn
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import BF16, FP16, FP32, FP64, UINT8, Format, format_of
from mcf.optim.storage.base import FLOAT32, SINGLE, STOCHASTIC, Storage
from mcf.optim.storage.codes import RATIO4, RATIO8, SIGNED8, UNSIGNED8
from mcf.optim.storage.pair import KAHAN, PAIR
from mcf.optim.storage.split import SPLIT8, SPLIT16

# Every storage, by its name in `mcf.optim.Precision`.
STORAGES: dict[str, Storage] = {
    s.name: s
    for s in (
        SINGLE, KAHAN, PAIR, SPLIT16, SPLIT8, FLOAT32, STOCHASTIC, RATIO8, RATIO4,
        SIGNED8, UNSIGNED8,
    )
}  # fmt: skip

# Names of the extra per-parameter state tensors.
HIDDEN = tuple(dict.fromkeys(s.hidden for s in STORAGES.values() if s.hidden))


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A precision strategy: one storage per tensor.

    Args:
        name: the value of an optimizer's `precision`.
        param: storage of the parameter.
        first: storage of the first moment or momentum buffer.
        second: storage of the second moment.
        stochastic: whether the parameter's last word is rounded stochastically when stored.
        feedback: whether the parameter's rounding error goes into the first moment.
    """

    name: str
    param: Storage
    first: Storage = SINGLE
    second: Storage = SINGLE
    stochastic: bool = False
    feedback: bool = False

    @property
    def wide(self) -> bool:
        """Whether any stored value needs float32 registers to be computed."""
        stored = any(s.wide for s in (self.param, self.first, self.second))
        return stored or self.stochastic or self.feedback

    @property
    def random(self) -> bool:
        """Whether anything is rounded stochastically."""
        return self.stochastic or self.first.stochastic or self.second.stochastic

    @property
    def narrow(self) -> bool:
        """Whether a moment is a code of 8 bits or fewer; vectors' moments are not."""
        return self.first.coding is not None or self.second.coding is not None

    @property
    def packed(self) -> bool:
        """Whether two numbers share a byte."""
        return self.first is RATIO4

    def without_second(self) -> Strategy:
        """Return the strategy for a rule without a second moment to relate its first moment to."""
        if self.first.coding is None or not self.first.coding.relative:
            return self
        return dataclasses.replace(self, name=f"{self.name}_alone", first=SIGNED8)

    def of_float32(self) -> Strategy:
        """Return the strategy for float32 parameters: float32 weights, and moments of fewer bytes.

        Moments that are rounded stochastically, to bf16 or to codes, are stored as for bf16
        parameters. The others stay in float32: a pair takes as many bytes, and rounding to nearest
        loses additions that float32 keeps.
        """
        first, second = (s if s.stochastic else SINGLE for s in (self.first, self.second))
        return named(Strategy(f"{self.name}_float32", SINGLE, first, second))

    def of_shape(self, shape: tuple[int, ...]) -> Strategy:
        """Return the strategy for a whole tensor of a shape.

        Vectors (of norm layers, biases) have moments in bf16 instead of codes: they are a
        thousandth of a model's bytes, and their gradients differ from matrices'. If the last
        dimension is odd, codes of 8 bits replace codes of 4 bits.
        """
        if self.narrow and len(shape) < 2:
            name = f"{self.name}_vectors"
            return named(dataclasses.replace(self, name=name, first=STOCHASTIC, second=STOCHASTIC))
        if self.packed and shape[-1] % 2:
            return named(dataclasses.replace(self, name=f"{self.name}_odd", first=RATIO8))
        return self

    @property
    def bf16_only(self) -> bool:
        """Whether the parameter's bits must be the upper half of a float32."""
        return self.param.bf16_only or self.stochastic

    def with_low(self, low: str) -> Strategy:
        """Return the strategy with its low component rounded by an optimizer's `low`.

        Raises:
            ValueError: for "stochastic" if there is no low component.
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


# The names of `STRATEGIES`, for type checkers and editors.
PrecisionName = Literal[
    "plain", "kahan", "light", "plus", "split16", "split16_sr", "split16_8bit", "split8",
    "split8_sr", "split8_8bit", "stochastic", "bf16_sr", "8bit", "4bit", "eco", "eco_stochastic",
    "fp32_states", "master",
]  # fmt: skip

PLAIN = Strategy("plain", SINGLE)

STRATEGIES: dict[str, Strategy] = {
    s.name: s
    for s in (
        PLAIN,
        Strategy("kahan", KAHAN),
        Strategy("light", PAIR),
        Strategy("plus", PAIR, second=PAIR),
        Strategy("split16", SPLIT16),
        Strategy("split16_sr", SPLIT16, STOCHASTIC, STOCHASTIC),
        Strategy("split16_8bit", SPLIT16, RATIO8, UNSIGNED8),
        Strategy("split8", SPLIT8),
        Strategy("split8_sr", SPLIT8, STOCHASTIC, STOCHASTIC, stochastic=True),
        Strategy("split8_8bit", SPLIT8, RATIO8, UNSIGNED8, stochastic=True),
        Strategy("stochastic", SINGLE, stochastic=True),
        Strategy("bf16_sr", SINGLE, STOCHASTIC, STOCHASTIC, stochastic=True),
        Strategy("8bit", SINGLE, RATIO8, UNSIGNED8, stochastic=True),
        Strategy("4bit", SINGLE, RATIO4, UNSIGNED8, stochastic=True),
        Strategy("eco", SINGLE, feedback=True),
        Strategy("eco_stochastic", SINGLE, stochastic=True, feedback=True),
        Strategy("fp32_states", SINGLE, FLOAT32, FLOAT32),
        Strategy("master", FLOAT32, FLOAT32, FLOAT32),
    )
}


def named(strategy: Strategy) -> Strategy:
    """Return the strategy of STRATEGIES that differs only by name, or the strategy itself."""
    same = (s for s in STRATEGIES.values() if dataclasses.replace(strategy, name=s.name) == s)
    return next(same, strategy)


# Strategies for any rule with two moments; the others need a first moment of which the update is a
# multiple.
WITHOUT_FEEDBACK = tuple(s.name for s in STRATEGIES.values() if not s.feedback)

# Strategies for rules without a second moment.
WITHOUT_SECOND = tuple(
    n for n in WITHOUT_FEEDBACK if n == "8bit" or (n != "plus" and not STRATEGIES[n].narrow)
)

# Strategies for rules without a first moment.
WITHOUT_FIRST = tuple(n for n in WITHOUT_FEEDBACK if not STRATEGIES[n].packed)


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
    def format(self) -> Format:
        """The format to which operations round."""
        return self.component if self.strict else self.component.register

    @property
    def first_moment(self) -> Format:
        """The format of the first moment's components."""
        return self.strategy.first.format(self.component)

    @property
    def second_moment(self) -> Format:
        """The format of the second moment's components.

        For fp16 parameters it is bf16 unless arithmetic is strict: g^2 of ordinary gradients is
        below fp16's smallest number, and a second moment of 0 makes the update explode.
        """
        found = self.strategy.second.format(self.component)
        return BF16 if found == FP16 and not self.strict else found

    @property
    def roundings(self) -> tuple[tuple[str, Format], ...]:
        """The primitives `rc` and `rv`."""
        second = self.second_moment
        return (("rc", self.component), ("rv", FP32 if second == UINT8 else second))

    def of_shape(self, shape: tuple[int, ...]) -> Arithmetic:
        """Return the arithmetic for a whole tensor of a shape (`Strategy.of_shape`)."""
        return self._with(self.strategy.of_shape(shape))

    def without_second(self) -> Arithmetic:
        """Return the arithmetic for a rule without a second moment (`Strategy.without_second`)."""
        return self._with(self.strategy.without_second())

    def _with(self, strategy: Strategy) -> Arithmetic:
        return self if strategy is self.strategy else dataclasses.replace(self, strategy=strategy)

    def without_param(self) -> Arithmetic:
        """Return the arithmetic for a rule that neither reads nor writes the parameter."""
        first, second = self.strategy.first, self.strategy.second
        found = Strategy(f"{first.name}_{second.name}", SINGLE, first, second)
        return Arithmetic(found, self.component, self.strict)

    def slots(self) -> dict[str, Algorithm]:
        """Return the functions that fill a rule's slots."""
        param, second = self.strategy.param, self.strategy.second
        return {
            "accumulate": param.accumulate(self.strict, self.held, self.strategy.stochastic),
            "param_value": param.loaded(self.strict),
            "param_moved": param.moved(),
            "second_moment_value": second.loaded(self.strict),
            "unbias": unbias_by_division if self.strict else unbias_by_inverse,
            **second.second_moment(self.strict),
        }


def unbias_by_division(moment, correction):
    """RN(moment / correction)."""
    return rn(div(moment, correction))


def unbias_by_inverse(moment, inverse):
    """RN(moment * (1 / correction)): no division, and within one and a half ulp of a register."""
    return rn(moment * inverse)


def arithmetic(
    strategy: Strategy, dtype: torch.dtype, compute_dtype: torch.dtype, what: str
) -> Arithmetic:
    """Return the arithmetic for a parameter.

    float32 parameters use the strategy's moments if those take fewer bytes (`Strategy.of_float32`);
    float64 parameters are plain in their own dtype.

    Raises:
        ValueError: if strict arithmetic is requested and differs from the parameter's dtype or the
            strategy stores float32, or if an fp16 parameter has a strategy for bf16 only; `what`
            names the parameter in the message.
    """
    component = format_of(dtype, what)
    if component in (FP32, FP64):
        found = PLAIN if component == FP64 else strategy.of_float32()
        return Arithmetic(found, component, strict=False)
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
