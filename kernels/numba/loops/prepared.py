"""Prepared calls of loops, where only addresses change: from Python, or as steps of programs.

Each call uses an argument struct that no concurrent call uses: threads may call concurrently. The
struct ends with the operands' addresses and the shares, whose counters are reset with them.

A call on one thread is a native call of the loop. Items that several threads share need the work of
`team.run` to be native, since a native program has no Python between two steps: reset the counters
of the shares, and call PyTorch's team of threads. The number of threads is read at each call, as
stored by `team.announce`.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from mcf.kernels.fold import BLOCK, STEP, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.loops import fold_loops, native_calls
from mcf.kernels.numba.runtime import team
from mcf.kernels.program import Bindable, Bound, Launch, Move, Program, Step

_WORD = 8
_ADDRESSES, _COUNTS = ("addresses", "bases"), ("sums", "outside")


def _parts(items: int) -> int:
    """Return the number of shares of the items: the maximum thread count."""
    return max(1, min(items, max(os.cpu_count() or 1, torch.get_num_threads())))


class Call(Bindable):
    """A prepared call of a loop."""

    def __init__(
        self,
        address: int,
        fields: Mapping[str, int],
        operands: int,
        items: int,
        *,
        workspace: int = 0,
        counts: int = 0,
        shared: bool = False,
        keep: Any = None,
    ) -> None:
        """Prepare the call.

        Args:
            address: of the loop.
            fields: the fields of its argument struct. Those with the names of shares, of their
                number, of a workspace, of counts, of the addresses' address and of a fold's results
                are filled in.
            operands: the number of addresses that a call supplies.
            items: the number of items.
            workspace: the 64-bit entries of workspace per thread.
            counts: the number of counts.
            shared: whether threads share the items.
            keep: the owner of the memory that the fields name.
        """
        self.shared, self._address, self._operands, self._keep = shared, address, operands, keep
        self._fields, self._names = dict(fields), [*fields]
        self._workspace, self._counts = workspace, counts
        self._parts = _parts(items) if shared else 1
        self._shares = team.shares(items, self._parts)
        # After the addresses: the arrival counter and, one cache line later, the next item.
        gap = _WORD * (team.SHARE - 1)
        self._start = _WORD * len(self._names)
        self._filled = struct.Struct(f"={operands}QQ{gap}xQ")
        self._native = team.native(address)
        self._out = self._names.index("out") if "out" in fields else None
        self._free: list[tuple[int, array[int], Any, Any]] = []
        self._program: Program | None = None

    def _struct(self) -> tuple[int, array[int], Any, Any]:
        """Return the address of a new argument struct, the struct, workspace and counts."""
        work = array("Q", bytes(_WORD * max(1, self._workspace * self._parts)))
        counts = array("d", bytes(_WORD * self._counts))
        table = array("Q", [*self._fields.values()]) + array("Q", bytes(_WORD * self._operands))
        table += array("Q", self._shares.tobytes())
        place = table.buffer_info()[0]
        first = place + self._start
        filled = {
            **dict.fromkeys(_ADDRESSES, first),
            "works": work.buffer_info()[0],
            "entries": self._workspace,
            **dict.fromkeys(_COUNTS, counts.buffer_info()[0]),
            "parts": self._parts,
            "shares": first + _WORD * self._operands,
        }
        for k, name in enumerate(self._names):
            table[k] = filled.get(name, table[k])
        return place, table, work, counts

    def bound(self, addresses: Sequence[int], out: int | None = None) -> Bound | None:
        """Bind the call to operand addresses as one step; None if the step cannot count."""
        if self._counts > 1 and not self.shared:
            return None
        found = self._struct()
        place, table, _, counts = found
        self._filled.pack_into(table, self._start, *addresses, 0, 0)
        first = place + self._start
        end = first + _WORD * self._operands
        at = [*range(first, end, _WORD)]
        if out is not None and self._out is not None:
            table[self._out] = out
            at.append(place + _WORD * self._out)
        counted = counts.buffer_info()[0] if self._counts else 0
        if not self.shared:
            zeros = end, end + _WORD * team.SHARE
            return Bound(self._address, place, zeros, counted, (self, found), at)
        words = team.words.buffer_info()[0]
        fields = [self._address, place, end, self._parts, words, counted, self._counts, 0]
        own = array("Q", fields)
        last = own.buffer_info()[0] + 7 * _WORD
        function = native_calls.native(native_calls.shared).address
        return Bound(
            function, own.buffer_info()[0], (last, last), last if counted else 0,
            (self, found, own), at, True,
        )  # fmt: skip

    def __call__(self, addresses: Sequence[int], out: int | None = None) -> tuple[float] | None:
        """Run the loop; if it counts, return the sum of its counts, or 1.0 if threads share it."""
        if self.shared:
            return self._on_threads(addresses, out)
        try:
            found = self._free.pop()
        except IndexError:
            found = self._struct()
        place, table, _, counts = found
        self._filled.pack_into(table, self._start, *addresses, 0, 0)
        if out is not None:
            table[self._out] = out
        self._native(place)
        # `sum` compensates from Python 3.12 on and would differ in bits from `Launch.run`.
        total = (reduce(add, counts),) if counts else None
        self._free.append(found)
        return total

    def _on_threads(self, addresses: Sequence[int], out: int | None) -> tuple[float] | None:
        given = [*addresses] if out is None else [*addresses, out]
        if self._program is None:
            last = None if out is None else self._operands
            step = Launch(self, range(self._operands), last)
            self._program = Program.of([step], len(given))
            assert self._program is not None
        done = self._program(given)
        return (0.0 if done else 1.0,) if self._counts else None


def _of_fold(
    spec: Fold,
    kind: str,
    items: int,
    words: Mapping[str, int],
    *,
    counts: int = 0,
    shared: bool = False,
) -> Call:
    """Return the call of a kernel of a fold; `words` are its sizes."""
    with stored.lock:
        address = fold_loops.compiled(spec, kind).address
    fields = dict.fromkeys(("shares", "parts", "works", "entries"), 0)
    fields |= fold_loops.fields(spec, kind, words)
    workspace = fold_loops.workspace(spec, kind)
    given = address, fields, sum(spec.components), items
    return Call(*given, workspace=workspace, counts=counts, shared=shared)


def one_fold(spec: Fold, rows: int, length: int) -> Call:
    """Return the fold of contiguous [rows, length], one block per row, on one thread."""
    sizes = {"total": length, "blocks": 1, "items": rows, "step": STEP}
    return _of_fold(spec, "sum", rows, sizes)


def product(spec: Fold, shape: tuple[int, int, int, int], shared: bool) -> Call:
    """Return a matrix product of shape (batch, rows, inner size, columns)."""
    items, words = fold_loops.product_sizes(*shape)
    return _of_fold(spec, "product", items, words, shared=shared)


class _Halving(Bindable):
    """One step of halving blocks [state, blocks, rows], in place."""

    def __init__(self, spec: Fold, blocks: int, rows: int, count: int) -> None:
        self._spec, self._sizes = spec, [blocks, rows, count, (count + 1) // 2]

    def bound(self, addresses: Sequence[int]) -> Bound:
        """Bind the call to the sums' address."""
        table = array("Q", [*addresses, *self._sizes, 0])
        place = table.buffer_info()[0]
        end = place + _WORD * (len(table) - 1)
        with stored.lock:
            function = fold_loops.compiled(self._spec, "halving").address
        return Bound(function, place, (end, end), 0, (self, table), [place])


