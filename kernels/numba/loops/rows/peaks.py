"""Extremes of rows by their first components, see `peaks_text`."""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.loops.rows.peaks_text import APART, ROWS, TILE, Looked, source
from mcf.kernels.numba.runtime import team
from mcf.kernels.row_tasks import RowTask

NAMES = frozenset({"highest", "lowest"})
# Lanes that suffice for vectors; smallest number of lanes that is worthwhile.
_WIDE, _NARROW = 64, 16
# Fewest turns per lane; with fewer, merging the lanes takes longer.
_TURNS = 8


@functools.cache
def _loop(looked: Looked) -> objects.Native:
    text = source(looked)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return compiler.peaks(text, looked.letters, len(looked.words), looked.keys)

    return stored.native(("peaks", looked.keys.name, text), make)


def _fold(count: int, inner: int) -> int:
    """Return the number of elements of a row per turn; 0 if rows are processed one by one."""
    fold = 1
    while 2 * fold * inner <= _WIDE and 2 * fold * _TURNS <= count:
        fold *= 2
    return fold if fold * inner >= _NARROW else 0


def run(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> None:
    """Run the task, see `mcf.kernels.row_tasks`."""
    (rows, count), inner = shape, task.inner
    fold = _fold(count, inner)
    room = 3 * TILE + (0 if fold else APART * count)
    tiles = -(-inner // TILE)
    items = rows // inner * tiles if fold else -(-rows // ROWS)
    threads = torch.get_num_threads() if rows * count > team.SERIAL else 1
    parts = max(1, min(threads, items))
    shares = team.shares(items, parts)
    work = torch.empty(parts * room, dtype=torch.float64, device="cpu")
    digits, least = task.options
    sign = 1.0 if task.name == "highest" else -1.0
    numbers = struct.pack("=3d", sign, 2.0 ** (3 - digits), 2.0 ** (least + 2))
    table = array("d", numbers)
    index, given = addresses[0], addresses[1 + task.moved :][: task.terms]
    places = shares.buffer_info()[0], parts, work.data_ptr(), index, table.buffer_info()[0]
    moved = [*addresses[1 : 1 + task.moved], *addresses[1 + task.moved + task.terms :]]
    sizes = count, inner, fold, tiles, rows, room
    words = array("Q", [*places, *sizes, *given, task.moved, *moved])
    with stored.lock:
        address = _loop(Looked(task.keys, task.terms, task.format)).address
    team.run(address, words.buffer_info()[0], parts)
