"""Cached launches of sorts, extremes and running sums of rows (`mcf.kernels.row_tasks`).

A plan gathers elements into rows, makes pairs canonical by a kernel so that they serve as keys,
launches the loop, and scatters the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.launch.launches import SMALL, row_launch
from mcf.expansions.launch.offsets import elements_in_order
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.formats import FP64
from mcf.kernels.operators import renormalize_kernel
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.kernels.row_tasks import RowTask

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64, _INT64 = torch.float64, torch.int64

# Results up to this number of elements are allocated by `empty_like` of a cached tensor.
_FEW = 64
_MOST = 1024
_plans: dict[tuple[Any, ...], RowPlan | None] = {}

# Tasks with one result per row.
_REDUCTIONS = frozenset({"largest", "smallest", "kth", "median", "prod"})
# Tasks without indices and keys.
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
    """Return values and indices of a task on rows, or None where no plan supports it.

    Args:
        name: name of a task, or "kth" or "median".
        x: the tensor.
        dim: dimension of the rows; several for "largest", "smallest" and "prod"; None for all
            elements as one row.
        option: for "sort" whether descending, for "kth" the rank from 1.
        keepdim: whether a reduced dimension remains with size 1.
        moved: whether to return the values.
    """
    if watched():
        return None
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    if type(first) is not Tensor:
        return None
    kind = (name, terms, first.dtype, first.shape, dim, option, keepdim, moved, first.device)
    stride = None if first.is_contiguous() else first.stride()
    key = (*kind, stride, registry.get_executor())
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
    return plan.run([*map(_address, parts)])


def _are_keys(parts: Components) -> bool:
    """Return whether components are surely canonical (`mcf.convert.rounding.canonical`).

    They are finite, each equals the rounded sum of itself and the next, and no sum is a tie.
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
    """Return the launch that makes float64 expansions canonical, as a function of addresses."""
    return row_launch(renormalize_kernel(FP64, terms, terms), like)


class RowPlan:
    """A task on components as a program of the addresses of operands and results.

    float32 values are converted to float64 and back, which is exact, since tasks only move them.
    """

    def __init__(self, task: RowTask, size: torch.Size, like: Tensor, program: Program) -> None:
        """Create a plan of a program that writes results of a size, the index first if any."""
        self._size, self._device, self._program = size, like.device, program
        self._dtype = like.dtype
        indexed = task.name not in _SCANS
        self._indexed, self._numbers = indexed, task.moved if indexed else task.terms
        self._kinds = [_INT64] * indexed + [like.dtype] * self._numbers
        few = size.numel() <= _FEW
        self._likes = [self._new(kind) for kind in self._kinds] if few else None

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
        """Create the plan for a signature, or return None if only the operators support it."""
        size, count = list(like.shape), like.numel()
        if like.device.type != "cpu" or not 0 < count <= SMALL:
            return None
        if like.dtype is not _FLOAT64 and (like.dtype is not torch.float32 or name in _SCANS):
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
        index = elements_in_order(like, (*kept, *dims))
        ends = name in _REDUCTIONS
        result = torch.Size(left) if ends else like.shape
        back = None if ends else _back(like.shape, (*kept, *dims))
        item = like.element_size()
        program = _program(task, shape, call, index, result.numel(), back, item)
        return None if program is None else cls(task, result, like, program)

    def run(self, given: list[int]) -> tuple[Any, Any]:
        """Return values and indices for components at addresses; None for those not requested."""
        if self._likes is None:
            out = [*map(self._new, self._kinds)]
        else:
            out = [*map(_empty_like, self._likes)]
        self._program([*given, *map(_address, out)])
        index = out.pop(0) if self._indexed else None
        if not self._numbers:
            return None, index
        return fresh(out, self._size, self._dtype, self._device), index


def _back(shape: torch.Size, order: tuple[int, ...]) -> Any:
    """Return the index in rows of each element of a tensor; None for the identity."""
    moved = np.arange(shape.numel()).reshape([shape[d] for d in order])
    found = moved.transpose(sorted(range(len(order)), key=order.__getitem__)).ravel()
    return None if np.array_equal(found, np.arange(shape.numel())) else found


def _program(
    task: RowTask, shape: tuple[int, int], call: Any, index: Any, results: int, back: Any, item: int
) -> Program | None:
    """Create the program of a task.

    Args:
        task: the task.
        shape: number and length of rows.
        call: the prepared loop.
        index: offsets of the elements of the rows, or None if they are in order.
        results: number of elements of a result.
        back: index in rows of each element of the result, or None if they are in order.
        item: bytes of a component.
    """
    count, terms, scan = math.prod(shape), task.terms, task.name in _SCANS
    made = terms if scan else 1 + task.moved
    x, out = [*range(terms)], [*range(terms, terms + made)]
    sizes: list[int] = []

    def workspaces(number: int, elements: int) -> list[int]:
        at = terms + made + len(sizes)
        sizes.extend([8 * elements] * number)
        return [*range(at, at + number)]

    steps: list[Step] = []
    narrow = item == 4
    if index is not None or narrow:
        rows = workspaces(terms, count)
        steps.append(Move(x, rows, count, index, item, 8 * narrow))
        x = rows
    keys = [] if scan else x
    # Three and four components are canonical already (`_are_keys`), so they are their own keys.
    if not scan and terms == 2:
        keys = workspaces(terms, count)
        like = torch.empty(count, dtype=_FLOAT64, device="cpu")
        steps.append(Launch(canonical_launch(terms, like), keys + x))
    first = out if back is None and not narrow else workspaces(made, results)
    steps.append(Launch(call, [*first, *keys, *x[: terms if scan else task.moved]]))
    if narrow:
        steps.append(Move(first[:1], out[:1], results, back))
        steps.append(Move(first[1:], out[1:], results, back, 8, 4))
    elif back is not None:
        steps.append(Move(first, out, results, back))
    return Program.of(steps, terms + made, sizes)
