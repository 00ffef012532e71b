"""Implement maximum pooling over randomly placed windows (Graham 2014, arXiv:1412.6071)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.nn.convolution import batched_as, each
from mcf.expansions.tensor import MCFTensor

nn: Any = torch._C._nn


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

    def chosen(*args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        both = with_indices(*args, **kwargs)
        return both if return_indices else both[0]

    implements(getattr(nn, f"fractional_max_pool{dims}d"))(fractional_max_pool)
    implements(getattr(F, f"fractional_max_pool{dims}d_with_indices"))(with_indices)
    implements(getattr(F, f"fractional_max_pool{dims}d"))(chosen)


for _dims in (2, 3):
    _pool(_dims)
