"""Whole decompositions on the CPU, in one call; `decomposition_text` writes it."""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mcf.kernels.decomposition import ROTATE, Decomposition, Numbers
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.matrices import (
    decomposition_text,
    refinement_loops,
    refinement_text,
    rotation_loops,
)
from mcf.kernels.numba.loops.matrices.decomposition_text import WORDS
from mcf.kernels.numba.loops.matrices.panel_text import lanes
from mcf.kernels.numba.runtime import team
from mcf.kernels.program import reserved
from mcf.kernels.rotation import SWEEPS

# The most rows and columns.
SMALL = refinement_loops.SMALL
_WORD = 8
# The last words, which each call gives.
_CHANGING = 6


@functools.cache
def _compiled(spec: Decomposition) -> objects.Native:
    text = decomposition_text.source(spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return rewrite.rewritten(
            compiler.decomposition(spec, text, decomposition_text.operands(spec))
        )

    used = [spec.settle_plain, spec.usual, spec.tidy, spec.root]
    for fold in (spec.plain, spec.refinement.fold):
        used += [fold.term, fold.merge, fold.combine]
    inner = spec.refinement
    used += [inner.settle, inner.total, inner.difference, inner.quotient, inner.root]
    algorithms = [keys.algorithm(f) for f in used]
    return stored.native(("decomposition", text, algorithms, spec.given, spec.terms), make)


class Decomposer:
    """The loop over matrices of one shape.

    A call's memory is one that no other call has at the time. It is kept for later ones as that of
    programs is (`mcf.kernels.program`): there are as many loops as sizes of batches.
    """

    def __init__(
        self, spec: Decomposition, batch: int, shape: tuple[int, int], numbers: Numbers
    ) -> None:
        """See `mcf.kernels.executor.Executor.prepare_decomposition`."""
        self._spec, self._batch = spec, batch
        self._rows, self._columns = rows, columns = shape
        self._even = rows + rows % 2
        self._across = columns if numbers.symmetric else columns + rows
        self._length = max(rows, columns) + lanes()
        self._numbers = numbers
        self._left = refinement_loops.sizes(
            spec.refinement, rows, columns, numbers.steps, numbers.tolerance, numbers.share
        )
        with stored.lock:
            self._address = _compiled(spec).address
        self._call = team.native(self._address)
        self._many = batch * rows * rows * columns > team.SERIAL
        self._more = 0
        self._pack = struct.Struct(f"={_CHANGING + 4 * spec.given}q").pack_into
        # By the number of threads.
        self._free: dict[int, list[_Room]] = {}
        self._kept: dict[int, bool] = {}

    def _sections(self) -> dict[str, tuple[int, int]]:
        """Where the parts of a thread's table begin, in words, and how many words they have."""
        shares = 2 * team.SHARE
        left = 5 * self._spec.terms + sum(count for _, count in self._left.scratch)
        turned, more = (
            kind.terms + sum(count for _, count in rotation_loops.sizes(kind, self._even, 0))
            for kind in (self._spec.rotations, self._spec.more)
        )
        lengths = {
            **{"turned_at": len(rotation_loops.WORDS), "turned_bases": turned, "turned_done": 2},
            **{"turned_places": 2 * self._even, "turned_shares": shares},
            **{"left_at": len(refinement_text.WORDS), "left_bases": left, "left_states": 1},
            **{"left_shares": shares, "places": self._rows},
            **{"more_at": len(rotation_loops.WORDS), "more_bases": more},
            **{"more_guess": 1, "more_done": 1, "more_places": 2 * self._even},
            **{"more_shares": shares},
        }
        found, at = {}, 0
        for name, length in lengths.items():
            found[name] = at, length
            at += length
        # Threads do not disturb each other.
        return found | {"end": (at + -at % team.SHARE, 0)}

    def _memory(self, parts: int) -> _Room:
        """Memory for a call by so many threads."""
        rows, columns = self._rows, self._columns
        sizes = {
            **dict.fromkeys("fbx", rows * columns),
            **{"w": rows * rows, "d": rows, "u": rows, "j": self._even * self._across},
            "k": self._even * (rows + columns),
            **dict.fromkeys("np", (columns + 1) * self._length),
            **dict.fromkeys("vs", self._length),
        }
        counts = decomposition_text.operands(self._spec)
        kept: list[Any] = []

        def room(count: int, size: int) -> tuple[list[int], int]:
            memory = torch.zeros(count, parts * size, dtype=torch.float64, device="cpu")
            kept.append(memory)
            return [c.data_ptr() for c in memory], size

        own = {name: room(counts[name], size) for name, size in sizes.items()}
        rest, less, more = (
            [room(count, size) for size, count in kinds]
            for kinds in (
                self._left.scratch,
                rotation_loops.sizes(self._spec.rotations, self._even, columns),
                rotation_loops.sizes(self._spec.more, self._even, columns),
            )
        )
        sections, order = self._sections(), rotation_loops.order(self._even)
        table = sections["end"][0]
        words = array("q", bytes(_WORD * table * parts))
        start = words.buffer_info()[0]
        fixed = {"order": order.buffer_info()[0], "parts": 1} | self._left.words
        fixed |= {"rows": rows, "columns": columns, "sweeps": SWEEPS}
        for p in range(parts):
            here = start + _WORD * table * p

            def at(name: str, here: int = here) -> int:
                return here + _WORD * sections[name][0]

            def of(*given: tuple[list[int], int], part: int = p) -> array[int]:
                each = [place + _WORD * part * size for places, size in given for place in places]
                return array("q", each)

            shares = team.shares(1, 1)
            turned = {"bases": at("turned_bases"), "shares": at("turned_shares")}
            turned |= {"places": at("turned_places"), "done": at("turned_done")}
            turned |= {"rows": self._even, "counted": rows, "columns": self._across}
            left = {"bases": at("left_bases"), "shares": at("left_shares")}
            left |= {"states": at("left_states")}
            again = turned | {"bases": at("more_bases"), "shares": at("more_shares")}
            again |= {"places": at("more_places"), "done": at("more_guess")}
            turned, again = (fixed | {"width": columns} | given for given in (turned, again))
            again |= {"columns": rows + columns}
            filled = {
                "turned_at": array("q", [turned[name] for name in rotation_loops.WORDS]),
                "turned_bases": of(own["j"], *less),
                "turned_done": array("q", [self._numbers.plain, 0]),
                "turned_shares": shares,
                "left_at": array("q", [(fixed | left)[n] for n in refinement_text.WORDS]),
                "left_bases": of(*(own[name] for name in "bwxd"), *rest),
                "left_shares": shares,
                "more_at": array("q", [again[name] for name in rotation_loops.WORDS]),
                "more_bases": of(own["k"], *more),
                "more_guess": array("q", [self._numbers.tolerance]),
                "more_shares": shares,
            }
            for name, given in filled.items():
                begin = table * p + sections[name][0]
                words[begin : begin + len(given)] = given
        scratch = [place for name in [*counts][4:] for place in own[name][0]]
        numbers = {name: sections[name][0] for name in sections} | {"tables": start}
        numbers |= {"symmetric": int(self._numbers.symmetric), "table": table, "parts": parts}
        numbers |= {"rows": rows, "columns": columns}
        numbers |= {"even": self._even, "across": self._across, "length": self._length}
        limits = self._numbers.limits._asdict().items()
        numbers |= {f"{name}_limit": int(c * decomposition_text.LIMIT) for name, c in limits}
        numbers |= {"rotate": rotation_loops.address(self._spec.rotations)}
        numbers |= {"refine": refinement_loops.address(self._spec.refinement)}
        shares = team.shares(self._batch, parts)
        given = [0] * (4 * self._spec.given)
        call = array("q", [*[0] * len(WORDS), *given, *scratch, *shares, *[0] * self._batch])
        place = call.buffer_info()[0]
        states = len(call) - self._batch
        behind = {"bases": len(WORDS), "shares": states - len(shares), "states": states}
        numbers |= {name: place + _WORD * at for name, at in behind.items()}
        for k, name in enumerate(WORDS[:-_CHANGING]):
            call[k] = numbers[name]
        size = _WORD * (len(call) + len(words)) + sum(memory.nbytes for memory in kept)
        return _Room(place, call, shares, size, [*kept, words, order])

    def __call__(
        self,
        a: list[int],
        steps: Sequence[int],
        results: list[int],
        wanted: bool,
        transposed: bool,
    ) -> array[int]:
        """See `mcf.kernels.executor.Executor.prepare_decomposition`."""
        parts = max(1, min(torch.get_num_threads(), self._batch)) if self._many else 1
        free = self._free.setdefault(parts, [])
        try:
            room = free.pop()
        except IndexError:
            room = self._memory(parts)
        place, table, shares, *_ = room
        start = _WORD * (len(WORDS) - _CHANGING)
        self._pack(table, start, *steps, wanted, transposed, self._more, *a, *results)
        end = len(table) - self._batch
        table[end - len(shares) : end] = shares
        if parts == 1:
            self._call(place)
        else:
            team.run(self._address, place, parts)
        states = table[end:]
        if parts not in self._kept:
            self._kept[parts] = reserved(self, room.size)
        if self._kept[parts]:
            free.append(room)
        if not self._more and ROTATE in states:
            # Few matrices need it.
            self._more = rotation_loops.address(self._spec.more)
            return self(a, steps, results, wanted, transposed)
        return states


class _Room(NamedTuple):
    """A call's table, where it is, what its shares begin as, all bytes, and what has to stay.

    Behind the words lie the addresses of operands, the shares, and what matrices end as.
    """

    place: int
    table: array[int]
    shares: array[int]
    size: int
    keep: Any
