"""Prepared calls whose items several threads share, as steps of native programs.

A native program has no Python between two steps, so the work of `team.run` is native here: reset
the counters of the shares, and call PyTorch's team of threads. The number of threads is read at
each call, as stored by `team.announce`.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mcf.kernels.fold import BLOCK, LANES, STEP, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.loops import fold_loops, native_calls
from mcf.kernels.numba.loops.element_loops import Loop, Table
from mcf.kernels.numba.loops.fold_text import PRODUCT, SUM, WITHIN
from mcf.kernels.numba.runtime import team
from mcf.kernels.program import Bindable, Bound, Launch, Move, Program, Step

_WORD = 8


def _parts(items: int) -> int:
    """Return the number of shares of the items: the maximum thread count."""
    return max(1, min(items, max(os.cpu_count() or 1, torch.get_num_threads())))


def _bound(
    function: int, table: array[int], shares: array[int], counts: Any, at: Sequence[int], keep: Any
) -> Bound:
    """Bind a loop over shared items as one call.

    Args:
        function: the address of the loop.
        table: its argument struct.
        shares: of its items.
        counts: the items' counts, an array of float64; None if they count nothing.
        at: as in `Bound`.
        keep: further objects that the argument struct needs alive.
    """
    place, parts = table.buffer_info()[0], len(shares) // team.SHARE - 1
    counted = (0, 0) if counts is None else (counts.ctypes.data, counts.size)
    words = team.words.buffer_info()[0]
    own = array("Q", [function, place, shares.buffer_info()[0], parts, words, *counted, 0])
    end = own.buffer_info()[0] + 7 * _WORD
    address = native_calls.native(native_calls.shared).address
    kept = own, table, shares, counts, keep
    return Bound(address, own.buffer_info()[0], (end, end), end if counts is not None else 0,
                 kept, at, True)  # fmt: skip


class _Repeated(Bindable):
    """Call on operands at different addresses each time, by a program of this one step."""

    def __init__(self, given: int) -> None:
        """Prepare for `given` addresses."""
        self._given = given
        self._program: Program | None = None

    def _call(self, addresses: Sequence[int]) -> bool:
        if self._program is None:
            self._program = Program.of([Launch(self, range(self._given))], self._given)
            assert self._program is not None
        return self._program(addresses)


class SharedRow(_Repeated):
    """Large row: `one_row.OneRow` with items shared by threads."""

    def __init__(
        self, loop: Loop, fields: int, items: Any, scalars: Any, *, counts: bool = False
    ) -> None:
        """Prepare the loop; arguments as in `OneRow`."""
        super().__init__(fields)
        self._loop, self._items, self._scalars, self._counts = loop, items, scalars, counts

    def bound(self, addresses: Sequence[int]) -> Bound:
        """Bind the call to operand addresses."""
        fields, head = self._given, len(Table._fields)
        places = [x.ctypes.data for x in self._items]
        scalars = 0 if self._scalars is None else self._scalars.ctypes.data
        counts = np.zeros(len(self._items[0])) if self._counts else None
        sums = 0 if counts is None else counts.ctypes.data
        parts = _parts(len(self._items[0]))
        shares = array("Q", team.shares(len(self._items[0]), parts).tobytes())
        found = Table(0, *places, scalars, sums, parts, shares.buffer_info()[0])
        table = array("Q", [*found, *addresses])
        first = table.buffer_info()[0] + _WORD * head
        table[0] = first
        at = range(first, first + _WORD * fields, _WORD)
        return _bound(self._loop.address, table, shares, counts, at, self)

    def __call__(self, addresses: Sequence[int]) -> tuple[float] | None:
        """Run the kernel; if it counts failures, return 1.0 if there was any, else 0.0."""
        done = self._call(addresses)
        return (0.0 if done else 1.0,) if self._counts else None


class _Blocks(Bindable):
    """Partial sums of all blocks of rows, [state, rows * blocks]."""

    def __init__(self, spec: Fold, rows: int, length: int, limits: dict[str, int] | None) -> None:
        self._spec, self._rows, self._length, self._limits = spec, rows, length, limits

    def bound(self, addresses: Sequence[int], out: int) -> Bound:
        """Bind the call to the components' addresses and the sums' address."""
        spec, blocks = self._spec, -(-self._length // BLOCK)
        items = self._rows * blocks
        parts = _parts(items)
        shares = array("Q", team.shares(items, parts).tobytes())
        lanes = np.empty(parts * spec.state * LANES)
        words = {
            "out": out,
            "lanes": lanes.ctypes.data,
            "shares": shares.buffer_info()[0],
            "parts": parts,
            "total": self._length,
            "blocks": blocks,
            "items": items,
            "step": STEP,
            "bases": 0,
        }
        outside, kind, names = None, "sum", SUM
        if self._limits is not None:
            outside, kind, names = np.zeros(items), "within", WITHIN
            words |= {"outside": outside.ctypes.data, **self._limits}
        table = array("Q", [*(words[name] for name in names), *addresses])
        place = table.buffer_info()[0]
        first = place + _WORD * len(names)
        table[names.index("bases")] = first
        at = [
            *range(first, first + _WORD * len(addresses), _WORD),
            place + _WORD * names.index("out"),
        ]
        with stored.lock:
            function = fold_loops.compiled(spec, kind).address
        return _bound(function, table, shares, outside, at, (self, lanes))


class SharedProduct(Bindable):
    """Large product: `fold_loops.one_product` with items shared by threads."""

    def __init__(self, spec: Fold, shape: tuple[int, int, int, int]) -> None:
        """Prepare a product of shape (batch, rows, inner size, columns)."""
        self._spec = spec
        self._items, self._words = fold_loops.product_sizes(*shape)
        self._given = sum(spec.components) + 1
        self._program: Program | None = None

    def bound(self, addresses: Sequence[int], out: int) -> Bound:
        """Bind the call to the components' addresses and the sums' address."""
        parts = _parts(self._items)
        shares = array("Q", team.shares(self._items, parts).tobytes())
        words = {"out": out, "shares": shares.buffer_info()[0], "parts": parts, "bases": 0}
        words |= self._words
        table = array("Q", [*(words[name] for name in PRODUCT), *addresses])
        place = table.buffer_info()[0]
        first = place + _WORD * len(PRODUCT)
        table[PRODUCT.index("bases")] = first
        at = [
            *range(first, first + _WORD * len(addresses), _WORD),
            place + _WORD * PRODUCT.index("out"),
        ]
        with stored.lock:
            function = fold_loops.compiled(self._spec, "product").address
        return _bound(function, table, shares, None, at, self)

    def __call__(self, addresses: Sequence[int], out: int) -> None:
        """Write the partial sums, float64 [state, batch, rows, columns], to an address."""
        if self._program is None:
            last = self._given - 1
            self._program = Program.of([Launch(self, range(last), last)], self._given)
            assert self._program is not None
        self._program([*addresses, out])


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
        x, out, room, by_row = [*range(given)], given, given + 1, given + 2
        items = rows * blocks
        steps: list[Step] = [
            Launch(_Blocks(spec, rows, length, limits), x, out if blocks == 1 else room)
        ]
        if blocks > 1:
            # As in `fold_loops.fold`: blocks by row, then rows; halved, and the first of each.
            order = np.arange(state * items).reshape(state, rows, blocks).transpose(0, 2, 1)
            steps.append(Move([room], [by_row], state * items, order))
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
