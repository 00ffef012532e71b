"""Functions that make expansion tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.kernels.formats import format_of
from mcf.tensor.promotion import integer_components
from mcf.tensor.tensor import MCFTensor, wrap

MAX_TERMS = 4


def check_terms(terms: int) -> None:
    """Raise unless `terms` is 1 to 4."""
    if not isinstance(terms, int) or not 1 <= terms <= MAX_TERMS:
        raise ValueError(f"terms must be 1 to {MAX_TERMS}, got {terms!r}")


def tensor(
    data: Any,
    terms: int = 2,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """A tensor of the nearest expansions to `data`."""
    check_terms(terms)
    format_of(dtype)
    if isinstance(data, MCFTensor):
        source = data.components
    else:
        t = torch.as_tensor(data, dtype=None if isinstance(data, Tensor) else torch.float64)
        source = (t.detach(),) if t.is_floating_point() else integer_components(t.detach())
    moved = [c.to(device=device) for c in source]
    result = wrap(convert(moved, dtype, terms))
    result.requires_grad_(requires_grad)
    return result


def from_components(components: Sequence[Tensor]) -> MCFTensor:
    """The tensor whose value is the sum of the components."""
    return wrap(tuple(components))
