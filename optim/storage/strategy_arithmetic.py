"""A strategy on parameters of one format, with the arithmetic between load and store."""

from __future__ import annotations

import dataclasses

import torch

from mcf.kernels.algorithms.primitives import div, rn
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import BF16, FP16, FP32, FP64, UINT8, Format, format_of
from mcf.optim.storage.strategies import PLAIN, STRATEGIES, Strategy


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
        found = self.strategy.of_shape(shape)
        return self if found is self.strategy else dataclasses.replace(self, strategy=found)

    def without_second(self) -> Arithmetic:
        """Return the arithmetic for a rule without a second moment (`Strategy.without_second`)."""
        found = self.strategy.without_second()
        return self if found is self.strategy else dataclasses.replace(self, strategy=found)

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


def unbias_by_division(moment, correction, inverse_correction):
    """RN(moment / correction)."""
    return rn(div(moment, correction))


def unbias_by_inverse(moment, correction, inverse_correction):
    """RN(moment * (1 / correction)): no division, and within one and a half ulp of a register."""
    return rn(moment * inverse_correction)


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
