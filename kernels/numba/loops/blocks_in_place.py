"""Loops whose results may overwrite operands: block by block through a workspace in cache.

A loop's tensors must not overlap (`memory`). Each thread therefore computes a block of elements
into a workspace of its own, by the same loop. It copies the block out when the operands are no
longer read. The workspace and the operands that it replaces are in the cache; no tensor is
allocated. A workspace is rewritten again and again, so the loop's stores go through the cache for
any size.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import INT8
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.loops.element_loops import Loop, Table
from mcf.kernels.numba.runtime import team
from mcf.kernels.numba.runtime.streaming import LINE

_WORD = 8
# Bytes of all tensors per block: enough to hide a loop's start, and within the first-level cache. A
# loop that selects by masks loads the selected values late: twice as many elements hide its starts.
BLOCK = 1 << 14
# A block has a power of two elements, and at least so many that each result is aligned to cache
# lines. In a high-operation-count kernel it has a multiple of its vectors (`sweeps`).
_FEWEST, _LONG = 64, 192
# 64-bit fields of a thread's memory: the loop's argument struct, the row, first and last element of
# its only item, its shares, the addresses of the tensors; then the workspace.
_ITEM, _SHARES, _TENSORS, _HEAD = 8, 16, 32, 128
_THREAD = _HEAD + 2 * BLOCK // _WORD
# Fields before the tensors' addresses; bytes per element of each tensor.
_WORDS = 10

_ADDRESSES, _ROWS, _STARTS, _STOPS, _SCALARS, _SUMS, _PARTS, _OWN = range(len(Table._fields))

# Fields: shares of the blocks, the threads' memory, address of the blocks' counts or 0, the loop,
# number of shares, elements per block, all elements, numbers of results and tensors, scalars.
# Results are the first tensors; one with elements of 0 bytes is the same for every block.
_START = """
def kernel(data):
    shares, threads, sums, loop = word(data, 0), word(data, 1), word(data, 2), word(data, 3)
    parts, block, total = number(data, 4), number(data, 5), number(data, 6)
    results, fields = number(data, 7), number(data, 8)
"""
_THREADS = f"""
own = advance(threads, {_THREAD} * arrival)
put(own, {_ADDRESSES}, advance(own, {_TENSORS}))
put(own, {_ROWS}, advance(own, {_ITEM}))
put(own, {_STARTS}, advance(own, {_ITEM} + 1))
put(own, {_STOPS}, advance(own, {_ITEM} + 2))
put(own, {_SCALARS}, word(data, 9))
put(own, {_PARTS}, 1)
put(own, {_OWN}, advance(own, {_SHARES}))
put(own, {_ITEM}, 0)
put(own, {_ITEM} + 1, 0)
put(own, {_SHARES + team.SHARE} + 1, 1)
place = {_WORD * _HEAD}
for k in range(results):
    put(own, {_TENSORS} + k, beyond(own, place))
    place += block * number(data, {_WORDS} + fields + k)
"""
_BLOCKS = f"""
first = item * block
length = min(block, total - first)
put(own, {_SUMS}, advance(sums, item))
put(own, {_ITEM} + 2, length)
put(own, {_SHARES}, 0)
put(own, {_SHARES + team.SHARE}, 0)
for k in range(results, fields):
    start = first * number(data, {_WORDS} + fields + k)
    put(own, {_TENSORS} + k, beyond(word(data, {_WORDS} + k), start))
call(loop, own)
if sums != 0:
    if number(sums, item) != 0:
        continue
for k in range(results):
    size = number(data, {_WORDS} + fields + k)
    target = beyond(word(data, {_WORDS} + k), first * size)
    move(target, word(own, {_TENSORS} + k), length * size)
