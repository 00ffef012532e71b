"""Implement derivatives of operators that move elements, which add gradients of copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.reductions.accumulate import add_rows

aten = torch.ops.aten


def spread(move: Callable[[Tensor], Tensor], grad: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the gradient of x with a shape, given the gradient `grad` of y = move(x).

    `move` is applied to element numbers, from 1, to learn where elements go; it may insert zeros.
    """
    # float64, since some of these operators support only floats.
    positions = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64, device=grad.device)
    place = move(positions.reshape(list(shape))).reshape(-1).to(torch.int64) - 1
    kept = (place >= 0).nonzero().flatten()
    flat = add_rows(grad.new_zeros((math.prod(shape),)), place[kept], grad.reshape(-1)[kept])
    return flat.reshape(list(shape))


@implements(aten.unfold_backward.default)
def unfold_backward(grad: Tensor, sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """Return the gradient of `unfold`: add up windows along a dimension."""
    return spread(lambda x: x.unfold(dim, size, step), grad, sizes)


@implements(aten.col2im.default)
def col2im(
    x: Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Tensor:
    """Combine blocks into an image; overlapping blocks are added."""
    batch = x if x.dim() == 3 else x[None]
    channels = batch.shape[1] // math.prod(kernel_size)

    def blocks(image: Tensor) -> Tensor:
        return aten.im2col.default(image, kernel_size, dilation, padding, stride)  # type: ignore[no-any-return]

    out = spread(blocks, batch, [batch.shape[0], channels, *output_size])
    return out if x.dim() == 3 else out[0]


@implements(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with elements of the flattened tensor replaced, or added to."""
    if index.numel() != source.numel():
        raise RuntimeError(
            "put: index and source must have the same number of elements, got "
            f"{index.numel()} and {source.numel()}"
        )
    place, values = index.reshape(-1), source.reshape(-1)
    place = torch.where(place < 0, place + x.numel(), place)
    if accumulate:
        return add_rows(x.reshape(-1), place, values).reshape(x.shape)
    out = x.clone().reshape(-1)
    out[place] = values
    return out.reshape(x.shape)


@implements(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    """Return the gradients where the mask is True, in order; 0 for unused source elements."""
    out = grad.new_zeros((math.prod(sizes),))
    taken = grad.masked_select(mask.expand(grad.shape))
    out[: taken.numel()] = taken
    return out.reshape(sizes)


def _nearest(name: str) -> None:
    forward = getattr(aten, name).default

    def backward(
        grad: Tensor, output_size: list[int], input_size: list[int], *scales: Any, **named: Any
    ) -> Tensor:
        chosen = list(scales) + list(named.values())
        return spread(lambda x: forward(x, output_size, *chosen), grad, input_size)

    implements(getattr(aten, f"{name}_backward").default)(backward)


for _dims in (1, 2, 3):
    _nearest(f"upsample_nearest{_dims}d")
    _nearest(f"_upsample_nearest_exact{_dims}d")
