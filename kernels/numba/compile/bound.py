"""Bind loops over `mcf.kernels.numba.compile.language` to Numba, and compile them."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from mcf.kernels.formats import FP64, Format
from mcf.kernels.numba.compile import (
    callbacks,
    calls,
    instructions,
    language,
    memory,
    vector_loops,
)
from mcf.kernels.numba.compile.instructions import jit
from mcf.kernels.numba.compile.llvm_types import I64
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.numba.runtime.team import SHARE


@intrinsic
def prefetch(context, addresses, i):
    """Intrinsic (addresses, i): prefetch the float64 numbers i, if there are any."""

    def generate(c, b, signature, args):
        for k in range(len(addresses)):
            memory.prefetched(b, b.extract_value(args[0], k), args[1])
        return c.get_dummy_value()

    return types.void(addresses, types.int64), generate


@intrinsic
def shifted(context, addresses, i):
    """Intrinsic (addresses, i) -> the addresses of the 64-bit entries i."""

    def generate(c, b, signature, args):
        more = b.mul(args[1], args[1].type(8))
        found = [b.add(b.extract_value(args[0], k), more) for k in range(len(addresses))]
        return c.make_tuple(b, addresses, found)

    return addresses(addresses, types.int64), generate


@functools.cache
def spaced(terms: int, size: int) -> Any:
    """Intrinsic (address, n) -> the addresses of arrays of n entries of `size` bytes."""
    result = types.UniTuple(types.uint64, terms)

    @intrinsic
    def spaced(context, address, stride):
        def generate(c, b, signature, args):
            step = b.mul(args[1], args[1].type(size))
            found = [args[0]]
            for _ in range(terms - 1):
                found.append(b.add(found[-1], step))
            return c.make_tuple(b, result, found)

        return result(types.uint64, types.int64), generate

    return spaced


@functools.cache
def words(terms: int) -> Any:
    """Intrinsic (address, i) -> the 64-bit entries i, ..., i + terms - 1, as addresses."""
    result = types.UniTuple(types.uint64, terms)

    @intrinsic
    def words(context, address, i):
        def generate(c, b, signature, args):
            first = b.gep(b.inttoptr(args[0], I64.as_pointer()), [args[1]])
            cells = [b.gep(first, [I64(k)]) for k in range(terms)]
            return c.make_tuple(b, result, [b.load(cell, align=8) for cell in cells])

        return result(types.uint64, types.int64), generate

    return words


def _plus(index: int | None, k: int) -> int | None:
    return None if index is None else index + k


# The operand that may overlap every other one.
ANY = -1
# The format in memory, that of registers, and the number of components.
Operand = tuple[Format, Format, int]


def _accesses(operands: Sequence[Operand], terms: int) -> dict[str, Any]:
    """Return the intrinsics `load` and `store`, whose first argument is a constant."""
    counts = [count for *_, count in operands]
    found = {
        k: (fmt, register, sum(counts[:k]), sum(counts), count)
        for k, (fmt, register, count) in enumerate(operands)
    }
    found[ANY] = FP64, FP64, None, 0, terms

    @intrinsic(prefer_literal=True)
    def load(context, operand, addresses, i):
        fmt, register, index, total, count = found[operand.literal_value]
        kind = memory.NUMBA[register]
        result = types.UniTuple(kind, count)

        def generate(c, b, signature, args):
            cells = [b.extract_value(args[1], k) for k in range(count)]
            values = [
                memory.loaded(b, cell, args[2], register, fmt, _plus(index, k), total)
                for k, cell in enumerate(cells)
            ]
            return c.make_tuple(b, result, values)

        return result(operand, types.UniTuple(types.uint64, count), types.int64), generate

    @intrinsic(prefer_literal=True)
    def store(context, operand, addresses, i, x):
        fmt, register, index, total, count = found[operand.literal_value]

        def generate(c, b, signature, args):
            for k in range(count):
                cell, value = (b.extract_value(args[a], k) for a in (1, 3))
                memory.stored(b, cell, args[2], value, register, fmt, _plus(index, k), total)
            return c.get_dummy_value()

        given = types.UniTuple(types.uint64, count), types.int64
        numbers = types.UniTuple(memory.NUMBA[register], count)
        return types.void(operand, *given, numbers), generate

    return {"load": load, "store": store}


def _scope(function: FunctionType, names: Mapping[str, Any], made: dict[Any, Any]) -> Any:
    """Return the function with its open names bound, and the functions that it calls likewise."""
    scope: dict[str, Any] = {"__builtins__": builtins}
    for name in function.__code__.co_names:
        own = function.__globals__.get(name)
        if name in names:
            if isinstance(own, FunctionType):
                raise NameError(f"{function.__module__} defines {name!r}, a name of the language")
            own = names[name]
        if isinstance(own, FunctionType):
            if own not in made:
                made[own] = jit(_scope(own, names, made))
            scope[name] = made[own]
        elif own is not None and not isinstance(own, ModuleType):
            scope[name] = own
    bound = FunctionType(function.__code__, scope, function.__name__)
    bound.__module__ = function.__module__
    return bound


# Loads and stores of components that are moved without arithmetic, by their bits.
_MOVES = {
    8: (memory.number, memory.put),
    4: (instructions.NAMES["half"], instructions.NAMES["put_half"]),
    2: (instructions.NAMES["short"], instructions.NAMES["put_short"]),
}


def compiled(loop: Any) -> callbacks.Callback:
    """Compile a `Loop` as a callback void(uint64)."""
    terms, count = loop.terms, loop.names.get("COUNT", loop.terms)
    register = loop.register
    settings = Settings(register, register, (("rc", register), ("narrow", loop.moved)))
    take_moved, put_moved = _MOVES[int(loop.moved.itemsize)]
    scope = {
        "word": memory.word,
        "number": memory.number,
        "advance": memory.advance,
        "claim": memory.claim,
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "SHARE": SHARE,
        "value": memory.loading(FP64, FP64, 0, 1),
        "put": memory.put,
        "take_moved": take_moved,
        "put_moved": put_moved,
        "prefetch": prefetch,
        "over": vector_loops.over(),
        "over_one": vector_loops.over(1),
        **instructions.NAMES,
        "shifted": shifted,
        "ANY": ANY,
        "TERMS": terms,
        "ZEROS": (0.0,) * terms,
        "spaced": spaced(terms, int(loop.register.itemsize)),
        "words": words(terms),
        "stored_words": words(count),
        **_accesses(loop.operands, terms),
        **{name: calls.algorithm(settings, each) for name, each in loop.algorithms.items()},
        **loop.names,
        **loop.intrinsics(),
    }
    function = loop.function if loop.whole else language.items
    return callbacks.compiled(_scope(function, {**scope, "loop": loop.function}, {}))
