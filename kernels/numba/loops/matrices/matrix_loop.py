"""Compile loops over the matrices of a batch, and call them."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP32, Format
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored, vector_loops
from mcf.kernels.numba.runtime import team

# Bytes of a cache line: workspaces of threads are multiples of this.
_LINE = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop over matrices, whose parameters after the item are operands, tables and integers.

    Args:
        function: the loop, see `mcf.kernels.numba.compile.loop_functions`.
        format: the format of operands and of the arithmetic.
        operands: the number of components of operands in the caller's memory.
        scratch: the number of components of operands in each thread's workspace.
        tables: the parameters that are addresses of 32-bit integers.
        algorithms: the algorithms that the loop names.
        constants: numbers that the loop names.
        across: whether an item is a block of matrices, one per vector lane.
    """

    function: FunctionType
    format: Format
    operands: Mapping[str, int]
    scratch: Mapping[str, int]
    tables: Sequence[str]
    algorithms: Mapping[str, Algorithm]
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    across: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The loop's parameters after the item, in the order of its argument struct."""
        code = self.function.__code__
        return code.co_varnames[1 : code.co_argcount]

    def compiled(self) -> objects.Native:
        """Return the loop's code from the cache, or compile it."""

        def make() -> tuple[Any, str]:
            from mcf.kernels.numba.compile import loop_functions

            return rewrite.rewritten(loop_functions.compiled(self))

        key = [self.function.__name__, self.function.__module__, self.format, self.across]
        for counts in (self.operands, self.scratch, self.constants):
            key.append([[name, count] for name, count in counts.items()])
        key += [[name, keys.algorithm(f)] for name, f in self.algorithms.items()]
        return stored.native(("matrices", *key), make)


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

    Its argument struct begins with the address and number of shares, the address of the workspace
    and the bytes of one thread's. A scratch operand is two entries, its offset there and the bytes
    of a component; another operand is one address per component.
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
        for name in loop.names:
            self._places[name] = len(entries)
            if name in loop.scratch:
                size = -(-number * sizes[name] // _LINE) * _LINE
                entries += [total, size]
                total += size * loop.scratch[name]
            else:
                entries += [integers.get(name, 0)] * loop.operands.get(name, 1)
        entries[3] = total
        self._entries = array("q", entries)

    def run(self, **entries: int | Sequence[int]) -> None:
        """Call the loop once.

        Args:
            **entries: the addresses of operands' components and of tables, and integers that
                differ between calls.
        """
        parts = max(1, min(torch.get_num_threads(), self._items)) if self._many else 1
        table = self._entries[:]
        workspace = torch.zeros(parts * table[3] // 8, dtype=torch.float64, device="cpu")
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
    return loop.compiled()
