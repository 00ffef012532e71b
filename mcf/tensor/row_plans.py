"""Order, extremes and running sums of few elements by plan (`mcf.kernels.row_tasks`).

A plan has the launch of the kernel that makes pairs canonical, which is what keys are, and that of
the loop, and room for the keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.formats import FP64
from mcf.kernels.operators import renormalize_kernel
from mcf.kernels.row_tasks import RowTask
from mcf.tensor.copies import Copies
from mcf.tensor.launches import SMALL
from mcf.tensor.recorded import watched
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64, _INT64 = torch.float64, torch.int64

# Elements of a result, which is allocated in the likeness of another.
_FEW = 64
_MOST = 1024
_plans: dict[tuple[Any, ...], RowPlan | None] = {}

# Tasks of which a row has one result.
_REDUCTIONS = frozenset({"largest", "smallest", "kth", "median", "prod"})
# Of which numbers come without indices, and without keys.
_SCANS = frozenset({"cumsum", "cumprod", "prod"})


def arranged(
    name: str,
    x: MCFTensor,
    dim: int | tuple[int, ...] | None,
    option: int = 0,
    *,
    keepdim: bool = False,
    moved: bool = True,
) -> tuple[Any, Any] | None:
    """Numbers and indices of a task on the rows of few elements; None where there is no plan.

    Args:
        name: a task's, or "kth" or "median".
        x: the tensor.
        dim: along which the rows are, of "largest", "smallest" and "prod" several; None for all
            elements as one row.
        option: of "sort" whether descending, of "kth" the rank from 1.
        keepdim: whether a dimension that goes stays with the size 1.
        moved: whether the numbers are wanted.
    """
    if watched():
        return None
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    if first.dtype is not _FLOAT64 or type(first) is not Tensor:
        return None
    kind = (name, terms, first.shape, dim, option, keepdim, moved, first.device)
    key = (*kind, registry.get_executor())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = RowPlan.of(name, first, terms, dim, option, keepdim, moved)
        _plans[key] = plan
    if plan is None:
        return None
    parts = COMPONENTS[terms](own)
    if terms > 2 and name not in _SCANS and not _are_keys(parts):
        return None
    if plan.moved is False and first.is_contiguous():
        return plan.run([*map(_address, parts)])
    room = plan.copies.taken(parts)
    found = plan.run(room[1])
    plan.copies.freed(room)
    return found


def _are_keys(parts: Components) -> bool:
    """Whether finite components are canonical for certain (`mcf.convert.rounding.canonical`).

    Each is the rounding of what it and the next sum to, and none of them is half of a gap.
    """
    c = [p.numpy() for p in parts]
    if not np.isfinite(c[0]).all():
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(len(c) - 1):
            if not (c[k] + c[k + 1] == c[k]).all():
                return False
        for k in range(len(c) - 2):
            twice = 2 * c[k + 1]
            if (((c[k] + twice) - c[k] == twice) & (twice != 0)).any():
                return False
    return True


def canonical_launch(terms: int, like: Tensor) -> Callable[[list[int]], Any]:
    """What writes the canonical components of pairs of float64, as a function of addresses."""
    spec = renormalize_kernel(FP64, terms, terms)
    launch = registry.prepare(spec, [[like] * len(spec.fields)])
    assert launch is not None
    return launch.row(np.ones((1, len(spec.scalars))))


class RowPlan:
    """The launches of a task on contiguous components of float64.

    Attributes:
        moved: whether rows are not the last dimensions.
        copies: room for components that are not contiguous, with the rows as the last dimensions.
    """

    def __init__(
        self,
        task: RowTask,
        shape: tuple[int, int],
        size: torch.Size,
        like: Tensor,
        call: Any,
        order: tuple[int, ...] | None,
        back: tuple[int, ...] | None,
    ) -> None:
        """A plan of a prepared loop over rows, with results of a size and what puts them back."""
        self.moved, self._back = order is not None, back
        self.copies = Copies(task.terms, like.shape, order or range(like.ndim))
        self._call, self._size, self._device = call, size, like.device
        # Of three and four components only those come that are their own keys.
        paired = task.name not in _SCANS and task.terms == 2
        self._keys = task.terms * math.prod(shape) if paired else 0
        self._terms, self._count = task.terms, math.prod(shape)
        self._numbers = task.terms if task.name in _SCANS else task.moved
        self._indexed = task.name not in _SCANS
        kinds = [_INT64] * self._indexed + [_FLOAT64] * self._numbers
        few = size.numel() <= _FEW
        self._likes = [self._new(kind) for kind in kinds] if few else None
        self._kinds = kinds
        self._free: list[tuple[Tensor, list[int]]] = []
        self._canonical = canonical_launch(task.terms, like) if self._keys else None

    def _new(self, kind: torch.dtype) -> Tensor:
        return torch.empty(self._size, dtype=kind, device=self._device)

    @classmethod
    def of(
        cls,
        name: str,
        like: Tensor,
        terms: int,
        dim: int | tuple[int, ...] | None,
        option: int,
        keepdim: bool,
        moved: bool,
    ) -> RowPlan | None:
        """The plan for tensors of one kind, or None if only the operators can take them."""
        size, count = list(like.shape), like.numel()
        if like.device.type != "cpu" or not 0 < count <= SMALL:
            return None
        if name in _SCANS and terms == 1:
            return None
        given = range(like.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
        if not all(-like.ndim <= d < like.ndim for d in given):
            return None
        dims = sorted(d % like.ndim for d in given)
        if len(set(dims)) < len(dims):
            return None
        length = math.prod(size[d] for d in dims)
        kept = [d for d in range(like.ndim) if d not in dims]
        left = [1 if d in dims else s for d, s in enumerate(size) if keepdim or d not in dims]
        # What has one element in each row but the last dimensions lies in rows already.
        order = (*kept, *dims) if math.prod(size[min(dims, default=0) :]) != length else None
        options: tuple[int, ...] = ()
        if name == "sort":
            options = (option, 0, length, 0)
        elif name in ("kth", "median"):
            rank = (length + 1) // 2 if name == "median" else option
            if not 1 <= rank <= length:
                return None
            options = (0, rank - 1, rank, int(name == "median"))
        task = RowTask("sort" if options else name, terms, terms if moved else 0, options)
        if name in _SCANS:
            task = RowTask(name, terms)
        shape = (count // length, length)
        call = registry.prepare_rows(task, shape, like.device)
        if call is None:
            return None
        if name in _REDUCTIONS:
            return cls(task, shape, torch.Size(left), like, call, order, None)
        if order is None:
            return cls(task, shape, like.shape, like, call, None, None)
        back = tuple(sorted(range(like.ndim), key=order.__getitem__))
        return cls(task, shape, torch.Size(size[d] for d in order), like, call, order, back)

    def run(self, given: list[int]) -> tuple[Any, Any]:
        """Numbers and indices of components at these addresses; None for what is not wanted."""
        if self._likes is None:
            out = [*map(self._new, self._kinds)]
        else:
            out = [*map(_empty_like, self._likes)]
        if self._canonical is None:
            keys = given if self._indexed else []
            self._call([*map(_address, out), *keys, *given[: self._numbers]])
        else:
            # A call's room is one that no other call has at the time.
            try:
                found = self._free.pop()
            except IndexError:
                room = torch.empty(self._keys, dtype=_FLOAT64, device=self._device)
                places = range(0, 8 * self._keys, 8 * self._count)
                found = room, [room.data_ptr() + place for place in places]
            self._canonical(found[1] + given)
            self._call([*map(_address, out), *found[1], *given[: self._numbers]])
            self._free.append(found)
        size = self._size
        if self._back is not None:
            out = [c.permute(self._back).contiguous() for c in out]
            size = out[0].shape
        index = out.pop(0) if self._indexed else None
        if not self._numbers:
            return None, index
        return fresh(out, size, _FLOAT64, self._device), index
