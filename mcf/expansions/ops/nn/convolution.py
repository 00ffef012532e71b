"""Implement convolutions by gathering windows, then one matrix product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from mcf.expansions.dispatch.registry import implements


def each(value: Any, dims: int) -> tuple[Any, ...]:
    """Return a tuple of `dims` numbers, given one number or a sequence.

    Raises:
        RuntimeError: if the sequence has neither 1 nor `dims` numbers.
    """
    if isinstance(value, list | tuple) and len(value) not in (1, dims):
        raise RuntimeError(f"expected a single int or {dims} of them, got {tuple(value)}")
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))


def windows(
    x: Any, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Any, list[int]]:
    """Return the windows of x [batch, c, *space] as [batch, c, prod(size), *out], and `out`."""
    space = x.shape[2:]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(space, size, stride, dilation, strict=True)
    ]
    if min(out) <= 0:
        raise RuntimeError(f"windows of {list(size)} do not fit in {list(space)}")
    parts = []
    for offsets in itertools.product(*(range(k) for k in size)):
        window = tuple(
            slice(o * d, o * d + s * (n - 1) + 1, s)
            for o, d, s, n in zip(offsets, dilation, stride, out, strict=True)
        )
        index = (..., *window)
        parts.append(x[index])
    return torch.stack(parts, 2), out


def padded(x: Any, padding: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    """Pad x with a value: (before, after) for each spatial dimension."""
    flat = [p for pair in reversed(padding) for p in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


def _convolve(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """Convolve x [batch, c, *space] with weight [o, c / groups, *size]."""
    size = weight.shape[2:]
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise RuntimeError(
            f"convolution: input of {x.shape[1]} channels and weight of shape "
            f"{list(weight.shape)} do not fit for groups={groups}"
        )
    columns, out = windows(padded(x, padding), size, stride, dilation)
    batch, share = x.shape[0], weight.shape[0] // groups
    columns = columns.reshape(batch, groups, weight.shape[1] * math.prod(size), -1)
    rows = weight.reshape(groups, share, -1)
    result = (rows @ columns).reshape(batch, weight.shape[0], *out)
    if bias is None:
        return result
    return result + bias.reshape(-1, *(1 for _ in size))


def _pads(padding: Any, weight: Any, stride: Any, dilation: Any, dims: int) -> list[Any]:
    if isinstance(padding, int) or not isinstance(padding, str):
        return [(p, p) for p in each(padding, dims)]
    if padding == "valid":
        return [(0, 0)] * dims
    if padding != "same" or any(s != 1 for s in stride):
        raise RuntimeError(
            f"convolution: padding must be ints, 'valid' or (for stride 1) 'same', got {padding!r}"
        )
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    return [(t // 2, t - t // 2) for t in total]


def batched_as(x: Any, dims: int) -> tuple[Any, bool]:
    """Add a batch dimension to x if it has none; return whether it had one."""
    return (x, True) if x.dim() == dims + 2 else (x[None], False)


def _register(dims: int) -> None:
    def convolution(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        x, batched = batched_as(input, dims)
        steps, gaps = each(stride, dims), each(dilation, dims)
        pads = _pads(padding, weight, steps, gaps, dims)
        out = _convolve(x, weight, bias, steps, pads, gaps, groups)
        return out if batched else out[0]

    def transposed(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        x, batched = batched_as(input, dims)
        steps, gaps = each(stride, dims), each(dilation, dims)
        # Insert zeros between the elements, then convolve with the mirrored kernel.
        space = [s * (n - 1) + 1 for s, n in zip(steps, x.shape[2:], strict=True)]
        spread = x.new_zeros([*x.shape[:2], *space])
        places = (..., *(slice(None, None, s) for s in steps))
        spread[places] = x
        share = weight.shape[1]
        kernel = weight.reshape(groups, -1, share, *weight.shape[2:]).transpose(1, 2)
        kernel = kernel.reshape(groups * share, -1, *weight.shape[2:])
        kernel = kernel.flip(tuple(range(2, dims + 2)))
        pads = [
            (d * (k - 1) - p, d * (k - 1) - p + o)
            for d, k, p, o in zip(
                gaps,
                weight.shape[2:],
                each(padding, dims),
                each(output_padding, dims),
                strict=True,
            )
        ]
        out = _convolve(spread, kernel, bias, (1,) * dims, pads, gaps, groups)
        return out if batched else out[0]

    implements(getattr(torch, f"conv{dims}d"), getattr(F, f"conv{dims}d"))(convolution)
    implements(getattr(torch, f"conv_transpose{dims}d"), getattr(F, f"conv_transpose{dims}d"))(
        transposed
    )


for _dims in (1, 2, 3):
    _register(_dims)


@implements(torch.conv_tbc, F.conv_tbc)
def conv_tbc(input: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """Return conv1d of input [time, batch, channels] with weight [size, in, out]."""
    x, w = input.permute(1, 2, 0), weight.permute(2, 1, 0)
    return torch.conv1d(x, w, bias, padding=pad).permute(2, 0, 1)
