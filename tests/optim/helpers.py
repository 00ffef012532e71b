"""What the optimizer tests share: the arithmetics there are, made-up training, snapshots."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import mcf.optim
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.storage.strategies import STRATEGIES
from tests.helpers import assert_same_bits
from tests.helpers.draws import bell

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64

# Every operation rounded to 16 bits: only where nothing is stored in float32.
STRICT = ("plain", "kahan", "light", "plus")
# Bits of bf16, the upper half of a float32.
BF16_ONLY = tuple(name for name, s in STRATEGIES.items() if s.bf16_only)

# What rounds at random has its own tests: models of the other strategies are not of these.
AT_RANDOM = tuple(name for name, s in STRATEGIES.items() if s.random)


@dataclasses.dataclass(frozen=True)
class Case:
    """One arithmetic of AdamW or SGD: a precision on parameters of a dtype."""

    precision: str
    dtype: torch.dtype
    compute_dtype: torch.dtype

    def __str__(self) -> str:
        short = {BF16: "bf16", FP16: "fp16", FP32: "fp32", FP64: "fp64"}
        return f"{self.precision}-{short[self.dtype]}-in-{short[self.compute_dtype]}"

    @property
    def strict(self) -> bool:
        """Whether every operation is rounded to the parameter's format."""
        return self.compute_dtype != FP32

    def options(self) -> dict[str, Any]:
        """The keyword arguments that select it."""
        return {"precision": self.precision, "compute_dtype": self.compute_dtype}


def cases(
    precisions: Sequence[str] = mcf.optim.PRECISIONS, dtypes: Sequence[torch.dtype] = (BF16, FP16)
) -> list[Case]:
    """Every arithmetic of some precisions on 16-bit parameters."""
    wide = [Case(p, d, FP32) for d in dtypes for p in precisions if d == BF16 or p not in BF16_ONLY]
    return wide + [Case(p, d, d) for d in dtypes for p in precisions if p in STRICT]


# float32 and float64 parameters have one arithmetic under every precision.
FULL = [Case("plus", FP32, FP32), Case("plus", FP64, FP32)]


def random(shape: Sequence[int] | int, dtype: torch.dtype, seed: int, scale: float = 1.0) -> Tensor:
    """Seeded numbers around zero, the same before rounding for every dtype."""
    return (bell(shape, seed) * scale).to(dtype)


def parameter(shape: Sequence[int] | int, dtype: torch.dtype, seed: int = 0) -> Parameter:
    """A parameter of seeded numbers."""
    return Parameter(random(shape, dtype, seed))


def steps(optimizer: torch.optim.Optimizer, count: int, seed: int = 1, scale: float = 0.1) -> None:
    """Steps on seeded gradients, each parameter's own."""
    for t in range(count):
        for k, p in enumerate(parameters(optimizer)):
            p.grad = random(p.shape, p.dtype, seed + 1000 * t + k, scale)
        optimizer.step()


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """All parameters, in order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def stored(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies of all parameters, gradients and states, by name."""
    found = {}
    for k, p in enumerate(parameters(optimizer)):
        found[f"{k}.param"] = p.detach().clone()
        if p.grad is not None and p.grad.layout is torch.strided:
            found[f"{k}.grad"] = p.grad.clone()
        for name, value in optimizer.state.get(p, {}).items():
            found[f"{k}.{name}"] = value.clone()
    return found


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], what: str = "") -> None:
    """Fail where two results of `stored` differ in a name or in any bit."""
    assert actual.keys() == expected.keys(), what
    for name, tensor in expected.items():
        assert_same_bits(actual[name], tensor, f"{what} {name}")


def value(optimizer: LowPrecisionOptimizer, p: Tensor) -> Tensor:
    """The number a parameter stores: the exact sum of its components, in float64."""
    total = torch.zeros(p.shape, dtype=FP64)
    for component in optimizer.master_weight(p, exact=True):
        total += component.detach().double()
    return total


def second_moment(optimizer: torch.optim.Optimizer, p: Tensor) -> Tensor:
    """The number a second moment stores, in float64."""
    state = optimizer.state[p]
    return state["exp_avg_sq"].double() + (
        state["exp_avg_sq_lo"].double() if "exp_avg_sq_lo" in state else 0.0
    )
