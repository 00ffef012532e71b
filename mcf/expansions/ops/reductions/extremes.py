"""Implement maximum and minimum reductions by value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.row_functions import arranged
from mcf.expansions.ops.order.order import canonical, decided, extremes, reduced
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels import registry
from mcf.kernels.formats import BF16, FORMATS, FP16
from mcf.kernels.row_tasks import RowTask, along
from mcf.reductions.rows import Rows

aten = torch.ops.aten


def _extreme(x: MCFTensor, dim: int, largest: bool) -> Tensor:
    """Return the first index of the extreme along a dimension, with keepdim; NaN wins."""
    found = _by_first(x, dim, largest)
    return _by_all(x, dim, largest) if found is None else found[0]


def _by_all(x: MCFTensor, dim: int, largest: bool) -> Tensor:
    """Return the indices of extremes like `_extreme`, without the loop over first components."""
    if decided(x.components[0]) and not unseen(x):
        some = extremes(x.components[0], largest)
        if some.numel() == 1:
            return some
        if some.numel() < x.numel():
            return some[_among(wrap([c[some] for c in x.components]), 0, largest)]
    found = _by_loop(x, dim, largest) if x.ndim and x.numel() and not unseen(x) else None
    return _among(x, dim, largest) if found is None else found


# Fewest elements for which first components are compared alone.
_MANY = 1 << 12


def _by_first(
    x: MCFTensor, dim: int, largest: bool, moved: bool = False
) -> tuple[Tensor, list[Tensor] | None] | None:
    """Return the indices of extremes like `_extreme`, and the components there if `moved`.

    Return None if first components do not decide most rows, or no executor has the loop.
    """
    if not x.ndim or x.numel() < _MANY or unseen(x):
        return None
    count, inner = along(x.shape, dim)
    rows, fmt, shape = x.numel() // count, FORMATS[x.dtype], list(x.shape)
    if rows == 1:
        return _by_pieces(x, largest, moved) if fmt in (BF16, FP16) and x.ndim == 1 else None
    shape[dim] = 1
    index = torch.empty(shape, dtype=torch.int64, device=x.device)
    parts = [c.contiguous() for c in x.components]
    moves = parts if moved else []
    out = [torch.empty(shape, dtype=c.dtype, device=c.device) for c in moves]
    options = fmt.p, fmt.emin - fmt.p + 1
    # In 16-bit formats all components are summed and compared.
    looked = parts if fmt in (BF16, FP16) else parts[:1]
    name = "highest" if largest else "lowest"
    task = RowTask(name, len(looked), len(moves), options, inner, format=fmt, keys=fmt)
    if not registry.rows(task, (rows, count), [index, *out, *looked, *moves]):
        return None
    left = (index.view(-1) < 0).nonzero().squeeze(1)
    if not left.numel():
        return index, out or None
    if left.numel() > rows // 8:
        return None
    outer, column = left // inner, left % inner
    rest = wrap([c.view(-1, count, inner)[outer, :, column] for c in parts])
    places = _by_all(rest, 1, largest)
    index.view(-1)[left] = places.squeeze(1)
    for c, r in zip(out, rest.components, strict=False):
        c.view(-1)[left] = r.gather(1, places).squeeze(1)
    return index, out or None


# Piece size into which a long row is cut.
_PIECE = 1 << 11


def _by_pieces(
    x: MCFTensor, largest: bool, moved: bool
) -> tuple[Tensor, list[Tensor] | None] | None:
    """Return the extreme of one long row like `_by_first`, from the extremes of its pieces."""
    pieces = x.numel() // _PIECE
    if pieces < 2:
        return None
    whole = pieces * _PIECE
    found = _by_first(
        wrap([c[:whole].view(pieces, _PIECE) for c in x.components]), 1, largest, True
    )
    if found is None or found[1] is None:
        return None
    places = torch.arange(0, whole, _PIECE, device=x.device) + found[0].view(-1)
    places = torch.cat([places, torch.arange(whole, x.numel(), device=x.device)])
    some = [torch.cat([a.view(-1), c[whole:]]) for a, c in zip(found[1], x.components, strict=True)]
    # Ties go to the first piece, which holds the first index.
    index = places[_by_all(wrap(some), 0, largest)]
    return index, [c[index] for c in x.components] if moved else None


def _by_loop(x: MCFTensor, dim: int, largest: bool) -> Tensor | None:
    """Return the indices of extremes by an executor's loop over rows; None if unsupported."""
    count, inner = along(x.shape, dim)
    keys = [k.to(torch.float64).contiguous() for k in canonical(x)]
    shape = list(x.shape)
    shape[dim] = 1
    index = torch.empty(shape, dtype=torch.int64, device=x.device)
    task = RowTask("largest" if largest else "smallest", len(keys), inner=inner)
    if registry.rows(task, (index.numel(), count), [index, *keys]):
        return index
    if inner == 1:
        return None
    found = _by_loop(wrap([c.movedim(dim, -1).contiguous() for c in x.components]), -1, largest)
    return None if found is None else found.movedim(-1, dim)


