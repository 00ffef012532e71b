"""A sequence of prepared launches, run in one call on a CPU.

A launch from Python costs about ten times as much as a loop over one element. Launches with fixed
addresses can be called by a native loop: each is the address of native code and of its argument
struct.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

_WORD = 8


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
    """Return the call of a prepared launch for these addresses; None without an argument struct."""
    from mcf.kernels.numba.loops.element_loops import Table
    from mcf.kernels.numba.loops.fold_loops import OneFold
    from mcf.kernels.numba.loops.one_row import OneRow
    from mcf.kernels.numba.loops.rows.row_loops import FewRows

    if isinstance(call, Bindable):
        return call.bound(*arguments)
    if type(call) not in (OneRow, OneFold, FewRows):
        return None
    found: Any
    addresses = [*arguments[0]]
    behind: list[int] = []
    if isinstance(call, OneRow):
        found = call._table()
        start, counts = _WORD * len(Table._fields), found[2]
        if len(counts) > 1:
            return None
        counted = counts.buffer_info()[0] if counts else 0
        call._filled.pack_into(found[1], start, *addresses, 0, 0)
    elif isinstance(call, OneFold):
        found, counted = call._table(), 0
        found[1][call._out] = arguments[1]
        behind = [found[0] + _WORD * call._out]
        start = call._end
        call._filled.pack_into(found[1], start, *addresses, 0, 0)
    else:
        found, counted = call._table(len(addresses)), 0
        start = call._at
        for k, address in enumerate(addresses):
            found[1][start // _WORD + k] = address
    # After the addresses: the arrival counter and, one cache line later, the next-item counter.
    end = found[0] + start + _WORD * len(addresses)
    function = ctypes.cast(call._call, ctypes.c_void_p).value
    assert function is not None
    at = [*range(found[0] + start, end, _WORD), *behind]
    return Bound(function, found[0], (end, end + 8 * _WORD), counted, (call, found), at)


# Header entries: number of addresses to copy, of calls and of supplied addresses, and whether a
# call counted.
HEAD = 4
CALLS = """
def kernel(data):
    at = 4 + number(data, 2)
    for k in range(number(data, 0)):
        put(word(data, at + 1), 0, number(data, 4 + number(data, at)))
        at += 2
    for k in range(number(data, 1)):
        put(word(data, at + 2), 0, 0)
        put(word(data, at + 3), 0, 0)
        call(word(data, at), word(data, at + 1))
        counted = word(data, at + 4)
        if counted != 0:
            if number(counted, 0) != 0:
                put(data, 3, 1)
                return
        at += 5
    put(data, 3, 0)
"""


_natives: dict[tuple[str, str], Any] = {}


def native_of(name: str, text: str) -> Any:
    """Compile a source that may call `_instructions`; cached, so that its address stays valid."""
    key = name, text
    found = _natives.get(key)
    if found is None:
        from mcf.kernels.numba.compile import stored

        # Like `stored.once`, which cannot be imported before Numba.
        with stored.lock:
            if key not in _natives:
                _natives[key] = _native_of(name, text)
            found = _natives[key]
    return found


def _native_of(name: str, text: str) -> Any:
    from mcf.kernels.numba.compile import stored

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return compiler.callback(text, f"<mcf numba {name}>", _instructions())

    return stored.native(("sequence", name, text), make)


def _instructions() -> dict[str, Any]:
    """Return the functions that the sources call: narrower numbers, and code at an address."""
    from llvmlite import ir
    from numba.core import types
    from numba.extending import intrinsic

    from mcf.kernels.numba.compile import bits
    from mcf.kernels.numba.compile.instructions import call
    from mcf.kernels.numba.compile.memory import put

    word = ir.IntType(64)

    def resized(given: Any, made: Any, size: int) -> Any:
        """Return an intrinsic that loads a float, converts its size and returns its bits."""

        @intrinsic
        def load(context, address, i):
            def generate(c, b, signature, args):
                cell = b.gep(b.inttoptr(args[0], given.as_pointer()), [args[1]])
                x = b.load(cell, align=12 - size // 8)
                x = b.fpext(x, made) if size == 64 else b.fptrunc(x, made)
                x = b.bitcast(x, ir.IntType(size))
                return x if size == 64 else b.zext(x, word)

            return types.int64(types.uint64, types.int64), generate

        return load

    @intrinsic
    def call_team(context, entry, function, data, threads):
        """Call GOMP_parallel: run a function on several threads, the calling one included."""

        def generate(c, b, signature, args):
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [word, word, number, number])
            count = b.trunc(args[3], number)
            b.call(b.inttoptr(args[0], kind.as_pointer()), [args[1], args[2], count, number(0)])
            return c.get_dummy_value()

        given = types.uint64, types.uint64, types.uint64, types.int64
        return types.void(*given), generate

    return {
        **bits.NAMES,
        "widened": resized(ir.FloatType(), ir.DoubleType(), 64),
        "narrowed": resized(ir.DoubleType(), ir.FloatType(), 32),
        "put": put,
        "call": call,
        "call_team": call_team,
    }
