"""A sequence of prepared launches, run in one native call on operands whose addresses vary.

A launch from Python costs about ten times as much as a loop over one element. A native loop can
call launches with fixed addresses: each is the address of native code and of its argument struct.

Intermediate results, constants and argument tables keep their addresses. A call supplies the
addresses of operands and results. The native code that runs the launches first writes these into
their argument tables, so several launches cost Python little more than one.
"""

from __future__ import annotations

import struct
import weakref
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_WORD = 8
# Workspaces of up to _SMALL bytes are kept between calls. Larger ones are kept while the total of
# all programs is below the limit `_spare`, since there may be thousands of programs.
_SMALL, _spare = 1 << 12, 1 << 26


def reserved(program: object, size: int) -> bool:
    """Return whether a program may keep a workspace of this size for its lifetime."""
    global _spare
    if size <= _SMALL:
        return True
    if size > _spare:
        return False
    _spare -= size
    weakref.finalize(program, _give_back, size)
    return True


def _give_back(size: int) -> None:
    global _spare
    _spare += size


class Bound(NamedTuple):
    """A native call whose operands have fixed addresses.

    Args:
        function: the address of native code, `void(uint64)`.
        data: its argument.
        zeros: addresses of two 64-bit fields that must be 0 before each call.
        counted: the address of a float64 that must be 0 after the call; 0 for none.
        keep: the owner of the memory at these addresses.
        at: for each operand in order, the address of the field that holds its address.
        threaded: whether it runs on the thread team, which requires `team.announce` before it.
    """

    function: int
    data: int
    zeros: tuple[int, int]
    counted: int
    keep: Any
    at: Sequence[int] = ()
    threaded: bool = False


class Bindable(ABC):
    """Several launches that form one step of another sequence."""

    @abstractmethod
    def bound(self, addresses: Sequence[int]) -> Bound | None:
        """Return the call of all launches for these addresses; None if they cannot form a step."""


def bound(call: Any, *arguments: Any) -> Bound | None:
    """Return the call of a prepared launch for these addresses; None if it is no native one."""
    return call.bound(*arguments) if isinstance(call, Bindable) else None


class Launch(NamedTuple):
    """A prepared launch, and the slots of its operands.

    Args:
        call: the launch, called with addresses, and for a fold with the address of its sums.
        places: the slots of its operands, in order.
        out: the slot of the workspace for a fold's sums.
    """

    call: Any
    places: Sequence[int]
    out: int | None = None

    @property
    def all(self) -> tuple[int, ...]:
        """All slots, in the order of the call's addresses."""
        return (*self.places,) if self.out is None else (*self.places, self.out)

    def bound(self, addresses: list[int]) -> Bound | None:
        """Bind the call to operand addresses, ordered as in `all`."""
        if self.out is None:
            return bound(self.call, addresses)
        return bound(self.call, addresses[:-1], addresses[-1])


# Supported element sizes in bytes.
SIZES = (8, 4, 1)


class Move(NamedTuple):
    """Copy elements into other tensors: out[i] = x[index[i]], or out[i] = x[i].

    Args:
        sources: the slots of the tensors to copy.
        targets: the slots of the contiguous tensors that receive them.
        elements: the number of elements of each tensor.
        index: int64 source indices; None for the same order.
        size: the bytes per element, one of `SIZES`.
        to: the bytes per element to which floats of 4 or 8 bytes are converted; 0 for none.
    """

    sources: Sequence[int]
    targets: Sequence[int]
    elements: int
    index: Any = None
    size: int = 8
    to: int = 0

    @property
    def all(self) -> tuple[int, ...]:
        """All slots, in the order of the call's addresses."""
        return (*self.sources, *self.targets)

    def bound(self, addresses: list[int]) -> Bound:
        """Bind the call to operand addresses, ordered as in `all`."""
        index = None if self.index is None else np.ascontiguousarray(self.index, np.int64).ravel()
        place = 0 if index is None else index.ctypes.data
        head = [self.elements, len(self.sources), 16 * self.to + self.size, place]
        return _native_step("move", head, addresses, index)


class Within(NamedTuple):
    """Test float64 numbers: unless all are zero or in a range, skip the steps that follow.

    Args:
        places: the slots of the tensors.
        elements: the number of elements of each tensor.
        least: the smallest magnitude allowed, positive.
        most: the largest one, finite.
    """

    places: Sequence[int]
    elements: int
    least: float
    most: float

    @property
    def all(self) -> tuple[int, ...]:
        """All slots, in the order of the call's addresses."""
        return (*self.places,)

    def bound(self, addresses: list[int]) -> Bound:
        """Bind the call to operand addresses, ordered as in `all`."""
        # Magnitudes of floats are ordered like the integers with the same bits.
        limits = np.array([self.least, self.most]).view(np.int64).tolist()
        head = [self.elements, len(self.places), *limits, 0]
        found = _native_step("within", head, addresses, None)
        return found._replace(counted=found.data + 4 * _WORD)


