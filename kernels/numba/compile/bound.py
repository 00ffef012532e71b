"""Bind loops over `mcf.kernels.numba.compile.language` to Numba, and compile them."""

from __future__ import annotations

import builtins
import functools
import itertools
import operator
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numba
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from mcf.kernels.formats import FP64, Format
from mcf.kernels.numba.compile import (
    callbacks,
    calls,
    instructions,
    language,
    memory,
    vector_loops,
)
from mcf.kernels.numba.compile.calls import Lanes
from mcf.kernels.numba.compile.instructions import INNER, jit
from mcf.kernels.numba.compile.llvm_types import I32, I64
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.numba.runtime.team import SHARE

if TYPE_CHECKING:
    from mcf.kernels.numba.compile.loop import Loop


class Operand(types.Type):
    """An operand `x` with numbers `x[i]`, by the addresses of its components.

    Args:
        index: the index of its first component among those of all operands; None for an operand
            that may overlap every other one.
        total: the number of components of all operands.
        terms: its number of components.
        register: the format of registers.
        fmt: the format in memory.
        lanes: the type of a component in registers if its numbers are vectors, else None.
    """

    def __init__(
        self,
        index: int | None,
        total: int,
        terms: int,
        register: Format,
        fmt: Format,
        lanes: Any = None,
    ) -> None:
        self.index, self.total, self.terms = index, total, terms
        self.register, self.fmt, self.lanes = register, fmt, lanes
        names = index, total, terms, register.name, fmt.name, lanes
        super().__init__(name=f"Operand{names}")

    def number(self, one: bool) -> Any:
        """Return the type of a number, or of that of one lane."""
        kind = memory.NUMBA[self.register] if one or self.lanes is None else self.lanes
        return types.UniTuple(kind, self.terms)

    def _cells(self, b: Any, at: Any, one: bool) -> tuple[list[Any], tuple[Any, ...], int]:
        """Return the elements where the vectors of a number begin, formats, and lanes."""
        formats = self.register, self.fmt
        if one or self.lanes is None:
            return [at], formats, 0
        lanes = self.lanes.lanes
        return [b.add(at, I64(k * lanes)) for k in range(self.lanes.count)], formats, lanes

    def load(self, c: Any, b: Any, addresses: Any, at: Any, one: bool = True) -> Any:
        """Emit the load of a number, or of that of one lane, at an element of each component."""
        cells, formats, lanes = self._cells(b, at, one)
        found = []
        for k in range(self.terms):
            more = None if self.index is None else self.index + k, self.total, lanes
            address = b.extract_value(addresses, k)
            parts = [memory.loaded(b, address, cell, *formats, *more) for cell in cells]
            found.append(self.lanes.packed(b, parts) if lanes else parts[0])
        return c.make_tuple(b, self.number(one), found)

    def store(self, c: Any, b: Any, addresses: Any, at: Any, x: Any, one: bool = True) -> Any:
        """Emit the store of a number, or of that of one lane."""
        cells, formats, lanes = self._cells(b, at, one)
        for k in range(self.terms):
            more = None if self.index is None else self.index + k, self.total, lanes
            address, value = b.extract_value(addresses, k), b.extract_value(x, k)
            parts = self.lanes.parts(b, value) if lanes else [value]
            for cell, part in zip(cells, parts, strict=True):
                memory.stored(b, address, cell, part, *formats, *more)
        return c.get_dummy_value()


@register_model(Operand)
class _OperandModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.ArrayType(I64, fe_type.terms))


@infer_global(operator.getitem)
class _Get(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Operand):
            return signature(args[0].number(isinstance(args[1], types.BaseTuple)), *args)
        return None


@infer_global(operator.setitem)
class _Set(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Operand):
            operand, index, _ = args
            number = operand.number(isinstance(index, types.BaseTuple))
            return signature(types.void, operand, index, number)
        return None


def _element(c: Any, b: Any, operand: Any, kind: Any, index: Any) -> tuple[Any, bool]:
    """Return the element of a component at an index, and whether the index is of one lane."""
    width = 1 if operand.lanes is None else operand.lanes.lanes * operand.lanes.count
    if not isinstance(kind, types.BaseTuple):
        return b.mul(c.cast(b, index, kind, types.int64), I64(width)), False
    i, lane = (c.cast(b, b.extract_value(index, k), kind.types[k], types.int64) for k in (0, 1))
    return b.add(b.mul(i, I64(width)), lane) if width > 1 else i, True


@lower_builtin(operator.getitem, Operand, types.Any)
def _load(c: Any, b: Any, sig: Any, args: Any) -> Any:
    operand, index = sig.args
    return operand.load(c, b, args[0], *_element(c, b, operand, index, args[1]))


@lower_builtin(operator.setitem, Operand, types.Any, types.Any)
def _store(c: Any, b: Any, sig: Any, args: Any) -> Any:
    operand, index, _ = sig.args
    at, one = _element(c, b, operand, index, args[1])
    return operand.store(c, b, args[0], at, args[2], one)


# The numbered operand that may overlap every other one.
ANY = -1


