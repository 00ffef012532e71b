"""Compile loops that are Python functions over operands, integers and algorithms.

A loop is called for each item of a call. It reads `x = operand[i]` and writes `operand[i] = x`,
where a number x is a tuple of components. The same function is compiled for one matrix an item, or
for a block of matrices with one matrix per vector lane: a number is then the vectors of its lanes
in scratch memory, and `operand[i, lane]` is the number of one lane.
"""

from __future__ import annotations

import builtins
import itertools
import operator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from mcf.kernels.formats import FP32, Format
from mcf.kernels.numba.compile import callbacks, calls, memory, vector_loops
from mcf.kernels.numba.compile.calls import Lanes
from mcf.kernels.numba.compile.instructions import INNER, bits64, jit, power
from mcf.kernels.numba.compile.llvm_types import I32, I64, LLVM
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.numba.runtime import team

if TYPE_CHECKING:
    from mcf.kernels.numba.loops.matrices.matrix_loop import Loop


class Operand(types.Type):
    """A matrix operand, by the addresses of its components.

    Args:
        index: the index of its first component among those of all operands.
        total: the number of components of all operands.
        terms: its number of components.
        register: the format of registers.
        fmt: the format in memory.
        lanes: the type of a component in registers if its numbers are vectors, else None.
    """

    def __init__(
        self, index: int, total: int, terms: int, register: Format, fmt: Format, lanes: Any
    ) -> None:
        self.index, self.total, self.terms = index, total, terms
        self.register, self.fmt, self.lanes = register, fmt, lanes
        names = index, total, terms, register.name, fmt.name, lanes
        super().__init__(name=f"Operand{names}")

    def access(self, index: Any) -> tuple[Any, bool]:
        """Return the type of the number at an index, and whether it is of one lane."""
        one = isinstance(index, types.BaseTuple)
        kind = memory.NUMBA[self.register] if one or self.lanes is None else self.lanes
        return types.UniTuple(kind, self.terms), one


@register_model(Operand)
class _OperandModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.ArrayType(I64, fe_type.terms))


@infer_global(operator.getitem)
class _Get(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Operand):
            return signature(args[0].access(args[1])[0], *args)
        return None


@infer_global(operator.setitem)
class _Set(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Operand):
            operand, index, _ = args
            return signature(types.void, operand, index, operand.access(index)[0])
        return None


def _offset(c: Any, b: Any, operand: Any, kind: Any, index: Any) -> Any:
    """Return the index of an element of a component."""
    width = 1 if operand.lanes is None else operand.lanes.lanes * operand.lanes.count
    if not isinstance(kind, types.BaseTuple):
        return b.mul(c.cast(b, index, kind, types.int64), I64(width))
    i, lane = (c.cast(b, b.extract_value(index, k), kind.types[k], types.int64) for k in (0, 1))
    return b.add(b.mul(i, I64(width)), lane) if width > 1 else i


def _vectors(b: Any, operand: Any, address: Any, at: Any) -> list[Any]:
    """Return the pointers to the vectors of a component."""
    kind = ir.VectorType(LLVM[operand.register], operand.lanes.lanes)
    first = b.gep(b.inttoptr(address, LLVM[operand.register].as_pointer()), [at])
    first = b.bitcast(first, kind.as_pointer())
    return [b.gep(first, [I64(k)]) for k in range(operand.lanes.count)]


@lower_builtin(operator.getitem, Operand, types.Any)
def _load(c: Any, b: Any, sig: Any, args: Any) -> Any:
    operand, index = sig.args
    at = _offset(c, b, operand, index, args[1])
    number, one = operand.access(index)
    found = []
    for k in range(operand.terms):
        address, field = b.extract_value(args[0], k), operand.index + k
        if one or operand.lanes is None:
            more = operand.register, operand.fmt, field, operand.total
            found.append(memory.loaded(b, address, at, *more))
            continue
        parts = []
        for pointer in _vectors(b, operand, address, at):
            parts.append(b.load(pointer, align=int(operand.register.itemsize)))
            memory.no_alias(b.module, parts[-1], field, operand.total)
        found.append(operand.lanes.packed(b, parts))
    return c.make_tuple(b, number, found)


