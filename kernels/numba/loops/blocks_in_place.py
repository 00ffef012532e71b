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
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.loops import element_loops
from mcf.kernels.numba.loops.element_loops import Table
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
ITEM, SHARES, TENSORS, HEAD = 12, 16, 32, 128
THREAD = HEAD + 2 * BLOCK // _WORD
# Fields before the tensors' addresses; after these, bytes per element of each tensor.
WORDS = 11
SHARE = team.SHARE
OWN, PARTS, _, _, ADDRESSES, ROWS, STARTS, STOPS, SCALARS, SUMS = range(len(Table._fields))


def block_in_place(item, data, workspace):
    """Compute a block into the thread's workspace, and copy it out.

    Fields: address of the blocks' counts or 0, the loop, elements per block, all elements, numbers
    of results and tensors, scalars. Results are the first tensors; one with elements of 0 bytes is
    the same for every block.
    """
    sums, block, total = word(data, 4), number(data, 6), number(data, 7)
    results, fields = number(data, 8), number(data, 9)
    first = item * block
    length = min(block, total - first)
    put(workspace, ADDRESSES, advance(workspace, TENSORS))
    put(workspace, ROWS, advance(workspace, ITEM))
    put(workspace, STARTS, advance(workspace, ITEM + 1))
    put(workspace, STOPS, advance(workspace, ITEM + 2))
    put(workspace, SCALARS, word(data, 10))
    put(workspace, SUMS, advance(sums, item))
    put(workspace, PARTS, 1)
    put(workspace, OWN, advance(workspace, SHARES))
    put(workspace, ITEM, 0)
    put(workspace, ITEM + 1, 0)
    put(workspace, ITEM + 2, length)
    put(workspace, SHARES, 0)
    put(workspace, SHARES + SHARE, 0)
    put(workspace, SHARES + SHARE + 1, 1)
    place = 8 * HEAD
    for k in range(fields):
        size = number(data, WORDS + fields + k)
        if k < results:
            put(workspace, TENSORS + k, beyond(workspace, place))
            place += block * size
        else:
            put(workspace, TENSORS + k, beyond(word(data, WORDS + k), first * size))
    call(word(data, 5), workspace)
    if sums == 0 or number(sums, item) == 0:
        for k in range(results):
            size = number(data, WORDS + fields + k)
            target = beyond(word(data, WORDS + k), first * size)
            move_bytes(target, word(workspace, TENSORS + k), length * size)


@stored.once
def _native() -> Any:
    return Loop(block_in_place).native()


# Cached memory for a number of threads, which no running call uses, and its address.
_free: dict[int, list[tuple[int, Any]]] = {}


def _threads(count: int) -> tuple[int, Any]:
    """Return memory for a number of threads, aligned to cache lines."""
    try:
        return _free.setdefault(count, []).pop()
    except IndexError:
        found = np.empty(THREAD * count + LINE // _WORD)
        return -(-found.ctypes.data // LINE) * LINE, found


class InPlace:
    """Call a loop on tensors of one size whose results may overwrite operands.

    Each element of a result overwrites the operands' element of the same index, or none.
    """

    def __init__(
        self, loop: element_loops.Loop, spec: Elementwise, total: int, many: bool, scalars: Any
    ) -> None:
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
        head = [0, loop.address, self._block, total, results, len(sizes), given]
        self._words = [0, 0, 0, THREAD, *head, *[0] * len(sizes), *sizes]
        self._keep = loop, scalars
        self._pack = struct.Struct(f"={len(sizes)}Q").pack_into
        # Initial argument structs by the number of shares.
        self._tables: dict[int, array[int]] = {}

    def _table(self, parts: int) -> array[int]:
        if parts not in self._tables:
            words = array("Q", self._words)
            words[1] = parts
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
        table[0], table[2] = place + _WORD * len(self._words), threads[0]
        self._pack(table, _WORD * WORDS, *addresses)
        sums = None
        if self._counts:
            sums = np.zeros(self._blocks)
            table[4] = sums.ctypes.data
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
        and len(written) <= HEAD - TENSORS
    )