def _among(x: MCFTensor, dim: int, largest: bool) -> Tensor:
    """Return the indices of extremes by comparing one component after the other."""
    best = torch.amax if largest else torch.amin
    worst = -torch.inf if largest else torch.inf
    among: Tensor | None = None
    for c in canonical(x):
        c = c if among is None else torch.where(among, c, worst)
        top = best(c, dim, keepdim=True)
        hit = (c == top) | (c.isnan() & top.isnan())
        among = hit if among is None else among & hit
        if not unseen(c) and not bool((among.sum(dim) > 1).any()):
            break
    assert among is not None
    return among.to(torch.uint8).argmax(dim, keepdim=True)


def _along(largest: bool) -> Any:
    name = "largest" if largest else "smallest"

    def along(x: MCFTensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        few = arranged(name, x, dim, keepdim=keepdim)
        if few is not None:
            return few
        found = _by_first(x, dim, largest, moved=True)
        if found is not None and found[1] is not None:
            index, numbers = found[0], found[1]
            if not keepdim:
                index, numbers = index.squeeze(dim), [c.squeeze(dim) for c in numbers]
            return wrap(numbers), index
        index = _by_all(x, dim, largest) if found is None else found[0]
        return reduced(x, index, dim, keepdim)

    return along


implements(aten.max.dim)(_along(True))
implements(aten.min.dim)(_along(False))


def _index_of(largest: bool) -> Any:
    name = "largest" if largest else "smallest"

    def index_of(x: MCFTensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        few = arranged(name, x, dim, keepdim=keepdim, moved=False)
        if few is not None:
            return few[1]  # type: ignore[no-any-return]
        if dim is None:
            index = _extreme(wrap([c.reshape(-1) for c in x.components]), 0, largest)
            return index.reshape([1] * x.ndim if keepdim else [])
        along(x.shape or (1,), dim)
        index = _extreme(x, dim, largest)
        return index if keepdim or x.ndim == 0 else index.squeeze(dim)

    return index_of


implements(aten.argmax.default)(_index_of(True))
implements(aten.argmin.default)(_index_of(False))


def _over(largest: bool, function: str) -> Any:
    along, name = _along(largest), "largest" if largest else "smallest"

    def over(x: MCFTensor, dim: Any = (), keepdim: bool = False) -> Tensor:
        over = tuple(dim) if isinstance(dim, list | tuple) else dim
        few = arranged(name, x, None if over == () else over, keepdim=keepdim)
        if few is not None:
            return few[0]  # type: ignore[no-any-return]
        if over in ((), None) and x.numel() == 0:
            raise RuntimeError(
                f"{function}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )
        found: Any = x
        for d in reversed(Rows.of(x.shape, dim).dims):
            found, _ = along(found, d, keepdim)
        # An operator below autograd must return a new tensor, also for zero dimensions.
        return x.clone() if found is x else found  # type: ignore[no-any-return]

    return over


implements(aten.amax.default)(_over(True, "amax"))
implements(aten.amin.default)(_over(False, "amin"))
implements(aten.max.default)(lambda x: _over(True, "max")(x))
implements(aten.min.default)(lambda x: _over(False, "min")(x))


@implements(aten.aminmax.default)
def aminmax(
    x: MCFTensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest element."""
    if dim is None and x.numel() == 0:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no "
            "identity."
        )
    dims = () if dim is None else dim
    return tuple(_over(k, "aminmax")(x, dims, keepdim) for k in (False, True))
