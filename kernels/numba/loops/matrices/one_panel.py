"""A loop over matrices of which addresses alone change from call to call."""

from __future__ import annotations

import functools
import os
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mcf.kernels.numba.runtime import team
from mcf.kernels.sequence import Bound

_WORD = 8
_SHARE = 8
# Scratch memory of so many threads: what keeps it, and its addresses in the order of the operands.
Room = Callable[[int], tuple[Any, list[int]]]


def memory(
    counts: Mapping[str, int], sizes: Mapping[str, int], dtype: torch.dtype, parts: int
) -> tuple[Any, list[int]]:
    """Scratch memory for so many threads, and where the components of each kind are.

    Args:
        counts: components, by kind.
        sizes: numbers of a thread, by kind, in the order of the operands.
        dtype: of the components.
        parts: threads.
    """
    made = [
        torch.zeros(counts[kind], parts * size, dtype=dtype, device="cpu")
        for kind, size in sizes.items()
    ]
    return made, [c.data_ptr() for kind in made for c in kind]


class OnePanel:
    """Call a loop of `panel_text` with the addresses of its operands.

    A call's table is one that no other call has at the time: threads may call at once. Behind its
    words lie `info`, the operands' addresses, the items and `pivots`.
    """

    def __init__(
        self,
        address: int,
        names: Sequence[str],
        words: dict[str, int],
        items: int,
        work: int,
        room: Room,
        pivots: int = 0,
        infos: int = 0,
    ) -> None:
        """See `elimination_loops` and `reflection_loops`.

        Args:
            address: of the loop.
            names: of its words.
            words: those that are not addresses.
            items: how many matrices, tiles of such or blocks of some.
            work: how many numbers are computed in all; one thread does what is little.
            room: makes scratch memory.
            pivots: how many of all matrices.
            infos: how many matrices say whether they were bad.
        """
        self._address, self._call = address, team.native(address)
        self._names, self._items, self._room = names, items, room
        self._many = work > team.SERIAL
        # Of all threads that there may ever be.
        most = max(os.cpu_count() or 1, torch.get_num_threads()) if self._many else 1
        self._parts = max(1, min(items, most))
        self._words = {**words, "parts": self._parts}
        self._shares = array("q", team.shares(items, self._parts))
        self._pivots, self._info = pivots, infos
        self._free: list[tuple[int, array[int], Any, list[int]]] = []

    def _table(self, count: int) -> tuple[int, array[int], Any, list[int]]:
        """A new table's address, the table, scratch memory for it and where that is."""
        keep, scratch = self._room(self._parts)
        start = len(self._names)
        bases = start + self._info
        shares = bases + count + len(scratch)
        pivots = shares + len(self._shares)
        table = array("q", bytes(_WORD * (pivots + self._pivots)))
        place = table.buffer_info()[0]
        at = {"info": start, "bases": bases, "shares": shares, "pivots": pivots}
        words = self._words | {name: place + _WORD * k for name, k in at.items()}
        table[:start] = array("q", [words[name] for name in self._names])
        table[shares:pivots] = self._shares
        return place, table, keep, scratch

    def __call__(self, first: list[int], last: list[int]) -> tuple[array[int], array[int]]:
        """Apply the loop.

        Args:
            first: the addresses of the operands before the scratch memory.
            last: of those behind it.

        Returns:
            `info`, a number for each matrix, and the pivots.
        """
        try:
            found = self._free.pop()
        except IndexError:
            found = self._table(len(first) + len(last))
        place, table, _, scratch = found
        start = len(self._names)
        bases = [*first, *scratch, *last]
        # `info` becomes 0, and so do who comes first and, a line further, which item is next.
        _filled(self._info, len(bases)).pack_into(table, _WORD * start, *bases, 0, 0)
        if self._parts == 1:
            self._call(place)
        else:
            shares = start + self._info + len(bases)
            table[shares : shares + len(self._shares)] = self._shares
            team.run(self._address, place, min(self._parts, torch.get_num_threads()))
        pivots = table[len(table) - self._pivots :]
        info = table[start : start + self._info]
        # Scratch memory may be that of all matrices.
        if not self._many:
            self._free.append(found)
        return info, pivots

    def bound(self, first: list[int], last: list[int], **words: int) -> Bound | None:
        """The loop as one step of a program; None of one that threads share.

        Args:
            first: as in a call.
            last: likewise.
            **words: addresses: of a number for each matrix (`info`), which are zeros if somebody
                asks for them, and of what else it writes.

        Returns:
            The call, whose operands are those of `first`, of `last` and those words.
        """
        if self._many:
            return None
        place, table, keep, scratch = self._table(len(first) + len(last))
        at = len(self._names) + self._info
        bases = [*first, *scratch, *last]
        end = at + len(bases)
        table[at:end] = array("q", bases)
        named = [self._names.index(name) for name in words]
        for k, address in zip(named, words.values(), strict=True):
            table[k] = address
        # Who comes first and, a line further, which item is next.
        zeros = place + _WORD * end, place + _WORD * (end + _SHARE)
        operands = [*range(at, at + len(first)), *range(end - len(last), end), *named]
        places = [place + _WORD * k for k in operands]
        return Bound(self._address, place, zeros, 0, (table, keep), places)


@functools.cache
def _filled(zeros: int, count: int) -> struct.Struct:
    return struct.Struct(f"={_WORD * zeros}x{count}QQ{_WORD * (_SHARE - 1)}xQ")
