"""Call a loop over one small row on the calling thread, where only its addresses change."""

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

    Each call uses an argument struct that no concurrent call uses: threads may call concurrently.
    The loop's counters are reset together with the addresses, which precede them.
    """

    def __init__(
        self, loop: Loop, fields: int, items: Any, scalars: Any, *, counts: bool = False
    ) -> None:
        """Prepare the loop, see `element_loops.Table`.

        Args:
            loop: the loop.
            fields: number of its tensors.
            items: the arrays `rows`, `starts` and `stops`.
            scalars: of the row, in the registers' format; None if there are none.
            counts: whether it has one sum.
        """
        self._call = team.native(loop.address)
        self._fields, self._items, self._scalars = fields, items, scalars
        self._shares = array("Q", team.shares(len(items[0]), 1).tobytes())
        # After the addresses: the arrival counter and, one cache line later, the next item.
        gap = _WORD * (len(self._shares) // 2 - 1)
        self._filled = struct.Struct(f"={fields}QQ{gap}xQ")
        self._counts = counts
        self._free: list[tuple[int, array[int], array[float]]] = []
        # Calling a function is faster than calling an object with `__call__`.
        self.call = self._function()

    def _table(self) -> tuple[int, array[int], array[float]]:
        """Return the address of a new argument struct, the struct, and the items' counts."""
        room = array("Q", bytes(_WORD * self._fields))
        items = [x.ctypes.data for x in self._items]
        scalars = 0 if self._scalars is None else self._scalars.ctypes.data
        counted = array("d", bytes(_WORD * len(self._items[0]) * self._counts))
        sums = counted.buffer_info()[0]
        table = array("Q", Table(0, *items, scalars, sums, 1, 0)) + room + self._shares
        place = table.buffer_info()[0]
        table[0], table[_WORDS - 1] = (place + _WORD * k for k in (_WORDS, _WORDS + self._fields))
        return place, table, counted

    # `sum` compensates from Python 3.12 on and would differ in bits from `Launch.run`.
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
        """Apply the kernel and return its sum, if any. The attribute `call` does the same."""
        return self.call(addresses)