def _native(name: str) -> int:
    """Return the address of a function of `mcf.kernels.numba.loops.native_calls`."""
    from mcf.kernels.numba.loops import native_calls

    address: int = native_calls.native(getattr(native_calls, name)).address
    return address


def _native_step(name: str, head: list[int], addresses: list[int], keep: Any) -> Bound:
    """Return a call of a native function; its argument struct has parameters, addresses, a result.

    Args:
        name: the name of the function.
        head: the parameters, which precede the addresses.
        addresses: the addresses of the operands.
        keep: the owner of memory that the parameters point to.
    """
    table = array("Q", [*head, *addresses, 0])
    place = table.buffer_info()[0]
    end = place + _WORD * (len(table) - 1)
    at = range(place + _WORD * len(head), end, _WORD)
    return Bound(_native(name), place, (end, end), 0, (table, keep), at)


# Header entries of `native_calls.calls`.
HEAD = 4

Step = Launch | Move | Within


class Program(Bindable):
    """A sequence of steps that run in one native call.

    Slots are numbered: first the addresses supplied by each call, then the program's own workspaces
    for intermediate results, then fixed addresses. Concurrent calls are safe: each uses workspaces
    of its own.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        given: int,
        workspaces: Sequence[int],
        fixed: Sequence[int],
        keep: Any = None,
    ) -> None:
        self._steps, self._given, self._workspaces = steps, given, workspaces
        self._fixed, self._keep = fixed, keep
        self._kept = reserved(self, sum(workspaces))
        self._pack = struct.Struct(f"={given}Q").pack_into
        from mcf.kernels.numba.runtime import team

        self._call = team.native(_native("calls"))
        self._team, self._threaded = team, False
        self._free: list[tuple[int, array[int], Any]] = []

    @classmethod
    def of(
        cls,
        steps: Sequence[Step],
        given: int,
        workspaces: Sequence[int] = (),
        fixed: Sequence[int] = (),
        keep: Any = None,
    ) -> Program | None:
        """Return a program, or None if an executor has no native code for one of the launches.

        Args:
            steps: the steps in order.
            given: the number of addresses that a call supplies.
            workspaces: the bytes of each workspace; each is rounded up to whole 64-bit units.
                Workspaces are adjacent in memory.
            fixed: fixed addresses.
            keep: the owners of the fixed addresses.
        """
        program = cls(steps, given, workspaces, fixed, keep)
        first = program._new()
        if first is None:
            return None
        program._free.append(first)
        return program

    def _new(self) -> tuple[int, array[int], Any] | None:
        """Create an argument table, with its address and the objects that it keeps alive."""
        words = [-(-size // _WORD) for size in self._workspaces]
        workspace = np.empty(sum(words))
        ends = np.cumsum(words).tolist()
        first = workspace.ctypes.data
        starts = [first + _WORD * (end - n) for end, n in zip(ends, words, strict=True)]
        addresses = [*[0] * self._given, *starts, *self._fixed]
        moved: list[int] = []
        calls: list[int] = []
        keep: list[Any] = [workspace]
        for step in self._steps:
            places = step.all
            found = step.bound([addresses[k] for k in places])
            if found is None:
                return None
            keep.append(found)
            self._threaded |= found.threaded
            for place, at in zip(places, found.at, strict=True):
                if place < self._given:
                    moved += (place, at)
            calls += (found.function, found.data, *found.zeros, found.counted)
        head = [len(moved) // 2, len(self._steps), self._given, 0]
        table = array("Q", [*head, *[0] * self._given, *moved, *calls])
        return table.buffer_info()[0], table, keep

    def bound(self, addresses: Sequence[int]) -> Bound:
        """Return the whole program as one step of another sequence, for these addresses."""
        found = self._new()
        assert found is not None
        place, table, _ = found
        self._pack(table, HEAD * _WORD, *addresses)
        end = place + (HEAD - 1) * _WORD
        at = range(place + HEAD * _WORD, place + (HEAD + self._given) * _WORD, _WORD)
        function = _native("calls")
        return Bound(function, place, (end, end), end, (self, found), at, self._threaded)

    def __call__(self, addresses: Sequence[int]) -> bool:
        """Run the steps; return False if one of them counted elements with unusable results."""
        found: tuple[int, array[int], Any] | None
        try:
            found = self._free.pop()
        except IndexError:
            found = self._new()
            assert found is not None
        place, table, _ = found
        self._pack(table, HEAD * _WORD, *addresses)
        if self._threaded:
            self._team.announce()
        self._call(place)
        failed = table[HEAD - 1]
        if self._kept:
            self._free.append(found)
        return not failed
