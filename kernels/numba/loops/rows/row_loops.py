"""The CPU's loops over rows (`mcf.kernels.row_tasks`), for large and small inputs.

Fields of a loop's argument struct after its head (`compile.bound`): rows, count; the task's options
and the number of moved components; the addresses of the tensors.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mcf.kernels.formats import BF16, FP16, FP32, FP64
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.language import same
from mcf.kernels.numba.compile.loop import Loop, chosen, smaller
from mcf.kernels.numba.loops.prepared import Call
from mcf.kernels.numba.loops.rows import (
    extremes,
    lanes,
    peaks,
    products,
    running,
    searching,
    sorting,
    transposing,
)
from mcf.kernels.numba.loops.rows.lanes import LANES
from mcf.kernels.numba.runtime import streaming, team
from mcf.kernels.ordering import HUGE, limit
from mcf.kernels.row_tasks import RowTask

_WORD = 8
_PEAKS = frozenset({"highest", "lowest"})
_EXTREMES = frozenset({"largest", "smallest"})
_RUNNING_EXTREMES = frozenset({"running_largest", "running_smallest"})
_RUNNING = frozenset({"cumsum", "cumprod"}) | _RUNNING_EXTREMES
# Tasks without keys and indices.
_PLAIN = frozenset({"cumsum", "cumprod", "prod", "rest", "spread"})


def _running(task: RowTask, side: bool) -> Loop:
    """Return the loop of running sums and products, or of products."""
    narrow = task.narrow
    held = FP64 if narrow is None else narrow.format
    count = task.terms if narrow is None else narrow.count
    # With one component the algorithm is the network already.
    network = task.network if task.terms > 1 else None
    algorithms = {"algorithm": task.algorithm, "network": network or task.algorithm}
    names: dict[str, Any] = {"NETWORK": network is not None, "NARROW": narrow is not None}
    names |= {"COUNT": count, "SMALLER": smaller(held)}
    if narrow is None:
        names |= {"enter": same, "leave": same}
    else:
        algorithms |= {"enter": narrow.enter, "leave": narrow.leave}
    function = products.product if task.name == "prod" else running.lanes if side else running.row
    expansions = [(FP64, FP64, task.terms)] * (3 if task.name == "prod" else 6)
    operands = [*expansions, (held, FP64, count), (FP64, FP64, count)]
    return Loop(function, task.terms, operands, algorithms, names, held)


def _extreme(task: RowTask, side: bool) -> Loop:
    """Return the loop of extremes or of running extremes."""
    algorithms = {"algorithm": task.algorithm, "choose": chosen}
    names: dict[str, Any] = {"canonical": same, "first_of": extremes.leading}
    if task.key is not None:
        algorithms["key"] = task.key
        names["canonical"] = extremes.always if side else extremes.if_needed
    if task.keys != FP64:
        names |= {"canonical": extremes.of_sum, "first_of": extremes.summed}
        algorithms["key"] = task.key
    names |= {"NARROW": task.keys != FP64, "LIMIT": limit(task.keys), "HUGE": HUGE}
    names |= {"LARGEST": task.name.endswith("largest"), "SMALLER": smaller(task.format)}
    if task.name in _RUNNING_EXTREMES:
        function = extremes.lanes_running if side else extremes.running
    else:
        function = extremes.lanes_extreme if side else extremes.extreme
    # Moved components are not computed with; 16-bit ones are the upper bits of float32.
    register = FP64 if task.format == FP64 else FP32
    moved = BF16 if task.format == FP16 else task.format
    expansion, single = (FP64, FP64, task.terms), (FP64, FP64, 1)
    operands = [(task.keys, FP64, task.terms), expansion, expansion, single, single]
    operands += [(moved, register, 1), (register, register, 1)]
    return Loop(function, task.terms, operands, algorithms, names, task.format)


def _peak(task: RowTask, side: bool) -> Loop:
    """Return the loop of extremes by first components."""
    sums = task.keys in (BF16, FP16)
    algorithms = {"compared": peaks.exact_sum if sums else peaks.first_component}
    names: dict[str, Any] = {"LIMIT": limit(task.keys), "SMALLER": smaller(task.keys)}
    names["runner_up"] = peaks.second_of_sums if sums else peaks.second_of_components
    operands = [(task.keys, FP64, task.terms), *[(FP64, FP64, 1)] * 7]
    return Loop(peaks.peak, task.terms, operands, algorithms, names, task.format)


def _other(function: Any) -> Callable[[RowTask, bool], Loop]:
    """Return the loop of tasks on float64 expansions without variants."""

    def loop(task: RowTask, side: bool) -> Loop:
        operands, algorithms = [(FP64, FP64, task.terms)] * 4, {"algorithm": task.algorithm}
        return Loop(function, task.terms, operands, algorithms, {}, task.format)

    return loop


_LOOPS: dict[str, Callable[[RowTask, bool], Loop]] = {
    **dict.fromkeys(("cumsum", "cumprod", "prod"), _running),
    **dict.fromkeys(_EXTREMES | _RUNNING_EXTREMES, _extreme),
    **dict.fromkeys(_PEAKS, _peak),
    "sort": _other(sorting.sort),
    "rest": _other(products.rest),
    "spread": _other(products.spread),
    "search_left": _other(searching.search),
    "search_right": _other(searching.search),
}


@stored.once
def _native(task: RowTask, side: bool) -> objects.Native:
    if task.name.startswith("search") and task.terms == 1:
        return _other(searching.search_numbers)(task, side).native(task.name)
    return _LOOPS[task.name](task, side).native(task.name)


def _address(task: RowTask, side: bool = False) -> int:
    """Return the address of a task's loop, row by row or of adjacent rows."""
    return _native(dataclasses.replace(task, moved=0, options=(), inner=1), side).address


