"""Implement sorting and order statistics by value.

For canonical components the order of values is the lexicographic order of components.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.expansions.dispatch.recorded import unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.row_functions import arranged
from mcf.expansions.ops.order.narrow_order import keys
from mcf.expansions.ops.order.ranks import decided, ranked
from mcf.expansions.tensor import Components, MCFTensor, wrap
from mcf.kernels import operations, registry
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.row_tasks import RowTask

aten = torch.ops.aten


def canonical(x: MCFTensor) -> Components:
    """Return keys whose lexicographic order is that of the values; float64 for narrow formats."""
    found = None if unseen(x) else keys(x)
    if found is not None:
        return found
    if x.terms == 2:
        # A pair is canonical if its first component is the rounded sum: one kernel suffices.
        return operations.renormalize(x.components)
    return convert(x.components, x.dtype, x.terms)


def _take(x: MCFTensor, dim: int, index: Tensor) -> MCFTensor:
    if x.ndim == 0:
        return wrap([c.clone() for c in x.components])
    return wrap([c.gather(dim, index) for c in x.components])


def _order(x: MCFTensor, dim: int, descending: bool) -> Tensor:
    """Return indices that sort x, stable; NaN counts as the largest."""
    return _sorted(canonical(x), dim, descending)


def _sorted(keys: Components, dim: int, descending: bool) -> Tensor:
    """Return indices that sort canonical components, stable."""
    if not keys[0].ndim or not keys[0].numel() or unseen(keys[0]):
        return _lexicographic(keys, dim, descending)
    rows = [k.movedim(dim, -1) for k in keys]
    size = rows[0].shape[-1]
    found = _by_loop([k.reshape(k.numel() // size, size) for k in rows], descending)
    if found is None:
        return _mended(keys, dim, descending)
    return found.view(rows[0].shape).movedim(-1, dim).contiguous()


def _by_loop(
    keys: Sequence[Tensor],
    descending: bool,
    x: Sequence[Tensor] = (),
    out: Sequence[Tensor] = (),
) -> Tensor | None:
    """Return indices that sort rows of keys and write x in that order to `out`, in one loop."""
    given = [k.to(torch.float64).contiguous() for k in keys]
    index = torch.empty(given[0].shape, dtype=torch.int64, device=given[0].device)
    rows, count = index.shape
    fmt = FORMATS[x[0].dtype] if x else FP64
    task = RowTask("sort", len(given), len(x), (int(descending), 0, count, 0), format=fmt)
    done = registry.rows(task, (rows, count), [index, *out, *given, *x])
    return index if done else None


def _lexicographic(keys: Sequence[Tensor], dim: int, descending: bool) -> Tensor:
    """Return indices that sort lexicographically by several keys, stable."""
    index: Tensor | None = None
    # Stable sorts, the least significant key first.
    for c in reversed(keys):
        key = c if index is None else c.gather(dim, index) if c.ndim else c
        step = torch.sort(key, dim=dim, descending=descending, stable=True).indices
        index = step if index is None or c.ndim == 0 else index.gather(dim, step)
    assert index is not None
    return index


def _mended(keys: Components, dim: int, descending: bool) -> Tensor:
    """Return indices that sort by keys: sort by the first key, then sort its runs of equal keys."""
    first, index = torch.sort(keys[0], dim=dim, descending=descending, stable=True)
    if len(keys) == 1:
        return index
    size = first.shape[dim]
    # Compare each element with the next in its row. NaN are unequal and keep their order.
    same = first.narrow(dim, 1, size - 1) == first.narrow(dim, 0, size - 1)
    if not bool(same.any()):
        return index
    # A contiguous copy, with the sorted dimension last.
    rows = index.movedim(dim, -1).contiguous()
    same = same.movedim(dim, -1)
    edge = same.new_zeros((*same.shape[:-1], 1))
    like_last = torch.cat([edge, same], -1).reshape(-1)
    tied = like_last | torch.cat([same, edge], -1).reshape(-1)
    place = tied.nonzero().squeeze(1)
    run = (~like_last[place]).cumsum(0)
    row, given = place // size, rows.view(-1)[place]
    lower = [k.movedim(dim, -1).reshape(-1)[row * size + given] for k in keys[1:]]
    if int(torch.bincount(run).max()) <= _SHORT:
        order = _by_exchanges(run, lower, descending)
    else:
        order = _lexicographic(lower, 0, descending)
        order = order[torch.sort(run[order], stable=True).indices]
    rows.view(-1)[place] = given[order]
    return rows.movedim(-1, dim)


# Runs up to this length are sorted faster by passes over neighbours than by sorting.
_SHORT = 16


def _by_exchanges(run: Tensor, keys: Sequence[Tensor], descending: bool) -> Tensor:
    """Return indices that sort each run by its keys, stable, by exchanging neighbours.

    Even and odd pairs alternate, for as many passes as the longest run has elements (Knuth, The
    Art of Computer Programming 3, 5.3.4).
    """
    order = torch.arange(run.numel(), device=run.device)
    keys = [k.clone() for k in keys]
    pairs = (run[1:] == run[:-1]).nonzero().squeeze(1)
    turns = [pairs[pairs % 2 == parity] for parity in (0, 1)]
    settled = 0
    while settled < 2:
        turns.reverse()
        left = turns[0]
        out_of_order = torch.zeros_like(left, dtype=torch.bool)
        for key in reversed(keys):
            u, v = key[left], key[left + 1]
            after = u < v if descending else u > v
            out_of_order = after | ((u == v) & out_of_order)
        left = left[out_of_order]
        settled = 0 if left.numel() else settled + 1
        for t in (order, *keys):
            t[left], t[left + 1] = t[left + 1], t[left]
    return order


@implements(aten.sort.default)
def sort(x: MCFTensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return sorted values and their indices; always stable."""
    few = arranged("sort", x, dim, int(descending))
    if few is not None:
        return few
    here = x.dtype is torch.float64 or x.device.type == "cpu"
    if here and x.ndim and x.numel() and not unseen(x):
        found = _moved(x, dim, descending)
        if found is not None:
            return found
    index = _order(x, dim, descending)
    return _take(x, dim, index), index


