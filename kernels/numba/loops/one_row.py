"""A loop over one row of few elements, on the calling thread: nothing but its addresses changes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

from mcf.kernels.numba.loops.element_loops import Loop, Table
from mcf.kernels.numba.runtime import team

_WORD = 8
_WORDS = len(Table._fields)


class OneRow:
    """Call a loop with the addresses of one row's tensors, in the order of its fields.

    A call's table is one that no other call has at the time: threads may call at once. What a loop
    counts in it is set to 0 with the addresses, which lie before it.
    """

    def __init__(
        self, loop: Loop, fields: int, items: Any, scalars: Any, *, counts: bool = False
    ) -> None:
        """See `element_loops.Table`.

        Args:
            loop: the loop.
            fields: how many tensors it takes.
            items: the arrays `rows`, `starts` and `stops`.
            scalars: of the row, in the registers' format; None where there are none.
            counts: whether it has one sum.
        """
        self._call = team.native(loop.address)
        self._fields, self._items, self._scalars = fields, items, scalars
        self._shares = array("Q", team.shares(len(items[0]), 1).tobytes())
        # The addresses, then who comes first and, a line further, which item is next.
        gap = _WORD * (len(self._shares) // 2 - 1)
        self._filled = struct.Struct(f"={fields}QQ{gap}xQ")
        self._counts = counts
        self._free: list[tuple[int, array[int], array[float]]] = []
        # A function is called in less time than an object that has one.
        self.call = self._function()

    def _table(self) -> tuple[int, array[int], array[float]]:
        """The address of a new table, the table, and what the items count."""
        room = array("Q", bytes(_WORD * self._fields))
        items = [x.ctypes.data for x in self._items]
        scalars = 0 if self._scalars is None else self._scalars.ctypes.data
        counted = array("d", bytes(_WORD * len(self._items[0]) * self._counts))
        sums = counted.buffer_info()[0]
        table = array("Q", Table(0, *items, scalars, sums, 1, 0)) + room + self._shares
        place = table.buffer_info()[0]
        table[0], table[_WORDS - 1] = (place + _WORD * k for k in (_WORDS, _WORDS + self._fields))
        return place, table, counted

    # `sum` would add with a correction from Python 3.12 on: other bits than `Launch.run` has.
    def _function(self) -> Callable[[list[int]], tuple[float] | None]:
        free, pack, native, start = self._free, self._filled.pack_into, self._call, _WORD * _WORDS

        def call(addresses: list[int]) -> tuple[float] | None:
            try:
                found = free.pop()
            except IndexError:
                found = self._table()
            place, table, counted = found
            pack(table, start, *addresses, 0, 0)
            native(place)
            total = (reduce(add, counted),) if counted else None
            free.append(found)
            return total

        return call

    def __call__(self, addresses: list[int]) -> tuple[float] | None:
        """Apply the kernel; its sum where it has one. The attribute `call` does the same."""
        return self.call(addresses)