@lower_builtin(operator.setitem, Operand, types.Any, types.Any)
def _store(c: Any, b: Any, sig: Any, args: Any) -> Any:
    operand, index, _ = sig.args
    at = _offset(c, b, operand, index, args[1])
    _, one = operand.access(index)
    for k in range(operand.terms):
        address, field = b.extract_value(args[0], k), operand.index + k
        value = b.extract_value(args[2], k)
        if one or operand.lanes is None:
            more = operand.register, operand.fmt, field, operand.total
            memory.stored(b, address, at, value, *more)
            continue
        pointers = _vectors(b, operand, address, at)
        for pointer, part in zip(pointers, operand.lanes.parts(b, value), strict=True):
            stored = b.store(part, pointer, align=int(operand.register.itemsize))
            memory.no_alias(b.module, stored, field, operand.total)
    return c.get_dummy_value()


def _types(loop: Loop) -> dict[str, Any]:
    """Return Numba's type of each parameter after the item."""
    register = loop.format.register
    lanes = None
    if loop.across:
        count = vector_loops.INTERLEAVED
        width = vector_loops.width(int(register.itemsize))
        lanes = Lanes(memory.NUMBA[register], width // count, count)
    counts = {**loop.operands, **loop.scratch}
    total, index = sum(counts.values()), 0
    found: dict[str, Any] = {}
    for name in loop.names:
        if name in counts:
            kinds = (register, lanes) if name in loop.scratch else (loop.format, None)
            found[name] = Operand(index, total, counts[name], register, *kinds)
            index += counts[name]
        else:
            found[name] = types.CPointer(types.int32) if name in loop.tables else types.int64
    return found


def _reader(loop: Loop) -> Any:
    """Return the intrinsic (argument struct, thread) -> all parameters after the item.

    `matrix_loop.Call` describes the struct.
    """
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
            workspace = b.add(workspace, b.mul(size, args[1]))
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
                elif isinstance(kind, types.CPointer):
                    found.append(b.inttoptr(entry(), I32.as_pointer()))
                else:
                    found.append(entry())
            return c.make_tuple(b, result, found)

        return result(types.uint64, types.int64), generate

    return fields


def _kernel(data):
    """Run the loop for all items that this thread claims; see `team`."""
    prefer_wide_vectors()
    shares, parts = word(data, 0), number(data, 1)
    arrival = claim(shares, 0)
    arguments = fields(data, arrival)
    for turn in range(parts):
        share = SHARE * ((arrival + turn) % parts + 1)
        end = number(shares, share + 1)
        while True:
            item = claim(shares, share)
            if item >= end:
                break
            loop(item, *arguments)


def _bound(function: FunctionType, names: dict[str, Any], made: dict[Any, Any]) -> Any:
    """Return a function with its open names bound, and functions of its module likewise."""
    if function not in made:
        scope: dict[str, Any] = {}
        for name in function.__code__.co_names:
            own = function.__globals__.get(name)
            if name in names:
                scope[name] = names[name]
            elif isinstance(own, FunctionType):
                scope[name] = _bound(own, names, made)
            elif own is not None:
                scope[name] = own
        bound = FunctionType(function.__code__, scope | {"__builtins__": builtins})
        bound.__name__, bound.__module__ = function.__name__, function.__module__
        # A function that asks for wide vectors is compiled once, and not inlined in its callers.
        apart = "prefer_wide_vectors" in function.__code__.co_names
        made[function] = numba.njit(bound, **INNER) if apart else jit(bound)
    return made[function]


def compiled(loop: Loop) -> callbacks.Callback:
    """Compile a loop as a callback void(uint64)."""
    register = loop.format.register
    settings = Settings(register, loop.format, (("rc", loop.format),))
    pad = vector_loops.width(int(register.itemsize))
    names = {
        "REAL": np.float32 if register == FP32 else np.float64,
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "ACROSS": loop.across,
        "PAD": pad,
        "bits64": bits64,
        "power": power,
        "LANES": pad if loop.across else 1,
        # Rows are padded to whole vectors; across matrices a number is whole vectors itself.
        "over": vector_loops.over(1) if loop.across else vector_loops.over(pad=pad),
        # For rows in the caller's memory, which no padding follows.
        "over_exactly": vector_loops.over(),
        # Across matrices LLVM would copy short rows by gathers, which take twice as long.
        "each": vector_loops.over(0 if loop.across else 1),
        # Likewise for a column of a panel.
        "one_by_one": vector_loops.over(0),
        **{name: calls.algorithm(settings, each) for name, each in loop.algorithms.items()},
        **loop.constants,
    }
    scope = {
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "word": memory.word,
        "number": memory.number,
        "claim": memory.claim,
        "fields": _reader(loop),
        "loop": _bound(loop.function, names, {}),
        "SHARE": team.SHARE,
        "__builtins__": builtins,
    }
    return callbacks.compiled(FunctionType(_kernel.__code__, scope, "kernel"))