def _fields(task: RowTask, *more: int) -> list[int]:
    """Return the fields between the sizes and the addresses."""
    if task.name in ("rest", "spread"):
        return []
    if task.name == "sort":
        return [*(more or (sorting.ROWS,)), *task.options, task.moved]
    if task.name.startswith("search"):
        return [*task.options]
    if task.name in ("cumsum", "cumprod"):
        return [task.inner]
    return [task.inner, *more] if task.name == "prod" else [task.inner, task.moved, *more]


def _workspace(task: RowTask, side: bool, count: int) -> int:
    """Return the 64-bit entries of workspace per thread, for rows of `count` elements."""
    if task.name in ("cumsum", "cumprod"):
        return running.workspace(task.terms, side)
    if task.name == "sort":
        return sorting.workspace(count)
    if task.name == "prod":
        return products.product_workspace(task.terms, count)
    if task.name == "rest":
        return products.rest_workspace(task.terms, count)
    if task.name.startswith("search"):
        return searching.WORKSPACE
    return extremes.workspace(task.terms, task.moved) if side else 0


# Greatest length of rows that are processed in adjacent lanes although row by row is possible.
_SHORT = {"cumsum": 80, "cumprod": 80, "running_largest": 0, "running_smallest": 0}
# Greatest number of elements processed row by row, where such loops exist: avoids a compilation.
_FEW = 4096


def _beside(task: RowTask, shape: tuple[int, int]) -> bool:
    """Return whether rows are processed in adjacent lanes."""
    rows, count = shape
    if rows * count < _FEW:
        return False
    if task.name in _EXTREMES:
        # Long rows are cut.
        return 2 * rows >= LANES or (task.inner == 1 and count >= extremes.LONG)
    return 2 * rows >= LANES and (
        task.name in _SHORT and (task.inner > 1 or count < _SHORT[task.name])
    )


