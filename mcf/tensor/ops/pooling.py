"""Means and maxima over windows, of one size or as many as there are results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from mcf.tensor.ops.convolution import batched_as, each, padded, windows
from mcf.tensor.registry import implements
from mcf.tensor.roomy import fitted, roomy

nn: Any = torch._C._nn


def _pads(
    space: Sequence[int],
    size: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    gaps: Sequence[int],
    ceil_mode: bool,
) -> list[tuple[int, int]]:
    """Padding before and after; with `ceil_mode` as much more as the last window reaches over.

    That window begins inside the input or its padding.
    """
    found = []
    for n, k, s, p, d in zip(space, size, steps, pads, gaps, strict=True):
        if 2 * p > k:
            raise RuntimeError(
                f"pad should be at most half of effective kernel size, but got pad={p}, "
                f"kernel_size={k} and dilation={d}"
            )
        room = n + 2 * p - d * (k - 1) - 1
        last = (-(-room // s) if ceil_mode else room // s) * s
        if ceil_mode and last >= n + p:
            last -= s
        found.append((p, p + max(0, last - room)))
    return found


def _steps(size: tuple[int, ...], stride: Any) -> tuple[int, ...]:
    """How far windows are apart: their size, where nothing else is said."""
    steps = size if stride in (None, [], ()) else each(stride, len(size))
    if min(*size, *steps) < 1:
        raise RuntimeError(
            "kernel_size and stride should be greater than zero, but got kernel_size "
            f"{size} and stride {steps}"
        )
    return steps


def _averaged(dims: int) -> None:
    def avg_pool(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        x, batched = batched_as(roomy(input), dims)
        size = each(kernel_size, dims)
        steps = _steps(size, stride)
        own, ones = each(padding, dims), (1,) * dims
        pads = _pads(x.shape[2:], size, steps, own, ones, ceil_mode)
        total = windows(padded(x, pads), size, steps, ones)[0].sum(2)
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        if divisor_override is not None:
            out = total / divisor_override
        else:
            # Integers have no say in the format of the result, and are exact. What is beyond the
            # padding is never counted.
            counted = torch.ones(1, 1, *x.shape[2:], dtype=torch.int64, device=x.device)
            if count_include_pad:
                counted = padded(counted, [(p, p) for p in own], 1)
                pads = [(0, after - p) for p, (_, after) in zip(own, pads, strict=True)]
            out = total / windows(padded(counted, pads), size, steps, ones)[0].sum(2)
        return fitted(out if batched else out[0], input)

    implements(getattr(F, f"avg_pool{dims}d"))(avg_pool)


def _largest(dims: int) -> None:
    def with_indices(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        x, batched = batched_as(input, dims)
        size, gaps = each(kernel_size, dims), each(dilation, dims)
        steps = _steps(size, stride)
        space, own = x.shape[2:], each(padding, dims)
        pads = _pads(space, size, steps, own, gaps, ceil_mode)
        found, out = windows(padded(x, pads, -math.inf), size, steps, gaps)
        values, chosen = found.max(2)
        # The number of an element of the window, as its place in the input.
        places = torch.zeros_like(chosen)
        for d in range(dims):
            offset = chosen // math.prod(size[d + 1 :]) % size[d] * gaps[d]
            start = torch.arange(out[d], device=x.device) * steps[d] - own[d]
            start = start.reshape(-1, *(1 for _ in out[d + 1 :]))
            places = places * space[d] + start + offset
        return (values, places) if batched else (values[0], places[0])

    def max_pool(*args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        both = with_indices(*args, **kwargs)
        return both if return_indices else both[0]

    implements(getattr(torch, f"max_pool{dims}d"), getattr(F, f"max_pool{dims}d"))(max_pool)
    room = torch if dims == 1 else nn
    implements(getattr(room, f"max_pool{dims}d_with_indices"))(with_indices)


Reduce = Callable[[Any, int], Any]


def _adapted(x: Any, output_size: Any, dims: int, reduce: Reduce) -> Any:
    """x with each of its last dimensions reduced to a size, the last one first.

    Element i is that of floor(i n / out) to ceil((i + 1) n / out).
    """
    for k, out in reversed(list(enumerate(each(output_size, dims)))):
        d = k - dims
        n = x[0].shape[d]
        # None keeps the size.
        ends = [
            (i * n // out, -(-(i + 1) * n // out))
            for out in [n if out is None else out]
            for i in range(out)
        ]
        parts = [reduce([t.narrow(d, a, b - a) for t in x], d) for a, b in ends]
        if not parts:
            x = [t.narrow(d, 0, 0) for t in x]
            continue
        x = [torch.stack(same, d) for same in zip(*parts, strict=True)]
    return x


def _mean(given: Any, d: int) -> Any:
    return [given[0].mean(d)]


def _max(given: Any, d: int) -> Any:
    x, places = given
    values, chosen = x.max(d, keepdim=True)
    return [values.squeeze(d), places.gather(d, chosen).squeeze(d)]


def _adaptive(dims: int) -> None:
    def adaptive_avg_pool(input: Any, output_size: Any) -> Any:
        return _adapted([input], output_size, dims, _mean)[0]

    def adaptive_max_pool(input: Any, output_size: Any) -> Any:
        space = input.shape[-dims:]
        places = torch.arange(math.prod(space), device=input.device).reshape(space)
        places = places.expand(input.shape)
        values, indices = _adapted([input, places], output_size, dims, _max)
        return values, indices

    def chosen(input: Any, output_size: Any, return_indices: bool = False) -> Any:
        both = adaptive_max_pool(input, output_size)
        return both if return_indices else both[0]

    room = torch if dims == 1 else nn
    implements(getattr(room, f"adaptive_avg_pool{dims}d"))(adaptive_avg_pool)
    implements(getattr(room, f"adaptive_max_pool{dims}d"))(adaptive_max_pool)
    implements(getattr(F, f"adaptive_max_pool{dims}d"))(chosen)


def max_unpool(input: Any, indices: Any, output_size: Any, *rest: Any) -> Any:
    """Zeros, with the elements at their places."""
    dims = len(output_size)
    kept = input.shape[: input.dim() - dims]
    flat, where = (t.reshape(*kept, -1) for t in (input, indices))
    size = math.prod(output_size)
    if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < size:
        raise RuntimeError(f"Found an invalid max index: allowed are 0 to {size - 1}")
    return flat.new_zeros(*kept, size).scatter(-1, where, flat).reshape(*kept, *output_size)


implements(nn.max_unpool2d, nn.max_unpool3d)(max_unpool)
for _dims in (1, 2, 3):
    _averaged(_dims)
    _largest(_dims)
    _adaptive(_dims)
