"""The CPU's loops over rows (`mcf.kernels.row_tasks`), for large and small inputs.

Fields of a loop's argument struct: rows, count, the address of the shares, their number, the
address of the threads' workspaces; the task's options and the number of moved components; the
tensors.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from mcf.kernels.formats import FP64, Format
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.rows import (
    extreme_text,
    peaks,
    product_text,
    rest_text,
    scan_text,
    side_extreme_text,
    side_text,
    sort_text,
    transposing,
    words_text,
)
from mcf.kernels.numba.loops.rows.side_text import LANES
from mcf.kernels.numba.runtime import pages, team
from mcf.kernels.row_tasks import Narrow, RowTask

_WORD = 8
_TEXTS = {
    "sort": sort_text,
    "cumsum": scan_text,
    "cumprod": scan_text,
    "prod": product_text,
    "rest": rest_text,
    "spread": rest_text,
}
# Tasks whose fields are only those of the tensors.
_PLAIN = frozenset({"cumsum", "cumprod", "prod", "rest", "spread"})


# Tasks whose generated source depends on formats.
_NARROW = frozenset({"sort", "running_largest", "running_smallest"})


def _text(task: RowTask) -> ModuleType:
    return _TEXTS.get(task.name, extreme_text)


def _side(task: RowTask) -> ModuleType:
    return side_text if task.name in _PLAIN else side_extreme_text


def _sizes() -> dict[str, float]:
    """Return the constants that the sources of loops over rows name."""
    names = ("CHUNK", "PIECE", "AHEAD", "WHOLE", "HALF", "HUGE")
    found = {name: getattr(scan_text, name) for name in names}
    return {**found, "LANES": side_text.LANES, "AWAY": side_text.AWAY}


@functools.cache
def _loop(
    name: str,
    terms: int,
    side: bool,
    formats: tuple[Format, Format],
    narrow: Narrow | None,
) -> objects.Native:
    task = RowTask(name, terms, format=formats[0], keys=formats[1], narrow=narrow)
    text = _side(task) if side else _text(task)
    # Other tasks have no narrow numbers.
    source = text.source(
        terms, name, *(formats if name in _NARROW else () if narrow is None else (narrow,))
    )
    letters = text.letters(terms) if side else dict.fromkeys("rsed", terms)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        function = compiler.rows(task, source, letters, _sizes())
        if name in _PLAIN:
            return rewrite.rewritten(function)
        return function

    parts = ("rows", name, source, keys.algorithm(task.algorithm))
    if task.key is not None:
        parts = (*parts, keys.algorithm(task.key))
    if narrow is not None:
        ends = [keys.algorithm(each) for each in (narrow.enter, narrow.leave)]
        parts = (*parts, *ends, narrow.format, narrow.count)
    if name in _NARROW:
        # Names of loads and stores contain the operand letter.
        parts = (*parts, *(fmt.name for fmt in formats))
    return stored.native(parts, make)


def _address(task: RowTask, side: bool = False) -> int:
    with stored.lock:
        formats = task.format, task.keys
        return _loop(task.name, task.terms, side, formats, task.narrow).address


def _options(task: RowTask, step: int = sort_text.ROWS, wide: int = 1) -> list[int]:
    if task.name == "prod":
        return [task.inner, wide]
    if task.name in _PLAIN:
        return []
    return [*task.options, *([step] if task.name == "sort" else []), task.moved]


# Greatest length of rows that are processed in adjacent lanes although row by row is possible.
_SHORT = {"cumsum": 80, "cumprod": 80, "running_largest": 0, "running_smallest": 0}
# Greatest number of elements processed row by row, where such loops exist: avoids a compilation.
_FEW = 4096


def _beside(task: RowTask, shape: tuple[int, int]) -> bool:
    """Return whether rows are processed in adjacent lanes."""
    rows, count = shape
    if rows * count < _FEW:
        return False
    if task.name in ("largest", "smallest"):
        # Long rows are cut.
        return 2 * rows >= LANES or (task.inner == 1 and count >= side_extreme_text.LONG)
    return 2 * rows >= LANES and (
        task.name in _SHORT and (task.inner > 1 or count < _SHORT[task.name])
    )


def run(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> bool:
    """Run a task, see `mcf.kernels.executor.Executor.rows`."""
    rows, count = shape
    if task.name in peaks.NAMES:
        peaks.run(task, shape, addresses)
        return True
    if task.name == "prod":
        _products(task, shape, addresses)
        return True
    if task.name == "sort" and count >= LONG:
        _long_rows(task, shape, addresses)
        return True
    side = _beside(task, shape)
    if task.inner > 1 and not side:
        return _of_few_columns(task, shape, addresses)
    cut = task.name in ("largest", "smallest") and task.inner == 1
    items = rows
    if side and not (cut and count >= side_extreme_text.LONG):
        items = side_text.items(rows)
    options = [task.inner, *_options(task)] if side else _options(task)
    threads = torch.get_num_threads() if rows * count > team.SERIAL else 1
    parts = max(1, min(threads, items))
    shares = team.shares(items, parts)
    text = _side(task) if side else _text(task)
    size = task.moved if text is side_extreme_text else count
    more = {} if task.narrow is None or side else {"narrow": True}
    room = parts * text.room(task.terms, size, **more)
    work = torch.empty(room, dtype=torch.int64, device="cpu")
    head = [rows, count, shares.buffer_info()[0], parts, work.data_ptr()]
    table = array("Q", [*head, *options, *addresses])
    pages.ask(work.data_ptr(), _WORD * room)
    plain = _WORD if task.narrow is None else int(task.narrow.format.itemsize)
    for k, place in enumerate(addresses[: _results(task)] if task.name in _WHOLE else ()):
        # Moved components have an element size of their own.
        moved = _WORD if k == 0 else int(task.format.itemsize)
        pages.ask(place, (plain if task.name in _PLAIN else moved) * rows * count)
    team.run(_address(task, side), table.buffer_info()[0], parts)
    return True


def _products(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> None:
    """Multiply rows, several of them together."""
    rows, count = shape
    wide = product_text.columns(rows, count, task.inner)
    items = product_text.items(rows, count, task.inner)
    threads = torch.get_num_threads() if rows * count > team.SERIAL else 1
    parts = max(1, min(threads, items))
    shares = team.shares(items, parts)
    room = parts * product_text.room(task.terms, count, wide)
    work = torch.empty(room, dtype=torch.int64, device="cpu")
    head = [rows, count, shares.buffer_info()[0], parts, work.data_ptr()]
    table = array("Q", [*head, *_options(task, wide=wide), *addresses])
    pages.ask(work.data_ptr(), _WORD * room)
    team.run(_address(task), table.buffer_info()[0], parts)


# Numbers of a row from which its sort is cut into steps that threads share.
LONG = 1 << 15


def _long_rows(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> None:
    """Sort long rows one after the other; see `sort_text`."""
    rows, count = shape
    threads = torch.get_num_threads() if count > team.SERIAL else 1
    pieces, bins = -(-count // sort_text.PIECE), words_text.COUNTED
    work = torch.empty(sort_text.long_room(count, threads), dtype=torch.int64, device="cpu")
    address, head = _address(task), work[2 * count : 2 * count + sort_text.HEAD].numpy()
    counts = work[2 * count + sort_text.HEAD :][: pieces * bins].numpy()

    def run(step: int, items: int, here: list[int]) -> None:
        parts = min(threads, items)
        shares = team.shares(items, parts)
        table = [1, count, shares.buffer_info()[0], parts, work.data_ptr()]
        words = array("Q", [*table, *_options(task, step), *here])
        team.run(address, words.buffer_info()[0], parts)

    sizes = [int(fmt.itemsize) for fmt in task.formats]
    for row in range(rows):
        here = [a + size * count * row for a, size in zip(addresses, sizes, strict=True)]
        run(sort_text.INTEGERS, pieces, here)
        lows, highs, unlike = (counts[k : 3 * pieces : 3] for k in range(3))
        low, high = int(lows.min()), int(highs.max())
        # Differences within a piece, and between pieces.
        bits = int(np.bitwise_or.reduce(unlike | (lows ^ low)))
        # The lower of a word's 63 bits are its index.
        below = (count - 1).bit_length()
        lost = max(0, (high - low).bit_length() - (63 - below))
        shift = max(0, ((high - low) >> lost).bit_length() - words_text.BITS)
        head[:] = low, lost, below, shift, bits & ((1 << lost) - 1) != 0
        run(sort_text.COUNTS, pieces, here)
        # In each bin the first piece's numbers come first.
        each = counts.reshape(pieces, bins)
        ends = each.T.cumsum().reshape(bins, pieces).T
        each[:] = ends - each
        run(sort_text.WORDS, pieces, here)
        counts[:bins] = ends[-1]
        run(sort_text.BINS, bins, here)


# Tasks with as many results as elements, and tasks with one result per row.
_RUNNING = frozenset({"cumsum", "cumprod", "running_largest", "running_smallest"})
_WHOLE = _RUNNING | {"spread"}
_TURNED = _RUNNING | {"largest", "smallest"}


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


class FewRows:
    """Call a loop with the addresses of its tensors, on the calling thread.

    Each call uses an argument struct that no concurrent call uses: threads may call concurrently.
    """

    def __init__(self, task: RowTask, shape: tuple[int, int]) -> None:
        """Prepare the task for tensors of a shape (rows, elements per row)."""
        self._call = team.native(_address(task))
        self._shape, self._options = shape, _options(task)
        self._room = _text(task).room(task.terms, shape[1])
        self._at = _WORD * (5 + len(self._options))
        self._free: list[tuple[int, array[int], array[int]]] = []

    def _table(self, count: int) -> tuple[int, array[int], array[int]]:
        """Return the address of a new argument struct for tensors, the struct, the workspace."""
        work = array("Q", bytes(_WORD * max(1, self._room)))
        head = [*self._shape, 0, 1, work.buffer_info()[0], *self._options]
        table = array("Q", head) + array("Q", bytes(_WORD * (count + 2 * _SHARE)))
        place = table.buffer_info()[0]
        table[2] = place + self._at + _WORD * count
        # The end of the only share.
        table[len(head) + count + _SHARE + 1] = self._shape[0]
        return place, table, work

    def __call__(self, addresses: list[int]) -> None:
        """Apply the loop."""
        try:
            found = self._free.pop()
        except IndexError:
            found = self._table(len(addresses))
        place, table, _ = found
        # After the addresses: the arrival counter and, one cache line later, the next item.
        _filled(len(addresses)).pack_into(table, self._at, *addresses, 0, 0)
        self._call(place)
        self._free.append(found)


# Fields of a share of the items, see `team.shares`.
_SHARE = 8


@functools.cache
def _filled(count: int) -> struct.Struct:
    return struct.Struct(f"={count}QQ{_WORD * (_SHARE - 1)}xQ")
