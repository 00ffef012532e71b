"""Sums along dimensions: a tree of pairwise additions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.kernels.formats import FORMATS
from mcf.tensor.dispatch.copies import converted
from mcf.tensor.dispatch.registry import implements
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


@implements(aten.sum.dim_IntList)
def sum_dims(
    x: MCFTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The sum over dimensions; all of them for none."""
    if dtype is not None and dtype in FORMATS:
        x = wrap(converted(x, dtype, x.terms))
    kept = [d % x.ndim for d in dim] if dim and x.ndim else list(range(x.ndim))
    moved = x.movedim(kept, list(range(len(kept)))) if kept else x
    rest = moved.shape[len(kept) :]
    flat = moved.reshape(-1, *rest)
    if flat.shape[0] == 0:
        flat = x.new_zeros((1, *rest))
    while flat.shape[0] > 1:
        half = flat.shape[0] // 2
        tail = flat[2 * half :]
        flat = flat[:half] + flat[half : 2 * half]
        flat = torch.cat([flat, tail]) if len(tail) else flat
    out = flat[0]
    if keepdim:
        out = out.reshape([1 if d in kept else n for d, n in enumerate(x.shape)])
    return out.clone()


@implements(aten.sum.default)
def sum_all(x: MCFTensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of all elements."""
    return sum_dims(x, None, dtype=dtype)


@implements(aten.mean.dim)
def mean_dims(
    x: MCFTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The mean over dimensions."""
    kept = [d % x.ndim for d in dim] if dim and x.ndim else list(range(x.ndim))
    count = 1
    for d in kept:
        count *= x.shape[d]
    return sum_dims(x, dim, keepdim, dtype=dtype) / count


@implements(aten.mean.default)
def mean_all(x: MCFTensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The mean of all elements."""
    return mean_dims(x, None, dtype=dtype)
