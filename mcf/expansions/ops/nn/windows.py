"""Implement convolutions and pooling by gathering windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.constants import row_scale
from mcf.expansions.ops.reductions.norms import power
from mcf.expansions.tensor import MCFTensor

nn: Any = torch._C._nn


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


def _convolution_pads(
    padding: Any, weight: Any, stride: Any, dilation: Any, dims: int
) -> list[Any]:
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


def _convolution(dims: int) -> None:
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
        pads = _convolution_pads(padding, weight, steps, gaps, dims)
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


@implements(torch.conv_tbc, F.conv_tbc)
def conv_tbc(input: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """Return conv1d of input [time, batch, channels] with weight [size, in, out]."""
    x, w = input.permute(1, 2, 0), weight.permute(2, 1, 0)
    return torch.conv1d(x, w, bias, padding=pad).permute(2, 0, 1)


def _pads(
    space: Sequence[int],
    size: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    gaps: Sequence[int],
    ceil_mode: bool,
) -> list[tuple[int, int]]:
    """Return padding before and after; with `ceil_mode` extended to the end of the last window.

    The last window must begin inside the input or its leading padding.
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
    """Return the strides, which default to the window size."""
    steps = size if stride in (None, [], ()) else each(stride, len(size))
    if min(*size, *steps) < 1:
        raise RuntimeError(
            "kernel_size and stride should be greater than zero, but got kernel_size "
            f"{size} and stride {steps}"
        )
    return steps


class _Windows(NamedTuple):
    """Windows of an input, [batch, channels, elements, *places].

    Args:
        x: their elements, 0 outside the input.
        counted: 1 for elements of the input (and of counted padding), else 0.
        batched: whether the input had a batch dimension.
    """

    x: Any
    counted: Any
    batched: bool

    def fitted(self, out: Any, input: Any) -> Any:
        """Convert one number per window to the input's format and dimensions."""
        return fitted(out if self.batched else out[0], input)