class LongFold(Bindable):
    """Fold of float64 rows of several blocks, or of a large number of rows."""

    def __init__(
        self, spec: Fold, rows: int, length: int, limits: dict[str, int] | None = None
    ) -> None:
        """Prepare a fold of contiguous components [rows, length]; limits as in `within`."""
        self._sizes = spec, rows, length
        given, blocks, state = sum(spec.components), -(-length // BLOCK), spec.state
        x, out, workspace, by_row = [*range(given)], given, given + 1, given + 2
        items = rows * blocks
        sizes = {"total": length, "blocks": blocks, "items": items, "step": STEP}
        if limits is None:
            call = _of_fold(spec, "sum", items, sizes, shared=True)
        else:
            sizes |= limits
            call = _of_fold(spec, "within", items, sizes, counts=items, shared=True)
        steps: list[Step] = [Launch(call, x, out if blocks == 1 else workspace)]
        if blocks > 1:
            # As in `fold_loops.fold`: blocks by row, then rows; halved, and the first of each.
            order = np.arange(state * items).reshape(state, rows, blocks).transpose(0, 2, 1)
            steps.append(Move([workspace], [by_row], state * items, order))
            count = blocks
            while count > 1:
                steps.append(Launch(_Halving(spec, blocks, rows, count), [by_row]))
                count = (count + 1) // 2
            first = np.arange(state * items).reshape(state, blocks, rows)[:, 0]
            steps.append(Move([by_row], [out], state * rows, first))
        program = Program.of(steps, given + 1, [_WORD * state * items] * 2)
        assert program is not None
        self._program = program

    def within(self, least: float, most: float) -> LongFold:
        """Return the fold that stops a program if a magnitude other than 0 is out of a range.

        It checks the numbers of the first operand while they are loaded into the cache.
        """
        return LongFold(*self._sizes, fold_loops.limits(least, most))

    def bound(self, addresses: Sequence[int], out: int) -> Bound:
        """Bind the fold to addresses as one step."""
        return self._program.bound([*addresses, out])

    def __call__(self, addresses: Sequence[int], out: int) -> None:
        """Write the partial sums, float64 [state, rows], to an address."""
        self._program([*addresses, out])


def long_fold(spec: Fold, rows: int, length: int) -> LongFold | None:
    """Return the fold of contiguous [rows, length]; None if threads cannot be called natively."""
    if spec.register != FP64 or not team.is_native():
        return None
    return LongFold(spec, rows, length)