def _moved(x: MCFTensor, dim: int, descending: bool) -> tuple[Tensor, Tensor] | None:
    """Sort by an executor's loop, which moves the values too; None if the executor has none."""
    given = [c.movedim(dim, -1).contiguous() for c in x.components]
    shape = given[0].shape
    rows = [c.view(c.numel() // shape[-1], shape[-1]) for c in given]
    out = [torch.empty_like(c) for c in rows]
    found = _by_loop(canonical(wrap(rows)), descending, rows, out)
    if found is None:
        return None
    index, *parts = (t.view(shape).movedim(-1, dim).contiguous() for t in (found, *out))
    return wrap(parts), index


@implements(aten.sort.stable)
def sort_stable(
    x: MCFTensor, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Return sorted values and their indices; always stable."""
    return sort(x, dim, descending)


@implements(aten.argsort.default)
def argsort(x: MCFTensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Return indices that sort x; always stable."""
    few = arranged("sort", x, dim, int(descending), moved=False)
    return few[1] if few is not None else _order(x, dim, descending)


@implements(aten.topk.default)
def topk(
    x: MCFTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements and their indices, sorted."""
    if x.ndim and not 0 <= k <= x.shape[dim]:
        raise RuntimeError(f"topk: k must be 0 to {x.shape[dim]}, got {k}")
    if x.ndim and k == x.shape[dim]:
        return sort(x, dim, largest)
    if x.ndim == 1 and 0 < k <= x.shape[0] // 8 and not unseen(x):
        index = _first(x, k, largest)
        return _take(x, 0, index), index
    index = _order(x, dim, largest)
    index = index.narrow(dim, 0, k) if x.ndim else index
    return _take(x, dim, index), index


def _first(x: MCFTensor, k: int, descending: bool) -> Tensor:
    """Return the first k sorting indices: sort only elements whose first component is among k."""
    keys = canonical(x)
    last = torch.topk(keys[0], k, largest=descending).values[-1]
    beyond = keys[0] < last if descending else keys[0] > last
    # NaN counts as the largest.
    beyond |= (last.isnan() if descending else ~last.isnan()) & (keys[0].isnan() ^ descending)
    among = (~beyond).nonzero().squeeze(1)
    order = _sorted(tuple(c[among] for c in keys), 0, descending)
    return among[order[:k]]


def not_empty(name: str, x: MCFTensor, dim: int) -> None:
    """Raise PyTorch's error if a dimension to reduce is empty."""
    if x.ndim and x.shape[dim] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {dim % x.ndim} to have non-zero size.")


def kth(x: MCFTensor, k: int, dim: int) -> Tensor:
    """Return the index of the k-th smallest along a dimension, with keepdim; stable."""
    size = x.shape[dim] if x.ndim else 1
    if not 1 <= k <= size:
        raise RuntimeError(f"kthvalue: k must be 1 to {size}, got {k}")
    if decided(x.components[0]) and not unseen(x):
        found = ranked(x.components, k - 1, lambda some: _order(wrap(some), 0, False))
        if found is not None:
            return found.reshape(1)
    index = _order(x, dim, False)
    return index.narrow(dim, k - 1, 1) if x.ndim else index


@implements(aten.kthvalue.default)
def kthvalue(x: MCFTensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the k-th smallest along a dimension and its index."""
    few = arranged("kth", x, dim, k, keepdim=keepdim)
    if few is not None:
        return few
    not_empty("kthvalue", x, dim)
    return reduced(x, kth(x, k, dim), dim, keepdim)


@implements(aten.median.dim)
def median(x: MCFTensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower median along a dimension and its index; NaN if any element is NaN."""
    few = arranged("median", x, dim, keepdim=keepdim)
    if few is not None:
        return few
    nan = x.components[0].isnan()
    size = x.shape[dim] if x.ndim else 1
    not_empty("median", x, dim)
    index = kth(x, (size + 1) // 2, dim)
    if unseen(nan) or bool(nan.any()):
        any_nan, at = nan.max(dim, keepdim=True)
        index = torch.where(any_nan, at, index)
    return reduced(x, index, dim, keepdim)


@implements(aten.median.default)
def median_all(x: MCFTensor) -> Tensor:
    """Return the lower median of all elements."""
    few = arranged("median", x, None)
    if few is not None:
        return few[0]  # type: ignore[no-any-return]
    if x.numel() == 0:
        return x.new_full((), torch.nan)
    return median(wrap([c.reshape(-1) for c in x.components]), 0)[0]


def reduced(x: MCFTensor, index: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the elements at one index in each row, and the indices."""
    if x.ndim == 0:
        return _take(x, dim, index), index
    parts = [c.gather(dim, index) for c in x.components]
    if not keepdim:
        parts, index = [c.squeeze(dim) for c in parts], index.squeeze(dim)
    return wrap(parts), index


@implements(aten.value_selecting_reduction_backward.default)
def value_selecting_reduction_backward(
    grad: MCFTensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool
) -> Tensor:
    """Return the gradient at the selected elements, 0 elsewhere."""
    if not keepdim and sizes:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)  # type: ignore[assignment]
    return grad.new_zeros(sizes).scatter(dim, indices, grad) if sizes else grad