def _windows(
    input: Any,
    dims: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> _Windows:
    """Cut an input into windows, in the format of `roomy`."""
    x, batched = batched_as(roomy(input), dims)
    size = each(kernel_size, dims)
    steps = _steps(size, stride)
    own, ones = each(padding, dims), (1,) * dims
    pads = _pads(x.shape[2:], size, steps, own, ones, ceil_mode)
    found = windows(padded(x, pads), size, steps, ones)[0]
    # Integer counts are exact and do not change the result's format. Elements beyond the padding
    # are never counted.
    counted = torch.ones(1, 1, *x.shape[2:], dtype=torch.int64, device=x.device)
    if count_include_pad:
        counted = padded(counted, [(p, p) for p in own], 1)
        pads = [(0, after - p) for p, (_, after) in zip(own, pads, strict=True)]
    return _Windows(found, windows(padded(counted, pads), size, steps, ones)[0], batched)


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
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        found = _windows(input, dims, kernel_size, stride, padding, ceil_mode, count_include_pad)
        count = found.counted.sum(2) if divisor_override is None else divisor_override
        return found.fitted(found.x.sum(2) / count, input)

    implements(getattr(F, f"avg_pool{dims}d"))(avg_pool)


def _power_averaged(dims: int) -> None:
    def lp_pool(
        input: Any,
        norm_type: float,
        kernel_size: Any,
        stride: Any = None,
        ceil_mode: bool = False,
    ) -> Any:
        if math.isinf(norm_type):
            largest = getattr(F, f"max_pool{dims}d")
            sign = 1 if norm_type > 0 else -1
            return sign * largest(sign * input.abs(), kernel_size, stride, 0, 1, ceil_mode)
        found = _windows(input, dims, kernel_size, stride, 0, ceil_mode)
        scale = row_scale(found.x, [2])
        x = found.x if scale is None else found.x * scale
        powers = torch.where(found.counted > 0, power(x, Fraction(norm_type)), 0)
        size = math.prod(each(kernel_size, dims))
        total = powers.sum(2) / found.counted.sum(2) * size
        # The derivative for a zero sum is 0, as PyTorch documents.
        zero = total == 0
        root = power(torch.where(zero, 1, total), 1 / Fraction(norm_type))
        root = root if scale is None else root / scale[:, :, 0]
        return found.fitted(torch.where(zero, 0, root), input)

    implements(getattr(F, f"lp_pool{dims}d"))(lp_pool)


def _alone(both: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """Return the variant of a pooling that returns the indices only if it is asked to."""

    def values(*args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        found = both(*args, **kwargs)
        return found if return_indices else found[0]

    return values


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
        # Convert the index inside a window to an index in the input.
        places = torch.zeros_like(chosen)
        for d in range(dims):
            offset = chosen // math.prod(size[d + 1 :]) % size[d] * gaps[d]
            start = torch.arange(out[d], device=x.device) * steps[d] - own[d]
            start = start.reshape(-1, *(1 for _ in out[d + 1 :]))
            places = places * space[d] + start + offset
        return (values, places) if batched else (values[0], places[0])

    implements(getattr(torch, f"max_pool{dims}d"), getattr(F, f"max_pool{dims}d"))(
        _alone(with_indices)
    )
    room = torch if dims == 1 else nn
    implements(getattr(room, f"max_pool{dims}d_with_indices"))(with_indices)


Reduce = Callable[[Any, int], Any]


def _adapted(x: Any, output_size: Any, dims: int, reduce: Reduce) -> Any:
    """Reduce each of the last dimensions of x to a size, the last one first.

    Element i covers the range floor(i n / out) to ceil((i + 1) n / out).
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

    room = torch if dims == 1 else nn
    implements(getattr(room, f"adaptive_avg_pool{dims}d"))(adaptive_avg_pool)
    implements(getattr(room, f"adaptive_max_pool{dims}d"))(adaptive_max_pool)
    implements(getattr(F, f"adaptive_max_pool{dims}d"))(_alone(adaptive_max_pool))


def max_unpool(input: Any, indices: Any, output_size: Any, *rest: Any) -> Any:
    """Scatter the elements to their indices in a tensor of zeros."""
    dims = len(output_size)
    kept = input.shape[: input.dim() - dims]
    flat, where = (t.reshape(*kept, -1) for t in (input, indices))
    size = math.prod(output_size)
    if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < size:
        raise RuntimeError(f"Found an invalid max index: indices must be 0 to {size - 1}")
    return flat.new_zeros(*kept, size).scatter(-1, where, flat).reshape(*kept, *output_size)


implements(nn.max_unpool2d, nn.max_unpool3d)(max_unpool)
for _dims in (1, 2, 3):
    _averaged(_dims)
    _power_averaged(_dims)
    _largest(_dims)
    _adaptive(_dims)
    _convolution(_dims)


def _starts(samples: Any, n: int, size: int, out: int) -> Any:
    """Return window starts of one dimension, [batch, channels, out], from samples in [0, 1)."""
    steps = torch.arange(out, device=samples.device, dtype=torch.float64)
    alpha = (n - size) / (out - 1) if out > 1 else 0.0
    found = ((steps + samples[..., None]) * alpha).long() - (samples[..., None] * alpha).long()
    found[..., -1] = n - size
    return found


def _pool(dims: int) -> None:
    def fractional_max_pool(
        input: Any, kernel_size: Any, output_size: Any, _random_samples: Any
    ) -> tuple[Any, Any]:
        x, batched = batched_as(input, dims)
        size, out = each(kernel_size, dims), each(output_size, dims)
        space: Sequence[int] = x.shape[2:]
        for n, k, o in zip(space, size, out, strict=True):
            if o < 1 or k < 1 or o + k - 1 > n:
                raise RuntimeError(
                    f"fractional_max_pool{dims}d: {o} windows of {k} elements do not fit in {n}"
                )
        samples = _random_samples.detach()
        samples = (
            samples.to_plain(torch.float64) if isinstance(samples, MCFTensor) else samples.double()
        )
        if tuple(samples.shape) != (*x.shape[:2], dims):
            raise RuntimeError(
                f"fractional_max_pool{dims}d: _random_samples must have shape "
                f"{[*x.shape[:2], dims]}, got {list(samples.shape)}"
            )
        # In PyTorch the first sample is for the width of an image, but for the depth of a volume.
        order = (1, 0) if dims == 2 else (0, 1, 2)
        places = torch.zeros(*x.shape[:2], *(1,) * (2 * dims), dtype=torch.int64, device=x.device)
        for d, (n, k, o) in enumerate(zip(space, size, out, strict=True)):
            starts = _starts(samples[..., order[d]], n, k, o)
            rows = starts.reshape(*x.shape[:2], *(o if j == d else 1 for j in range(dims)),
                                  *(1,) * dims)  # fmt: skip
            inner = torch.arange(k, device=x.device)
            inner = inner.reshape(*(k if j == d else 1 for j in range(dims)))
            places = places * n + rows + inner
        flat = places.reshape(*x.shape[:2], -1)
        found = x.flatten(2).gather(2, flat).reshape(*x.shape[:2], *out, math.prod(size))
        values, chosen = found.max(-1)
        indices = flat.reshape(*found.shape).gather(-1, chosen[..., None])[..., 0]
        return (values, indices) if batched else (values[0], indices[0])

    def with_indices(
        input: Any,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> tuple[Any, Any]:
        if (output_size is None) == (output_ratio is None):
            raise ValueError(
                f"fractional_max_pool{dims}d: give one of output_size and output_ratio, got "
                f"{output_size} and {output_ratio}"
            )
        if output_size is None:
            ratios = (output_ratio,) * dims if isinstance(output_ratio, float) else output_ratio
            if not all(0 < r < 1 for r in ratios):
                raise ValueError(
                    f"fractional_max_pool{dims}d: output_ratio must be between 0 and 1, got "
                    f"{output_ratio}"
                )
            space = input.shape[-dims:]
            output_size = [int(n * r) for n, r in zip(space, ratios, strict=True)]
        if _random_samples is None:
            rows = input.shape[:-dims] if input.dim() == dims + 2 else (1, input.shape[0])
            _random_samples = torch.rand(*rows, dims, dtype=torch.float64, device=input.device)
        return fractional_max_pool(input, kernel_size, output_size, _random_samples)

    implements(getattr(nn, f"fractional_max_pool{dims}d"))(fractional_max_pool)
    implements(getattr(F, f"fractional_max_pool{dims}d_with_indices"))(with_indices)
    implements(getattr(F, f"fractional_max_pool{dims}d"))(_alone(with_indices))


for _dims in (2, 3):
    _pool(_dims)