"""


def _indented(lines: Sequence[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]


@stored.once
def _native() -> Any:
    """Return the loop over blocks."""
    arrival, *items = team.ITEMS
    lines = _indented([arrival, *_THREADS.splitlines(), *items], 1)
    lines += _indented(_BLOCKS.splitlines(), team.ITEMS_DEPTH + 1)
    text = _START + "\n".join(lines) + "\n"

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler
        from mcf.kernels.numba.compile.instructions import beyond, call, move
        from mcf.kernels.numba.compile.memory import put

        names = {"put": put, "call": call, "beyond": beyond, "move": move}
        return compiler.callback(text, "<mcf numba in place>", names)

    return stored.native(("in place", text), make)


# Cached memory for a number of threads, which no running call uses, and its address.
_free: dict[int, list[tuple[int, Any]]] = {}


def _threads(count: int) -> tuple[int, Any]:
    """Return memory for a number of threads, aligned to cache lines."""
    try:
        return _free.setdefault(count, []).pop()
    except IndexError:
        found = np.empty(_THREAD * count + LINE // _WORD)
        return -(-found.ctypes.data // LINE) * LINE, found


class InPlace:
    """Call a loop on tensors of one size whose results may overwrite operands.

    Each element of a result overwrites the operands' element of the same index, or none.
    """

    def __init__(self, loop: Loop, spec: Elementwise, total: int, many: bool, scalars: Any) -> None:
        """Prepare the loop of a declaration that `allows` it.

        Args:
            loop: of the declaration.
            spec: the declaration.
            total: elements of each tensor.
            many: whether several threads share them.
            scalars: an array in the registers' format; None if there are none.
        """
        self._total, self._many, self._counts = total, many, spec.sum_count > 0
        sizes = [0 if f.uniform else int(f.format.itemsize) for f in spec.fields]
        results = sum(f.written for f in spec.fields)
        self._block = _elements(spec, sum(sizes))
        self._blocks = -(-total // self._block)
        given = 0 if scalars is None else scalars.ctypes.data
        head = [loop.address, 0, self._block, total, results, len(sizes), given]
        self._words = [0, 0, 0, *head, *[0] * len(sizes), *sizes]
        self._keep = loop, scalars
        self._pack = struct.Struct(f"={len(sizes)}Q").pack_into
        # Initial argument structs by the number of shares.
        self._tables: dict[int, array[int]] = {}

    def _table(self, parts: int) -> array[int]:
        if parts not in self._tables:
            words = array("Q", self._words)
            words[4] = parts
            self._tables[parts] = words + array("Q", team.shares(self._blocks, parts).tobytes())
        # A copy, since threads may modify it concurrently.
        return self._tables[parts][:]

    def __call__(self, addresses: Sequence[int]) -> list[range]:
        """Apply the kernel.

        Returns:
            The blocks that it has not written, since the kernel counted one of their results as
            invalid.
        """
        parts = max(1, min(torch.get_num_threads(), self._blocks)) if self._many else 1
        table, threads = self._table(parts), _threads(parts)
        place = table.buffer_info()[0]
        table[0], table[1] = place + _WORD * len(self._words), threads[0]
        self._pack(table, _WORD * _WORDS, *addresses)
        sums = None
        if self._counts:
            sums = np.zeros(self._blocks)
            table[2] = sums.ctypes.data
        team.run(_native().address, place, parts)
        _free[parts].append(threads)
        return [] if sums is None else self._unwritten(sums)

    def _unwritten(self, sums: Any) -> list[range]:
        starts = (self._block * np.flatnonzero(sums)).tolist()
        return [range(at, min(at + self._block, self._total)) for at in starts]


def _elements(spec: Elementwise, size: int) -> int:
    """Return the elements of a block; `size` is the bytes of one element of every tensor."""
    chooses = any(f.read and f.format == INT8 for f in spec.fields)
    most = (BLOCK << chooses) // size
    if spec.long:
        return max(1, most // _LONG) * _LONG
    return max(_FEWEST, 1 << most.bit_length() - 1)


def allows(spec: Elementwise) -> bool:
    """Return whether a kernel's loop can be called by blocks, with its results in a workspace."""
    written = [f.written for f in spec.fields]
    return (
        written == sorted(written, reverse=True)
        and not any(f.read and f.written for f in spec.fields)
        and spec.sum_count == spec.counts <= 1
        and not (spec.random or spec.packed)
        and len(written) <= _HEAD - _TENSORS
    )
