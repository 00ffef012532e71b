"""Sorting and extremes by value.

On canonical components the order of values is the lexicographic order of components.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.reductions.rows import Rows
from mcf.tensor.registry import implements
from mcf.tensor.tensor import Components, MCFTensor, wrap

aten = torch.ops.aten


def _canonical(x: MCFTensor) -> Components:
    return convert(x.components, x.dtype, x.terms)


def _take(x: MCFTensor, dim: int, index: Tensor) -> MCFTensor:
    if x.ndim == 0:
        return wrap([c.clone() for c in x.components])
    return wrap([c.gather(dim, index) for c in x.components])


def _order(x: MCFTensor, dim: int, descending: bool) -> Tensor:
    """Indices that sort, stable; NaN counts as the largest."""
    index: Tensor | None = None
    # Stable sorts, the least significant key first.
    for c in reversed(_canonical(x)):
        key = c if index is None else c.gather(dim, index) if c.ndim else c
        step = torch.sort(key, dim=dim, descending=descending, stable=True).indices
        index = step if index is None or c.ndim == 0 else index.gather(dim, step)
    assert index is not None
    return index


@implements(aten.sort.default)
def sort(x: MCFTensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted values and their indices; stable."""
    index = _order(x, dim, descending)
    return _take(x, dim, index), index


@implements(aten.sort.stable)
def sort_stable(
    x: MCFTensor, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Sorted values and their indices; stable."""
    return sort(x, dim, descending)


@implements(aten.argsort.default)
def argsort(x: MCFTensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Indices that sort; stable."""
    return _order(x, dim, descending)


@implements(aten.topk.default)
def topk(
    x: MCFTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The k largest or smallest and their indices, sorted."""
    if x.ndim and not 0 <= k <= x.shape[dim]:
        raise RuntimeError(f"topk: k must be 0 to {x.shape[dim]}, got {k}")
    index = _order(x, dim, largest)
    index = index.narrow(dim, 0, k) if x.ndim else index
    return _take(x, dim, index), index


@implements(aten.kthvalue.default)
def kthvalue(x: MCFTensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest along a dimension and its index."""
    size = x.shape[dim] if x.ndim else 1
    if not 1 <= k <= size:
        raise RuntimeError(f"kthvalue: k must be 1 to {size}, got {k}")
    index = _order(x, dim, False)
    index = index.narrow(dim, k - 1, 1) if x.ndim else index
    return _reduced(_take(x, dim, index), index, dim, keepdim)


@implements(aten.median.dim)
def median(x: MCFTensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower median along a dimension and its index; NaN where there is one."""
    nan = x.components[0].isnan()
    size = x.shape[dim] if x.ndim else 1
    _, index = kthvalue(x, (size + 1) // 2, dim, True)
    any_nan, at = nan.max(dim, keepdim=True)
    index = torch.where(any_nan, at, index)
    return _reduced(_take(x, dim, index), index, dim, keepdim)


@implements(aten.median.default)
def median_all(x: MCFTensor) -> Tensor:
    """The lower median of all elements."""
    if x.numel() == 0:
        return x.new_full((), torch.nan)
    return median(x.reshape(-1), 0)[0]  # type: ignore[arg-type]


def _reduced(values: Tensor, index: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if keepdim or values.ndim == 0:
        return values, index
    return values.squeeze(dim), index.squeeze(dim)


def _extreme(x: MCFTensor, dim: int, largest: bool) -> Tensor:
    """The first index along a dimension, kept, of the largest or smallest; NaN wins."""
    best = torch.amax if largest else torch.amin
    worst = -torch.inf if largest else torch.inf
    among: Tensor | None = None
    for c in _canonical(x):
        c = c if among is None else torch.where(among, c, worst)
        top = best(c, dim, keepdim=True)
        hit = (c == top) | (c.isnan() & top.isnan())
        among = hit if among is None else among & hit
    assert among is not None
    return among.to(torch.uint8).argmax(dim, keepdim=True)


def _along(largest: bool) -> Any:
    def along(x: MCFTensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        index = _extreme(x, dim, largest)
        return _reduced(_take(x, dim, index), index, dim, keepdim)

    return along


implements(aten.max.dim)(_along(True))
implements(aten.min.dim)(_along(False))


def _index_of(largest: bool) -> Any:
    def index_of(x: MCFTensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            index = _extreme(wrap([c.reshape(-1) for c in x.components]), 0, largest)
            return index.reshape([1] * x.ndim if keepdim else [])
        index = _extreme(x, dim, largest)
        return index if keepdim or x.ndim == 0 else index.squeeze(dim)

    return index_of


implements(aten.argmax.default)(_index_of(True))
implements(aten.argmin.default)(_index_of(False))


def _over(largest: bool) -> Any:
    def over(x: MCFTensor, dim: Any = (), keepdim: bool = False) -> Tensor:
        for d in reversed(Rows.of(x.shape, dim).dims):
            values, _ = _along(largest)(x, d, keepdim)
            x = values
        return x if x.ndim or keepdim else wrap([c.clone() for c in x.components])

    return over


implements(aten.amax.default)(_over(True))
implements(aten.amin.default)(_over(False))
implements(aten.max.default)(lambda x: _over(True)(x))
implements(aten.min.default)(lambda x: _over(False)(x))


@implements(aten.aminmax.default)
def aminmax(
    x: MCFTensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest."""
    dims = () if dim is None else dim
    return _over(False)(x, dims, keepdim), _over(True)(x, dims, keepdim)


@implements(aten.value_selecting_reduction_backward.default)
def value_selecting_reduction_backward(
    grad: MCFTensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool
) -> Tensor:
    """The gradient at the selected elements, 0 elsewhere."""
    if not keepdim and sizes:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)  # type: ignore[assignment]
    return grad.new_zeros(sizes).scatter(dim, indices, grad) if sizes else grad
