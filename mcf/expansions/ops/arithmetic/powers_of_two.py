"""Provide powers of two as plain tensors, for exact scaling of expansions."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import unseen
from mcf.kernels.formats import format_of


def power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 2^exponent for an integer tensor of exponents in the range of a dtype."""
    ones = torch.ones_like(exponent, dtype=torch.float64)
    return torch.ldexp(ones, exponent).to(dtype)


def exponents(x: Any) -> Tensor:
    """Return integers e with |first component| / 2^e in [1/2, 1); 0 for zero, inf and NaN."""
    first = x.detach().components[0]
    # PyTorch has no frexp for float16 and bfloat16.
    wide = first if first.dtype is torch.float64 else first.to(torch.float32)
    e = torch.frexp(wide)[1].to(torch.int64)
    return torch.where(first.isfinite(), e, 0)


def inverse_power(*x: Any) -> Tensor | None:
    """Return the power of two that scales the largest of some expansions to [1/2, 1).

    Subnormal numbers get the largest power; zero, inf and NaN get 1. Return None if no scaling is
    needed: even the fourth powers of all numbers are far from the ends of the range.
    """
    fmt = format_of(x[0].dtype)
    sizes = [v.detach().components[0].abs() for v in x]
    if not unseen(sizes[0]):
        largest = functools.reduce(torch.maximum, sizes)
        end = 2.0 ** (fmt.emax // 8)
        if bool(((largest <= end) & (largest >= 1 / end)).all()):
            return None
    found = exponents(x[0])
    for other in x[1:]:
        e = exponents(other)
        first, second = x[0].detach() == 0, other.detach() == 0
        found = torch.where(first, e, torch.where(second, found, torch.maximum(found, e)))
    return power_of_two(-found.clamp(min=-fmt.emax, max=-fmt.emin), x[0].dtype)
