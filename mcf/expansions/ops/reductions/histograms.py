"""Implement `torch.histc`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements


@implements(torch.histc, Tensor.histc)
def histc(input: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Return the number of elements in each of `bins` equal parts of [min, max].

    The bin of x is floor((x - min) bins / (max - min)); max itself is in the last bin. Other
    elements and NaN are not counted. If min = max the interval is that of the elements. The counts
    have the input's format.
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
