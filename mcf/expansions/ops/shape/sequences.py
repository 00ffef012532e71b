"""Implement `linspace` and `logspace` between zero-dimensional tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.factories import linspace
from mcf.expansions.tensor import MCFTensor


def _number(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dim():
        raise RuntimeError(f"linspace: start and end must have no dimensions, got {value.dim()}")
    if torch.is_grad_enabled() and value.requires_grad:
        raise RuntimeError("linspace: start and end have no derivatives; detach them")
    value = value.detach()
    return value.to_fractions() if isinstance(value, MCFTensor) else value.item()


@implements(torch.linspace)
def _linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, **kwargs: Any
) -> Any:
    """Return `mcf.linspace` between the exact values, in the format of the first expansion."""
    like = start if isinstance(start, MCFTensor) else end
    return linspace(
        _number(start),
        _number(end),
        steps,
        terms=like.terms,
        dtype=dtype or like.dtype,
        device=device or like.device,
        requires_grad=kwargs.get("requires_grad", False),
    )


@implements(torch.logspace)
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, **kwargs: Any) -> Any:
    """Return the base to the power of the numbers of `linspace`."""
    return torch.pow(base, _linspace(start, end, steps, **kwargs))
