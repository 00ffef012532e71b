"""Powers of two as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels.formats import FP64, Format


def power_of_two(exponent: Tensor, fmt: Format = FP64) -> Tensor:
    """Return 2**exponent in float64 or float32, made from its bits; clamped to the normal range."""
    assert fmt.dtype is not None
    integers = torch.int64 if fmt == FP64 else torch.int32
    biased = exponent.clamp(fmt.emin, fmt.emax).to(integers) + fmt.emax
    return (biased << (fmt.p - 1)).view(fmt.dtype)
