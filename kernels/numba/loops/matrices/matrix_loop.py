"""Compile loops over the matrices of a batch, and call them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP32, Format
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored, vector_loops
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.runtime import team

# Bytes of a cache line: workspaces of threads are multiples of this.
_LINE = 64


def matrices(
    function: FunctionType,
    fmt: Format,
    operands: Mapping[str, int],
    scratch: Mapping[str, int],
    tables: Sequence[str],
    algorithms: Mapping[str, Algorithm],
    constants: Mapping[str, Any] | None = None,
    across: bool = False,
) -> Loop:
    """Return a loop over matrices, see `Loop`; `constants` are numbers that it names."""

    def intrinsics() -> dict[str, Any]:
        pad = wide(fmt)
        return {
            "REAL": np.float32 if fmt.register == FP32 else np.float64,
            "ACROSS": across,
            "PAD": pad,
            "LANES": pad if across else 1,
            # Rows are padded to whole vectors; across matrices a number is whole vectors itself.
            "over_padded": vector_loops.over(1) if across else vector_loops.over(pad=pad),
            # Across matrices LLVM would copy short rows by gathers, which take twice as long.
            "each": vector_loops.over(0 if across else 1),
            # Likewise for a column of a panel.
            "one_by_one": vector_loops.over(0),
        }

    return Loop(
        function, format=fmt, operands=operands, scratch=scratch, tables=tables,
        algorithms=algorithms, names=constants or {}, across=across, intrinsics=intrinsics,
    )  # fmt: skip


def across(fmt: Format, batch: int, longest: int, most: int) -> bool:
    """Return whether matrices use lanes: sides up to `most`, and half a block or more of them.

    A row of 3 numbers fills less than half of a vector. Longer rows fill vectors by themselves, and
    a block of such matrices exceeds the caches. A smaller batch is as fast one matrix at a time.
    """
    # A single matrix needs no query of the processor, which takes microseconds.
    return batch > 1 and 0 < longest <= most and 2 * batch >= wide(fmt)


def wide(fmt: Format) -> int:
    """Return the numbers per iteration of a loop, which are the matrices of a block."""
    return vector_loops.width(4 if fmt.register == FP32 else 8)


class Call:
    """A compiled loop for matrices of one shape.

    After the head of its argument struct a scratch operand is two entries, its offset in the
    workspace and the bytes of a component; another operand is one address per component.
    """

    def __init__(
        self, loop: Loop, items: int, work: int, sizes: Mapping[str, int], **integers: int
    ) -> None:
        """Prepare a call.

        Args:
            loop: the loop.
            items: the number of matrices, tiles of a matrix or blocks of matrices.
            work: the total number of computed numbers.
            sizes: the numbers of each scratch operand for a matrix.
            integers: the integer parameters; others are set by each call.
        """
        self._address = code(loop).address
        self._items, self._many = items, work > team.SERIAL
        self._alone = team.shares(items, 1)
        number = 4 if loop.format.register == FP32 else 8
        number *= wide(loop.format) if loop.across else 1
        self._places: dict[str, int] = {}
        entries, total = [0, 0, 0, 0], 0
        for name in loop.parameters:
            self._places[name] = len(entries)
            if name in loop.scratch:
                size = -(-number * sizes[name] // _LINE) * _LINE
                entries += [total, size]
                total += size * loop.scratch[name]
            else:
                entries += [integers.get(name, 0)] * loop.operands.get(name, 1)
        entries[3] = total // 8
        self._entries = array("q", entries)

    def run(self, **entries: int | Sequence[int]) -> None:
        """Call the loop once.

        Args:
            **entries: the addresses of operands' components and of tables, and integers that
                differ between calls.
        """
        parts = max(1, min(torch.get_num_threads(), self._items)) if self._many else 1
        table = self._entries[:]
        workspace = torch.zeros(parts * table[3], dtype=torch.float64, device="cpu")
        for name, entry in entries.items():
            at = self._places[name]
            if isinstance(entry, int):
                table[at] = entry
            else:
                table[at : at + len(entry)] = array("q", entry)
        shares = self._alone[:] if parts == 1 else team.shares(self._items, parts)
        table[0], table[1], table[2] = shares.buffer_info()[0], parts, workspace.data_ptr()
        team.run(self._address, table.buffer_info()[0], parts)


def addresses(x: Sequence[Tensor]) -> list[int]:
    """Return the addresses of components."""
    return [c.data_ptr() for c in x]


@stored.once
def code(loop: Loop) -> objects.Native:
    """Return the code of a loop, compiled once."""
    return loop.native()
