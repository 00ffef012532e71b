"""Implement operators that add at indices which may repeat: index_add, scatter_add and others.

Values for one index are summed pairwise in the order of their positions, then added to x. Results
are reproducible bit for bit on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import wrap

aten = torch.ops.aten


def check_places(x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """Raise PyTorch's error if shapes of x, index and source do not allow scattering."""
    own, given = (torch.empty(t.shape, device="meta") for t in (x, source))
    aten.scatter_add.default(own, dim, index.to("meta"), given)


def check_slices(name: str, x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """Raise unless the index has one entry per slice of the source, with slices shaped as x's."""
    if index.dim() > 1 or index.is_floating_point() or index.dtype is torch.bool:
        raise RuntimeError(
            f"{name}: index must be a vector of integers, got {index.dtype} of shape "
            f"{list(index.shape)}"
        )
    size = source.shape[dim] if source.ndim else 1
    if index.numel() != size:
        raise RuntimeError(
            f"{name}: index must have the source's {size} slices of dimension {dim}, got "
            f"{index.numel()}"
        )
    if source.ndim != x.ndim or source.movedim(dim, 0).shape[1:] != x.movedim(dim, 0).shape[1:]:
        raise RuntimeError(
            f"{name}: source must have x's shape {list(x.shape)} but for dimension {dim}, got "
            f"{list(source.shape)}"
        )


def _sum_by_place(values: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Sum values [m, ...] with equal indices `place` [m]; return sums and unique indices."""
    order = torch.argsort(place, stable=True)
    place, values = place[order], values[order]
    while len(place) > 1:
        # Within a run of equal indices, values of odd rank are added to their predecessors.
        index = torch.arange(len(place), device=place.device)
        first = torch.ones_like(place, dtype=torch.bool)
        first[1:] = place[1:] != place[:-1]
        rank = index - torch.cummax(torch.where(first, index, 0), 0).values
        odd = rank % 2 == 1
        if not bool(odd.any()):
            break
        right = odd.nonzero().flatten()
        values = values.clone()
        values[right - 1] = values[right - 1] + values[right]
        keep = (~odd).nonzero().flatten()
        place, values = place[keep], values[keep]
    return values, place


def add_rows(x: Tensor, place: Tensor, values: Tensor) -> Tensor:
    """Return x [r, ...] with values [m, ...] added to its rows `place` [m]."""
    if len(place) == 0 or place.is_meta:
        return wrap(aligned(x, values)[0]).clone()
    # Negative indices are refused: they would not be merged with their positive form.
    if bool(((place < 0) | (place >= x.shape[0])).any()):
        raise IndexError(
            f"index out of range: expected 0 to {x.shape[0] - 1}, got {int(place.min())} to "
            f"{int(place.max())}"
        )
    own, v = aligned(x, values)
    x = wrap(own)
    summed, where = _sum_by_place(wrap(v), place)
    out = x.clone()
    out[where] = x[where] + summed
    return out


@implements(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    """Return x with alpha times the source's slices added to its slices."""
    check_slices("index_add", x, dim, index, source)
    source = source if alpha == 1 else wrap(aligned(x, source)[1]) * alpha
    if x.ndim == 0:
        return index_add(x[None], 0, index.reshape(1), source.reshape(1))[0]
    moved = add_rows(x.movedim(dim, 0), index.reshape(-1), source.movedim(dim, 0))
    return moved.movedim(0, dim).contiguous()


@implements(aten.index_put.default)
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Return x after x[indices] = values, or += values with `accumulate`."""
    if not accumulate:
        out = x.clone()
        aten.index_put_.default(out, list(indices), values)
        return out
    positions = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    place = aten.index.Tensor(positions, list(indices))
    _, v = aligned(x, values)
    spread = wrap([c.expand(place.shape) for c in v]).reshape(-1)
    return add_rows(x.reshape(-1), place.reshape(-1), spread).reshape(x.shape)


@implements(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return x with the source's elements added at the indices along a dimension."""
    check_places(x, dim, index, src)
    if index.numel() == 0:
        return wrap(aligned(x, src)[0]).clone()
    if 0 in (x.ndim, index.ndim, src.ndim):
        own, places, given = (t if t.ndim else t.reshape(1) for t in (x, index, src))
        return scatter_add(own, dim, places, given).reshape(x.shape)
    positions = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    area = tuple(slice(0, n) for n in index.shape)
    whole = [slice(0, n) for n in index.shape]
    whole[dim] = slice(None)
    place = positions[tuple(whole)].gather(dim, index)
    return add_rows(x.reshape(-1), place.reshape(-1), src[area].reshape(-1)).reshape(x.shape)


@implements(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_by_freq: bool
) -> Tensor:
    """Return the gradient of an embedding's weight."""
    if scale_by_freq:
        raise NotImplementedError("embedding: scale_grad_by_freq is not supported on MCFTensor")
    width = grad.shape[-1]
    place, rows = indices.reshape(-1), grad.reshape(-1, width)
    used = (place != padding_idx).nonzero().flatten()
    return add_rows(grad.new_zeros((num_weights, width)), place[used], rows[used])
