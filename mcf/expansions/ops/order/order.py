"""Implement sorting and order statistics by value.

For canonical components the order of values is the lexicographic order of components. Narrow
expansions have float64 keys. In large tensors first components that are more than two floats apart
decide, since trailing components add at most half an ulp to each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.expansions.dispatch.recorded import unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.row_functions import arranged
from mcf.expansions.tensor import Components, MCFTensor, wrap
from mcf.kernels import operations, registry
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.ordering import limit, narrow_keys
from mcf.kernels.row_tasks import RowTask

# Smaller rows are sorted entirely.
MANY = 1 << 15
# Sample size, and the distance in ranks of the bounds from the wanted element within the sample:
# four standard deviations of the rank of the median.
SAMPLE, MARGIN = 1 << 14, 256

# Returns the indices that sort some elements, ascending and stable.
Order = Callable[[Components], Tensor]


def decided(x: Tensor) -> bool:
    """Return whether first components can decide: one nonempty row of float32 or float64."""
    return x.dtype in (torch.float32, torch.float64) and x.ndim == 1 and x.numel() > 0


@functools.cache
def _limit(towards: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((), towards, dtype=dtype, device=device)


def away(x: Tensor, towards: float) -> Tensor:
    """Return the second next float after x in a direction."""
    limit = _limit(towards, x.dtype, x.device)
    return torch.nextafter(torch.nextafter(x, limit), limit)


def extremes(x: Tensor, largest: bool) -> Tensor:
    """Return the indices of possible extremes by first components; of all NaN if there are any."""
    best = torch.amax if largest else torch.amin
    whole = x.numel() // BLOCK * BLOCK
    if not whole:
        return _reaching(x, best(x, 0), largest)
    # One pass finds the extreme of each block, which excludes most blocks.
    tops, rest = best(x[:whole].view(-1, BLOCK), 1), x[whole:]
    top = best(tops, 0)
    if rest.numel():
        top = (torch.maximum if largest else torch.minimum)(top, best(rest, 0))
    blocks = _reaching(tops, top, largest)
    if blocks.numel() > tops.numel() // 8:
        return _reaching(x, top, largest)
    some = (blocks[:, None] * BLOCK + torch.arange(BLOCK, device=x.device)).view(-1)
    some = torch.cat([some, torch.arange(whole, x.numel(), device=x.device)])
    return some[_reaching(x[some], top, largest)]


# Block size of `extremes`.
BLOCK = 1 << 10


def _reaching(x: Tensor, top: Tensor, largest: bool) -> Tensor:
    """Return the indices of elements within two floats of `top`; of all NaN if `top` is NaN."""
    edge = away(top, -torch.inf if largest else torch.inf)
    hit = x >= edge if largest else x <= edge
    # All comparisons with NaN are False.
    found = hit.nonzero().squeeze(1)
    return found if found.numel() else x.isnan().nonzero().squeeze(1)


def ranked(x: Components, k: int, order: Order) -> Tensor | None:
    """Return the index of the k-th smallest (from 0) of one row; None if it must be sorted.

    A sample bounds the element (Floyd and Rivest 1975, doi:10.1145/360680.360691), and `order`
    sorts the few percent of elements between the bounds. The result is that of a stable sort.
    """
    first = x[0]
    count = first.numel()
    step = count // SAMPLE
    if count < MANY:
        return None
    sample = first[::step].sort().values
    at = k // step
    lowest, highest = max(0, at - MARGIN), min(sample.numel() - 1, at + MARGIN)
    ends = torch.stack([sample[lowest], sample[highest]])
    if not bool(ends.isfinite().all()):
        return None
    low, high = away(ends[0], -torch.inf), away(ends[1], torch.inf)
    if lowest == 0:
        low = torch.full_like(low, -torch.inf)
    below = int((first < low).sum())
    middle = ((first >= low) & (first <= high)).nonzero().squeeze(1)
    if not below <= k < below + middle.numel():
        return None
    parts = tuple(c[middle] for c in x)
    place = order(parts)[k - below]
    found = parts[0][place]
    # An element between a bound and its widened edge may not have the wanted rank.
    inside = (found <= ends[1]) & ((found >= ends[0]) | bool(lowest == 0))
    return middle[place] if bool(inside) else None


def keys(x: MCFTensor) -> Components | None:
    """Return float64 keys whose lexicographic order is that of the values, as few as needed.

    Return None for float64 components and for devices other than the CPU. Keys depend on the value
    only; a value that rounds to infinity in x's format has the keys infinity and 0.
    """
    fmt, first = FORMATS[x.dtype], x.components[0]
    if fmt == FP64 or first.device.type != "cpu":
        return None
    found = narrow_keys(x.components)
    if found is None:
        found = [*_bounded(convert(x.components, torch.float64, x.terms), limit(fmt))]
        while len(found) > 1 and not bool(found[-1].any()):
            found.pop()
    return tuple(found)


def _bounded(keys: Components, limit: float) -> Components:
    """Replace canonical keys of values of at least `limit` in size by infinity and 0."""
    first, second, *_ = keys
    size = first.abs()
    if not bool((size >= limit).any()):
        return keys
    beyond = (size > limit) | ((size == limit) & (second * first.sign() >= 0))
    infinite: Tensor = first.sign() * torch.inf
    return (
        torch.where(beyond, infinite, first),
        *(torch.where(beyond, 0.0, k) for k in keys[1:]),
    )


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
    order = _lexicographic(lower, 0, descending)
    order = order[torch.sort(run[order], stable=True).indices]
    rows.view(-1)[place] = given[order]
    return rows.movedim(-1, dim)


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


# Sorts are always stable.
implements(aten.sort.stable)(
    lambda x, *, stable=False, dim=-1, descending=False: sort(x, dim, descending)
)


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