def _accesses(loop: Loop) -> dict[str, Any]:
    """Return the intrinsics `load` and `store`, whose first argument is a constant."""
    counts = [count for *_, count in loop.numbered]
    found: dict[int, Operand] = {ANY: Operand(None, 0, loop.terms, FP64, FP64)}
    for k, (fmt, register, count) in enumerate(loop.numbered):
        found[k] = Operand(sum(counts[:k]), sum(counts), count, register, fmt)

    def addresses(operand: Operand) -> Any:
        return types.UniTuple(types.uint64, operand.terms)

    @intrinsic(prefer_literal=True)
    def load(context, operand, x, i):
        kind = found[operand.literal_value]

        def generate(c, b, signature, args):
            return kind.load(c, b, args[1], args[2])

        return kind.number(True)(operand, addresses(kind), types.int64), generate

    @intrinsic(prefer_literal=True)
    def store(context, operand, x, i, value):
        kind = found[operand.literal_value]

        def generate(c, b, signature, args):
            return kind.store(c, b, *args[1:])

        return types.void(operand, addresses(kind), types.int64, kind.number(True)), generate

    return {"load": load, "store": store}


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


def _types(loop: Loop) -> dict[str, Any]:
    """Return Numba's type of each parameter after the item."""
    register, lanes = loop.format.register, None
    if loop.across:
        count = vector_loops.INTERLEAVED
        width = vector_loops.width(int(register.itemsize))
        lanes = Lanes(memory.NUMBA[register], width // count, count)
    counts = {**loop.operands, **loop.scratch}
    total, index = sum(counts.values()), 0
    found: dict[str, Any] = {}
    for name in loop.parameters:
        if name in counts:
            kinds = (register, lanes) if name in loop.scratch else (loop.format, None)
            found[name] = Operand(index, total, counts[name], register, *kinds)
            index += counts[name]
        elif name in ("data", "workspace"):
            found[name] = types.uint64
        else:
            found[name] = types.CPointer(types.int32) if name in loop.tables else types.int64
    return found


def _reader(loop: Loop) -> Any:
    """Return the intrinsic (argument struct, thread) -> all parameters after the item."""
    kinds = _types(loop)
    result = types.Tuple(list(kinds.values()))

    @intrinsic
    def fields(context, data, arrival):
        def generate(c, b, sig, args):
            struct = b.inttoptr(args[0], I64.as_pointer())
            at = itertools.count(4)

            def entry() -> Any:
                return b.load(b.gep(struct, [I64(next(at))]), align=8)

            workspace, size = (b.load(b.gep(struct, [I64(k)]), align=8) for k in (2, 3))
            workspace = b.add(workspace, b.mul(b.mul(size, I64(8)), args[1]))
            own = {"data": args[0], "workspace": workspace}
            found = []
            for name, kind in kinds.items():
                if isinstance(kind, Operand):
                    if name in loop.scratch:
                        first, size = b.add(workspace, entry()), entry()
                        addresses = [b.add(first, b.mul(size, I64(k))) for k in range(kind.terms)]
                    else:
                        addresses = [entry() for _ in range(kind.terms)]
                    whole = ir.Constant(ir.ArrayType(I64, kind.terms), ir.Undefined)
                    for k, address in enumerate(addresses):
                        whole = b.insert_value(whole, address, k)
                    found.append(whole)
                elif name in own:
                    found.append(own[name])
                elif isinstance(kind, types.CPointer):
                    found.append(b.inttoptr(entry(), I32.as_pointer()))
                else:
                    found.append(entry())
            return c.make_tuple(b, result, found)

        return result(types.uint64, types.int64), generate

    return fields


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
                # A function that asks for wide vectors is compiled once, and not inlined.
                apart = "prefer_wide_vectors" in own.__code__.co_names
                bound = _scope(own, names, made)
                made[own] = numba.njit(bound, **INNER) if apart else jit(bound)
            scope[name] = made[own]
        elif name in names or not (own is None or isinstance(own, ModuleType)):
            scope[name] = own
    bound = FunctionType(function.__code__, scope, function.__name__)
    bound.__module__ = function.__module__
    return bound


def compiled(loop: Loop) -> callbacks.Callback:
    """Compile a `Loop` as a callback void(uint64)."""
    terms, count = loop.terms, loop.names.get("COUNT", loop.terms)
    register, roundings = loop.format.register, (("rc", loop.format), ("narrow", loop.moved))
    settings = Settings(register, loop.format, roundings)
    bits = 8 * int(loop.moved.itemsize)
    scope = {
        "word": memory.word,
        "number": memory.number,
        "advance": memory.advance,
        "claim": memory.claim,
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "SHARE": SHARE,
        "value": memory.loading(FP64, FP64, 0, 1),
        "put": memory.put,
        "take_moved": memory.loading_bits(bits),
        "put_moved": memory.storing_bits(bits),
        "prefetch": prefetch,
        "over": vector_loops.over(),
        "over_one": vector_loops.over(1),
        "fields": _reader(loop),
        **instructions.NAMES,
        "shifted": shifted,
        "ANY": ANY,
        "TERMS": terms,
        "ZEROS": (0.0,) * terms,
        "spaced": spaced(terms, int(register.itemsize)),
        "words": words(terms),
        "stored_words": words(count),
        **_accesses(loop),
        **{name: calls.algorithm(settings, each) for name, each in loop.algorithms.items()},
        **loop.names,
        **loop.intrinsics(),
    }
    function = loop.function if loop.whole else language.items
    return callbacks.compiled(_scope(function, {**scope, "loop": loop.function}, {}))
