"""Plans of float32 components that compute in float64 registers: what they have and round to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.convert import conversions
from mcf.convert.rounding import nearest
from mcf.kernels.formats import FP32, FP64, Format
from mcf.kernels.register_choice import registers_for
from mcf.tensor.launches import row_launch

_cpu = torch.device("cpu")


def in_float64(x: Tensor) -> bool:
    """Whether a tensor on a CPU has components that are computed with in float64 registers."""
    if x.device.type != "cpu":
        return False
    return x.dtype is torch.float64 or (
        x.dtype is torch.float32 and registers_for(FP32, _cpu) is FP64
    )


def rounding(state: int, fmt: Format, terms: int, like: Tensor) -> Callable[[list[int]], Any]:
    """What rounds so many registers to the nearest components of a format, of addresses.

    It counts elements that only the operator rounds.
    """
    return row_launch(conversions.kernel(nearest, FP64, state, fmt, terms), like)
