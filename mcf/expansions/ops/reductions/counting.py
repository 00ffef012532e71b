"""Implement `mode`, `bincount`, `histc`, `histogram` and `multinomial`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.arithmetic.constants import in_format
from mcf.expansions.ops.order.order import not_empty
from mcf.expansions.ops.random.draws import uniform
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.row_tasks import along

aten = torch.ops.aten


@implements(aten.mode.default)
def mode(x: MCFTensor, dim: int = -1, keepdim: bool = False) -> tuple[Any, Tensor]:
    """Return the most frequent value (the smallest of several) and its last index.

    As in PyTorch a NaN equals nothing, not even another NaN.
    """
    along(x.shape or (1,), dim)
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    not_empty("mode", x, dim)
    rows = x.movedim(dim, -1)
    values, places = rows.sort(dim=-1, stable=True)
    count = torch.arange(x.shape[dim], device=x.device)
    begins = torch.ones(values.shape, dtype=torch.bool, device=x.device)
    begins[..., 1:] = values[..., 1:] != values[..., :-1]
    start = torch.where(begins, count, 0).cummax(-1).values
    # The end of the first of the longest runs.
    best = (count - start).argmax(-1, keepdim=True)
    value, index = values.gather(-1, best), places.gather(-1, best)
    if keepdim:
        return value.movedim(-1, dim), index.movedim(-1, dim)
    return value.squeeze(-1), index.squeeze(-1)


@implements(torch.bincount, Tensor.bincount)
def bincount(input: Tensor, weights: Any = None, minlength: int = 0) -> Any:
    """Return the sum of the weights for each integer, in the weights' format."""
    if isinstance(input, MCFTensor):
        raise RuntimeError("bincount: input must be a tensor of integers, got an mcf.MCFTensor")
    if input.dim() != 1 or weights.shape != input.shape:
        raise RuntimeError(
            "bincount: input must have one dimension and weights its shape, got shapes "
            f"{list(input.shape)} and {list(weights.shape)}"
        )
    if minlength < 0 or (input.numel() and int(input.min()) < 0):
        raise RuntimeError("bincount: minlength and the elements of input must be at least 0")
    size = max(minlength, int(input.max()) + 1 if input.numel() else 0)
    return weights.new_zeros(size).index_add(0, input.long(), weights)


@implements(torch.histogram, Tensor.histogram)
def histogram(
    input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """Return counts or sums of weights between edges; the last bin includes its upper edge.

    `bins` are ascending edges, or the number of equal bins of `range`, by default from the smallest
    to the largest element. The edges are rounded once. With `density` the counts are divided by
    their sum and the width of the bin.
    """
    like = (
        input if isinstance(input, MCFTensor) else bins if isinstance(bins, MCFTensor) else weight
    )
    x = in_format(input, like).detach().flatten()
    edges = _edges(x, bins, range, like)
    inside = (x >= edges[0]) & (x <= edges[-1])
    place = torch.searchsorted(edges[1:-1].contiguous(), x[inside], right=True)
    mass = torch.ones(x.shape, device=x.device) if weight is None else weight.flatten()
    if mass.shape != x.shape:
        raise RuntimeError(
            f"histogram: weight must have the shape of input, {list(input.shape)}, got "
            f"{list(weight.shape)}"
        )
    zeros = like.new_zeros(edges.numel() - 1)
    counts = zeros.index_add(0, place, in_format(mass[inside], like) + zeros.new_zeros(()))
    if density:
        counts = counts / counts.sum() / edges.diff()
    return torch.return_types.histogram((counts, edges))


def _edges(x: Any, bins: Any, ends: Any, like: MCFTensor) -> Any:
    if isinstance(bins, Tensor):
        if ends is not None or bins.dim() != 1 or bins.numel() < 2 or not (bins.diff() >= 0).all():
            raise RuntimeError(
                "histogram: edges must be a one-dimensional tensor of at least two ascending "
                "numbers, and range must be None"
            )
        return bins.detach() + like.new_zeros(())
    if not isinstance(bins, int) or bins < 1:
        raise RuntimeError(f"histogram: bins must be at least 1, got {bins!r}")
    low, high = ends if ends is not None else (x.amin(), x.amax()) if x.numel() else (0, 1)
    low, high = (v + like.new_zeros(()) for v in (low, high))
    if not (torch.isfinite(low) & torch.isfinite(high) & (low <= high)):
        raise RuntimeError(
            f"histogram: the ends of range must be finite and ascending, got {low} and {high}"
        )
    if low == high:
        low, high = low - 0.5, high + 0.5
    return torch.linspace(low, high, bins + 1, device=low.device)


@implements(torch.multinomial, Tensor.multinomial)
def multinomial(
    input: Any, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """Draw indices in proportion to the weights in a row, using all bits of the weights.

    With replacement, indices are searched in the cumulative weights. Without, they are those of the
    smallest e / w, with e exponential (Efraimidis and Spirakis 2006,
    doi:10.1016/j.ipl.2005.11.003). For one seed the result differs from that for plain tensors.
    """
    weights = input.detach()
    if weights.dim() not in (1, 2):
        raise RuntimeError(f"multinomial: input must have 1 or 2 dimensions, got {weights.dim()}")
    categories = weights.shape[-1]
    if num_samples < 1 or (not replacement and num_samples > categories):
        raise RuntimeError(
            f"multinomial: num_samples must be from 1 to the {categories} categories (any number "
            f"from 1 with replacement=True), got {num_samples}"
        )
    if not (torch.isfinite(weights) & (weights >= 0)).all() or not (weights > 0).any(-1).all():
        raise RuntimeError(
            "multinomial: input must be finite and at least 0, with a number above 0 in each row"
        )
    if replacement:
        total = weights.cumsum(-1)
        drawn = uniform(total[..., :1].expand(*weights.shape[:-1], num_samples), generator)
        target = drawn * total[..., -1:]
        # Rounding may give a target equal to the total.
        last = (weights > 0).to(torch.int8).flip(-1).argmax(-1, keepdim=True)
        place = torch.searchsorted(total, target, right=True)
        return torch.minimum(place, categories - 1 - last)
    if ((weights > 0).sum(-1) < num_samples).any():
        raise RuntimeError(
            f"multinomial: without replacement each row needs {num_samples} numbers above 0"
        )
    # log(1 - u) is 0 only for u = 0, with probability 2^(-terms p); that draw then comes first.
    keys = -torch.log1p(-uniform(weights, generator))
    keys = torch.where(weights > 0, keys / torch.where(weights > 0, weights, 1), torch.inf)
    return keys.topk(num_samples, largest=False).indices


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
