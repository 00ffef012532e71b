"""Counts of numbers in equal parts of an interval, and rows scaled to a largest norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.kernels.row_tasks import along
from mcf.tensor.creation import tensor
from mcf.tensor.registry import implements


@implements(torch.histc, Tensor.histc)
def histc(input: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """How many elements lie in each of `bins` equal parts of [min, max], in the input's format.

    The number of a part is floor((x - min) bins / (max - min)), of max the last; other elements and
    NaN are not counted. With min = max the interval is that of the elements.
    """
    if not isinstance(bins, int) or bins < 1:
        raise RuntimeError(f"histc: bins must be at least 1, got {bins}")
    x = input.detach().flatten()
    low, high = min, max
    if low == high and x.numel():
        low, high = x.amin(), x.amax()
    if low == high:
        low, high = low - 1, high + 1
    span = x.new_zeros(()) + high - low
    if not bool(torch.isfinite(span)) or low > high:
        raise RuntimeError(f"histc: min must be at most max and both finite, got {low} and {high}")
    inside = x[(x >= low) & (x <= high)]
    places = torch.floor((inside - low) * bins / span).long().clamp(0, bins - 1)
    counts = torch.bincount(places, minlength=bins)
    return tensor(counts, input.terms, input.dtype, input.device)


@implements(torch.renorm, Tensor.renorm)
def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """The slices along a dimension, those of a larger norm times maxnorm / (norm + 1e-7).

    The 1e-7 is torch's.
    """
    if not (p > 0 and maxnorm >= 0):
        raise RuntimeError(
            f"renorm: p must be above 0 and maxnorm from 0, got p={p}, maxnorm={maxnorm}"
        )
    if input.dim() < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.dim()}")
    along(input.shape, dim)
    others = [d for d in range(input.dim()) if d != dim % input.dim()]
    norm = torch.linalg.vector_norm(input, p, others, keepdim=True)
    return torch.where(norm > maxnorm, input * (maxnorm / (norm + 1e-7)), input)


@implements(Tensor.renorm_)
def renorm_(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """The same, in place."""
    return input.copy_(renorm(input, p, dim, maxnorm))
