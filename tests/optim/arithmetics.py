"""The arithmetics that optimizers have: dtypes, precisions, and registers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

import mcf.optim
from mcf.optim.storage.strategies import STRATEGIES

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