def run(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> bool:
    """Run a task, see `mcf.kernels.executor.Executor.rows`."""
    rows, count = shape
    if task.name == "sort" and count >= LONG:
        _long_rows(task, shape, addresses)
        return True
    if task.name in _PEAKS:
        items, entries, fields = _of_peaks(task, shape)
        _call(task, shape, (items, entries), fields, addresses)
        return True
    if task.name == "prod":
        wide = products.columns(rows, count, task.inner)
        entries = products.product_workspace(task.terms, count, wide)
        sizes = products.items(rows, count, task.inner), entries
        _call(task, shape, sizes, _fields(task, wide), addresses)
        return True
    side = _beside(task, shape)
    if task.inner > 1 and not side:
        return _of_few_columns(task, shape, addresses)
    cut = task.name in _EXTREMES and task.inner == 1 and count >= extremes.LONG
    items = lanes.items(rows) if side and not cut else rows
    for k, address in enumerate(addresses[: _results(task)] if task.name in _WHOLE else ()):
        plain = _WORD if task.narrow is None else int(task.narrow.format.itemsize)
        # Moved components have an element size of their own.
        moved = _WORD if k == 0 else int(task.format.itemsize)
        streaming.ask_pages(address, (plain if task.name in _PLAIN else moved) * rows * count)
    sizes = items, _workspace(task, side, count)
    _call(task, shape, sizes, _fields(task), addresses, side=side)
    return True


def _call(
    task: RowTask,
    shape: tuple[int, int],
    sizes: tuple[int, int],
    fields: Sequence[int],
    addresses: Sequence[int],
    *,
    side: bool = False,
    work: int | None = None,
) -> None:
    """Call a task's loop for items with workspaces; `work` is the address of existing ones."""
    items, entries = sizes
    given = [*shape, *fields, *addresses]
    team.call(_address(task, side), items, math.prod(shape), given, entries, work)


def _of_peaks(task: RowTask, shape: tuple[int, int]) -> tuple[int, int, list[int]]:
    """Return items, entries of workspace and fields for extremes by first components."""
    (rows, count), inner = shape, task.inner
    fold = peaks.folded(count, inner)
    tiles = -(-inner // peaks.TILE)
    digits, least = task.options
    sign = 1.0 if task.name == "highest" else -1.0
    numbers = struct.unpack(
        "=3Q", struct.pack("=3d", sign, 2.0 ** (3 - digits), 2.0 ** (least + 2))
    )
    items = rows // inner * tiles if fold else -(-rows // peaks.ROWS)
    return items, peaks.workspace(count, fold), _fields(task, fold, tiles, *numbers)


# Numbers of a row from which its sort is cut into steps that threads share.
LONG = 1 << 15


def _long_rows(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> None:
    """Sort long rows one after the other; see `sorting`."""
    rows, count = shape
    threads = torch.get_num_threads() if count > team.SERIAL else 1
    pieces, bins = -(-count // sorting.PIECE), sorting.COUNTED
    work = torch.empty(sorting.long_workspace(count, threads), dtype=torch.int64, device="cpu")
    head = work[2 * count : 2 * count + sorting.HEAD].numpy()
    counts = work[2 * count + sorting.HEAD :][: pieces * bins].numpy()
    sizes = [int(fmt.itemsize) for fmt in task.formats]
    for row in range(rows):
        here = [a + size * count * row for a, size in zip(addresses, sizes, strict=True)]

        def run(step: int, items: int, here: list[int] = here) -> None:
            fields, each = _fields(task, step), (items, sorting.COUNTED)
            _call(task, (1, count), each, fields, here, work=work.data_ptr())

        run(sorting.INTEGERS, pieces)
        lows, highs, unlike = (counts[k : 3 * pieces : 3] for k in range(3))
        low, high = int(lows.min()), int(highs.max())
        # Differences within a piece, and between pieces.
        bits = int(np.bitwise_or.reduce(unlike | (lows ^ low)))
        # The lower of a word's 63 bits are its index.
        below = (count - 1).bit_length()
        lost = max(0, (high - low).bit_length() - (63 - below))
        shift = max(0, ((high - low) >> lost).bit_length() - sorting.BITS)
        head[:] = low, lost, below, shift, bits & ((1 << lost) - 1) != 0
        run(sorting.COUNTS, pieces)
        # In each bin the first piece's numbers come first.
        each = counts.reshape(pieces, bins)
        ends = each.T.cumsum().reshape(bins, pieces).T
        each[:] = ends - each
        run(sorting.WORDS, pieces)
        counts[:bins] = ends[-1]
        run(sorting.BINS, bins)


# Tasks with as many results as elements, and tasks with one result per row.
_WHOLE = _RUNNING | {"spread"}
_TURNED = _RUNNING | _EXTREMES


def _results(task: RowTask) -> int:
    """Return the number of result tensors."""
    if task.narrow is not None:
        return task.narrow.count
    return task.terms if task.name in _PLAIN else 1 + task.moved


def _of_few_columns(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> bool:
    """Run the task on columns of narrow matrices, which are transposed before and after."""
    rows, count = shape
    if task.name not in _TURNED or rows * count < _FEW or task.inner > transposing.NARROW:
        return False
    results = _results(task)
    whole = results if task.name in _RUNNING else 0
    plain = [FP64 if task.narrow is None else task.narrow.format] * len(addresses)
    formats = dict(zip(addresses, plain if task.name in _PLAIN else task.formats, strict=True))
    # An operand that occurs twice (numbers that are their own keys) is transposed once. Allocating
    # memory takes longer than transposing, so results first serve as workspace for operands.
    given = dict.fromkeys(addresses[results:], 0)
    free, sizes = [*addresses[:whole]], (rows // task.inner, count, task.inner)
    for source in given:
        given[source] = next(
            (p for p in free if formats[p].itemsize >= formats[source].itemsize), 0
        )
        if given[source]:
            free.remove(given[source])
    # As small as possible: a block of 32 MiB would be newly mapped memory at every call.
    new = whole + sum(not place for place in given.values())
    room = torch.empty(new, rows * count, dtype=torch.int64, device="cpu")
    places = [row.data_ptr() for row in room]
    for source, place in given.items():
        given[source] = place or places.pop()
        transposing.turned(source, given[source], *sizes, back=False, fmt=formats[source])
    out = places if whole else [*addresses[:results]]
    rows_alone = dataclasses.replace(task, inner=1)
    run(rows_alone, shape, [*out, *(given[a] for a in addresses[results:])])
    for source, place in zip(out[:whole], addresses, strict=False):
        transposing.turned(source, place, *sizes, back=True, fmt=formats[place])
    return True


def prepared(task: RowTask, shape: tuple[int, int]) -> Call:
    """Return the call of a task for tensors of a shape (rows, elements per row), on one thread."""
    entries = _workspace(task, False, shape[1])
    more = (1,) if task.name == "prod" else ()
    words = dict.fromkeys(("shares", "parts", "works", "entries"), 0)
    words |= {"rows": shape[0], "count": shape[1]}
    words |= {f"field {k}": x for k, x in enumerate(_fields(task, *more))}
    tensors = len(task.formats) if task.name not in _PLAIN else 2 * task.terms
    if task.name == "rest":
        tensors += 1
    if task.name.startswith("search"):
        tensors = 1 + 2 * task.terms
    return Call(_address(task), words, tensors, shape[0], workspace=entries)
