"""Running extremes and running logarithms of sums; sums that pass over NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.row_tasks import RowTask, along
from mcf.kernels.running import running_extremes
from mcf.tensor.ops.order import canonical
from mcf.tensor.recorded import recorded
from mcf.tensor.registry import implements
from mcf.tensor.row_plans import arranged
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


def _doubling(function: Callable[[Any, Any], Any], x: Any, dim: int) -> Any:
    """x_0, f(x_0, x_1), ... of an associative function, in log2(count) steps.

    After the step of width k an element has the function of the 2 k before it and itself.
    """
    count, width = x.shape[dim], 1
    while width < count:
        later = function(x.narrow(dim, 0, count - width), x.narrow(dim, width, count - width))
        x = torch.cat([x.narrow(dim, 0, width), later], dim)
        width *= 2
    return x


@implements(torch.logcumsumexp, Tensor.logcumsumexp, aten.logcumsumexp.default)
def logcumsumexp(x: Any, dim: int) -> Any:
    """log(exp(x_0) + ... + exp(x_k)), as a tree."""
    along(x.shape or (1,), dim)
    return x.clone() if x.dim() == 0 else _doubling(torch.logaddexp, x, dim)


def _extremes(x: Any, dim: int, largest: bool) -> tuple[Any, Tensor]:
    """Running extremes and where they are, the last of equal ones; NaN stays."""
    if type(x) is MCFTensor:
        few = arranged("running_largest" if largest else "running_smallest", x, dim)
        if few is not None:
            return few
    if x.dim() == 0:
        along((1,), dim)
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    found = _by_loop(x, dim, largest)
    if found is not None:
        return found
    keys = [c.movedim(dim, -1) for c in canonical(x.detach())]
    size = max(1, x.shape[dim])
    flat = [c.reshape(c.numel() // size, c.shape[-1]) for c in keys]
    index = running_extremes(flat, largest).view(keys[0].shape).movedim(-1, dim)
    return x.gather(dim, index), index.contiguous()


def _by_loop(x: Any, dim: int, largest: bool) -> tuple[Any, Tensor] | None:
    """Numbers and places by an executor's loop over rows; None where it has none for them."""
    if type(x) is not MCFTensor or recorded(x):
        return None
    given = list(x.components)
    first = given[0]
    if first.dtype is not torch.float64 or not first.numel() or type(first) is not Tensor:
        return None
    if not first.is_contiguous():
        return None
    count, inner = along(first.shape, dim)
    keys = [k.contiguous() for k in canonical(x)]
    index = torch.empty(first.shape, dtype=torch.int64, device=first.device)
    out = [torch.empty_like(c) for c in given]
    name = "running_largest" if largest else "running_smallest"
    task = RowTask(name, len(keys), len(out), inner=inner)
    if not registry.rows(task, (first.numel() // count, count), [index, *out, *keys, *given]):
        return None
    return wrap(out), index


@implements(torch.cummax, Tensor.cummax, aten.cummax.default)
def cummax(x: Any, dim: int) -> Any:
    """The largest so far and its index."""
    return torch.return_types.cummax(_extremes(x, dim, True))


@implements(torch.cummin, Tensor.cummin, aten.cummin.default)
def cummin(x: Any, dim: int) -> Any:
    """The smallest so far and its index."""
    return torch.return_types.cummin(_extremes(x, dim, False))


@implements(torch.nansum, Tensor.nansum, aten.nansum.default)
def nansum(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """The sum over dimensions of what is not NaN."""
    kept = torch.where(x.isnan(), 0, x)
    return kept.sum(dim, keepdim=keepdim, dtype=dtype)


@implements(torch.nanmean, Tensor.nanmean)
def nanmean(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """The mean over dimensions of what is not NaN."""
    count = (~x.isnan()).sum(dim, keepdim=keepdim)
    return nansum(x, dim, keepdim, dtype=dtype) / count
