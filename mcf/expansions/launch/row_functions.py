"""Compute functions of rows of small CPU tensors in one native call.

Sorts, extremes, running sums, products and searches run the loops of `mcf.kernels.row_tasks` on
rows gathered from the operands; pairs are made canonical first, so that they serve as keys. softmax
and its logarithms run the steps of `mcf.elementary.softmax` between loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.format import computing_in
from mcf.elementary.fused import Step, step_kernel_on
from mcf.elementary.softmax import ENTERED, LESS, LOG_TOTAL, QUOTIENT, SHIFTED, SUM
from mcf.elementary.working import working_terms
from mcf.expansions.launch.calls import SMALL, Call, cached, parts_of
from mcf.expansions.tensor import Components, MCFTensor
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, FP32, FP64
from mcf.kernels.operators import renormalize_kernel
from mcf.kernels.register_choice import registers_for
from mcf.kernels.row_tasks import RowTask
from mcf.reductions.native_steps import CPU, Slots, Steps, elements_in_order, places_back

# Tasks with one result per row.
_REDUCTIONS = frozenset({"largest", "smallest", "kth", "median", "prod"})
# Tasks without indices and keys.
_SCANS = frozenset({"cumsum", "cumprod", "prod"})
# More elements than this in shorter rows: operators add such rows side by side, loops do not.
_SHORT, _SHORT_ELEMENTS = 32, 2048


def arranged(
    name: str,
    x: Any,
    dim: int | tuple[int, ...] | None,
    option: int = 0,
    *,
    keepdim: bool = False,
    moved: bool = True,
) -> tuple[Any, Any] | None:
    """Return values and indices of a task on rows, or None where no call supports it.

    Args:
        name: name of a task, or "kth" or "median".
        x: the tensor.
        dim: dimension of the rows; several for "largest", "smallest" and "prod"; None for all
            elements as one row.
        option: for "sort" whether descending, for "kth" the rank from 1.
        keepdim: whether a reduced dimension remains with size 1.
        moved: whether to return the values.
    """
    groups = parts_of(x)
    if groups is None:
        return None
    call = cached(_arranged, groups, name, dim, option, keepdim, moved)
    scan = name in _SCANS
    if call is None or (len(groups[0]) > 2 and not scan and not _are_keys(groups[0])):
        return None
    out = call.results(groups)
    index = None if scan else out.pop(0)
    return (call.expansion(out) if out else None), index


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


def _arranged(
    groups: Sequence[Components], name: str, dim: Any, option: int, keepdim: bool, moved: bool
) -> Call | None:
    """Return the call of a task on rows, or None if only the operators support it.

    float32 values are converted to float64 and back, which is exact, since tasks only move them.
    """
    like, terms = groups[0][0], len(groups[0])
    size, count, scan = [*like.shape], like.numel(), name in _SCANS
    narrow = like.dtype is torch.float32
    if like.device.type != "cpu" or not 0 < count <= SMALL:
        return None
    if like.dtype is not torch.float64 and (not narrow or scan):
        return None
    given = range(like.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    if (scan and terms == 1) or not all(-like.ndim <= d < like.ndim for d in given):
        return None
    dims = sorted(d % like.ndim for d in given)
    if len(set(dims)) < len(dims):
        return None
    length = math.prod(size[d] for d in dims)
    order = (*(d for d in range(like.ndim) if d not in dims), *dims)
    task = RowTask(name, terms) if scan else RowTask(name, terms, terms * moved)
    if name == "sort":
        task = RowTask(name, terms, terms * moved, (option, 0, length, 0))
    elif name in ("kth", "median"):
        rank = (length + 1) // 2 if name == "median" else option
        if not 1 <= rank <= length:
            return None
        task = RowTask("sort", terms, terms * moved, (0, rank - 1, rank, int(name == "median")))
    loop = registry.on(CPU).prepare_rows(task, (count // length, length), CPU)
    result, back = like.shape, None
    if name in _REDUCTIONS:
        left = [1 if d in dims else s for d, s in enumerate(size) if keepdim or d not in dims]
        result = torch.Size(left)
    else:
        back = places_back(like.shape, order)
    made = terms if scan else 1 + task.moved
    steps = Steps(terms + made)
    x, out = [*range(terms)], [*range(terms, terms + made)]
    index = elements_in_order(like, order)
    if index is not None or narrow:
        rows = steps.workspace(terms, count)
        steps.move(x, rows, count, index, like.element_size(), 8 * narrow)
        x = rows
    keys: Slots = [] if scan else x
    # Three and four components are canonical already (`_are_keys`), so they are their own keys.
    if not scan and terms == 2:
        keys = _canonical(steps, x, count)
    results = result.numel()
    first = steps.workspace(made, results) if back is not None or narrow else out
    steps.loop(loop, [*first, *keys, *x[: terms if scan else task.moved]])
    if narrow:
        steps.move(first[:1], out[:1], results, back)
        steps.move(first[1:], out[1:], results, back, 8, 4)
    elif back is not None:
        steps.move(first, out, results, back)
    kinds = [like.dtype] * (made - (not scan))
    return Call(steps.program(), result, *([] if scan else [torch.int64]), *kinds)


def _canonical(steps: Steps, x: Slots, count: int) -> Slots:
    """Add a kernel that makes float64 expansions canonical."""
    keys = steps.workspace(len(x), count)
    steps.kernel(renormalize_kernel(FP64, len(x), len(x)), count, keys + x)
    return keys


def places(sequence: Any, values: Any, right: bool) -> Tensor | None:
    """Return how many elements of a sorted sequence precede each value, or None without a call."""
    groups = parts_of(sequence, values)
    call = None if groups is None else cached(_search, groups, right)
    return None if call is None else call.results(groups)[0]


def _search(groups: Sequence[Components], right: bool) -> Call | None:
    """Return the call that makes two tensors canonical and searches one for the other."""
    (sequence, wanted), terms = (g[0] for g in groups), len(groups[0])
    if terms > 2 or len(groups[1]) != terms or sequence.ndim != 1:
        return None
    for c in (sequence, wanted):
        if c.device.type != "cpu" or c.dtype is not torch.float64 or not c.is_contiguous():
            return None
        if not 0 < c.numel() <= SMALL:
            return None
    counts = sequence.numel(), wanted.numel()
    task = RowTask(f"search_{'right' if right else 'left'}", terms, 0, (*counts, 0))
    steps = Steps(2 * terms + 1)
    there, given = [*range(terms)], [*range(terms, 2 * terms)]
    if terms == 2:
        there, given = _canonical(steps, there, counts[0]), _canonical(steps, given, counts[1])
    loop = registry.on(CPU).prepare_rows(task, (1, counts[1]), CPU)
    steps.loop(loop, [2 * terms, *there, *given])
    return Call(steps.program(), wanted.shape, torch.int64)


def along(name: str, x: Any, dim: int | None, keepdim: bool = True) -> MCFTensor | None:
    """Return a function along a dimension, or None where no call supports it.

    Args:
        name: "softmax", "log_softmax" or "logsumexp".
        x: the tensor.
        dim: the dimension; None for all elements as one row.
        keepdim: whether a reduced dimension remains with size 1.
    """
    groups = parts_of(x)
    call = None if groups is None else cached(_along, groups, name, dim, keepdim)
    return None if call is None else call(groups)


def _along(groups: Sequence[Components], name: str, dim: int | None, keepdim: bool) -> Call | None:
    """Return the call of a function along a dimension."""
    like, terms = groups[0][0], len(groups[0])
    total, size, fmt = like.numel(), [*like.shape], FORMATS.get(like.dtype)
    if like.device.type != "cpu" or not 0 < total <= SMALL or like.ndim == 0:
        return None
    if fmt not in (FP64, FP32) or registers_for(fmt, CPU) is not FP64:
        return None
    order, length, left = (*range(like.ndim),), total, [1] * like.ndim if keepdim else []
    if dim is not None:
        if not -like.ndim <= dim < like.ndim:
            return None
        dim %= like.ndim
        order, length = (*order[:dim], *order[dim + 1 :], dim), size[dim]
        left = [*size[:dim], *([1] if keepdim else []), *size[dim + 1 :]]
    if length < _SHORT and total > max(length, _SHORT_ELEMENTS):
        return None
    rows, n, log = total // length, working_terms(fmt, terms), name != "softmax"
    steps = Steps(2 * terms)

    def step(of: Step, count: int, given: tuple[int, ...], on: int, places: Slots) -> None:
        with computing_in(FP64):
            spec, tables = step_kernel_on(of, fmt, count, given, CPU)
        steps.kernel(spec, on, places, tables)

    def loop(task: str, width: int, places: Slots, moved: int = 0) -> None:
        call = registry.on(CPU).prepare_rows(RowTask(task, width, moved), (rows, length), CPU)
        steps.loop(call, places)

    out = [*range(terms, 2 * terms)]
    x = steps.gathered([*range(terms)], like, order)
    if fmt is not FP64:
        entered = steps.workspace(terms, total)
        step(ENTERED, terms, (terms,), total, entered + x)
        x = entered
    # The largest element of a row of one is that element; the rest of its sum is 0.
    top, tops, number = x, x, [0]
    if length > 1:
        number, top = steps.workspace(1, rows), steps.workspace(terms, rows)
        tops = steps.workspace(terms, total)
        loop("largest", terms, number + top + x + x, terms)
        loop("spread", terms, tops + top)
    shifted = steps.workspace(2 * n + 1, total)
    step(SHIFTED, n, (terms, terms), total, shifted + x + tops)
    if length > 1:
        rest = steps.workspace(n, rows)
        loop("rest", n, rest + number + shifted[n + 1 :])
    else:
        rest = steps.constants(*[torch.zeros(rows, dtype=torch.float64, device="cpu")] * n)
    if log:
        whole = steps.workspace(n + 1, rows)
        step(LOG_TOTAL, n, (n,), rows, whole + rest)
        rest = whole
    if name == "logsumexp":
        step(SUM, terms, (terms, n, 1), rows, out + top + rest)
        return Call(steps.program(), left, *[like.dtype] * terms)
    if length > 1:
        spread = steps.workspace(len(rest), total)
        loop("spread", len(rest), spread + rest)
        rest = spread
    back, item = places_back(like.shape, order), like.element_size()
    results = out if back is None else steps.workspace(terms, total, item)
    if log:
        step(LESS, terms, (terms, terms, n, 1), total, results + x + tops + rest)
    else:
        given = results + shifted[: n + 1] + rest + tops[:1]
        step(QUOTIENT, terms, (n, 1, n, 1), total, given)
    if back is not None:
        steps.move(results, out, total, back, item)
    return Call(steps.program(), size, *[like.dtype] * terms)
