"""Loops of high-operation-count kernels, written as explicit vector code.

LLVM spends most of the compilation on vectorising the loop over elements, and also compiles a
scalar loop for the remainder. With hundreds of operations per element neither is needed: the vector
code is written directly, and the remainder is copied into a padded block and out of it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import BF16, FP16, FP64
from mcf.kernels.numba.compile.calls import Calling
from mcf.kernels.numba.compile.llvm_types import DOUBLE, FLOAT, I16, I32, I64, LLVM
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.numba.compile.trace import Trace, Value
from mcf.kernels.numba.runtime import processor

_BYTE = ir.IntType(8)
# Vectors per iteration. A high-operation-count kernel is a dependent chain of thousands of
# operations; two chains overlap.
VECTORS = 3


def _room(b: Any, size: int) -> Any:
    """Allocate bytes on the stack and return their address."""
    return b.ptrtoint(b.alloca(ir.ArrayType(_BYTE, size)), I64)


def _clear(b: Any, address: Any, size: int) -> None:
    cgutils.memset(b, b.inttoptr(address, _BYTE.as_pointer()), I64(size), 0)


def _copy(b: Any, to: Any, source: Any, size: Any) -> None:
    pointers = [b.inttoptr(a, _BYTE.as_pointer()) for a in (to, source)]
    cgutils.raw_memcpy(b, *pointers, size, 1)


class _Block:
    """A block of elements that are computed together."""

    def __init__(self, spec: Elementwise, settings: Settings) -> None:
        self.spec, self.settings = spec, settings
        self.lanes = processor.vector_bytes() // int(settings.register.itemsize)
        self.vectors = 1 if spec.few else VECTORS
        self.length = self.lanes * self.vectors

    def write(self, b: Any, places: dict[str, Any], shared: dict[str, Any]) -> tuple[Any, ...]:
        """Load, compute and store; return each vector's counted condition.

        Args:
            b: llvmlite's builder.
            places: address of the first element of each tensor.
            shared: addresses of tables, and of numbers that are equal for every index.
        """
        trace = Trace(b, self.settings, self.lanes, self.vectors)
        values = {
            f.name: self._load(trace, f, places[f.name])
            for f in self.spec.fields
            if f.read and not f.uniform
        }
        tables = {f.name for f in self.spec.fields if f.table}
        for name, address in shared.items():
            if name in tables:
                values[name] = Value(trace, (address,) * self.vectors)
            else:
                register = self.settings.register
                number = b.load(b.inttoptr(address, LLVM[register].as_pointer()))
                number.align = int(register.itemsize)
                values[name] = trace.spread(number)
        function = Calling(trace, dict(self.spec.slots), self.spec.calls)(self.spec.function)
        results = function(*(self.spec.argument(p, values) for p in parameters(self.spec.function)))
        named = dict(zip(self.spec.results, results, strict=True))
        fields = {f.name: f for f in self.spec.fields}
        for result, field in self.spec.stores:
            self._store(trace, fields[field], places[field], trace.number(named[result]))
        if self.spec.sums is None:
            return ()
        given = {f"out_{r}": trace.number(x) for r, x in named.items()}
        (condition,) = trace.bound(self.spec.sums, {})(
            *(given[p] for p in parameters(self.spec.sums))
        )
        found: tuple[Any, ...] = condition.parts
        return found

    def count(self, b: Any, conditions: tuple[Any, ...], left: Any) -> Any:
        """Count the first `left` elements whose conditions hold."""
        total = I64(0)
        for k, condition in enumerate(conditions):
            for lane in range(self.lanes):
                inside = b.icmp_signed(">", left, I64(k * self.lanes + lane))
                holds = b.and_(inside, b.extract_element(condition, ir.IntType(32)(lane)))
                total = b.add(total, b.zext(holds, I64))
        return total

    def _cells(self, trace: Trace, field: Field, place: Any) -> list[tuple[Any, int]]:
        """Return pointers to the vectors."""
        b, size = trace.builder, int(field.format.itemsize)
        kind = trace.type(I16 if field.format == BF16 else LLVM[field.format])
        offsets = [k * self.lanes * size for k in range(trace.count)]
        return [b.inttoptr(b.add(place, I64(o)), kind.as_pointer()) for o in offsets]

    def _load(self, trace: Trace, field: Field, place: Any) -> Value:
        b, fmt, size = trace.builder, field.format, int(field.format.itemsize)
        found = [b.load(p, align=size) for p in self._cells(trace, field, place)]
        single, wide = trace.type(FLOAT), trace.type(LLVM[self.settings.register])
        if fmt == BF16:
            half = ir.Constant(trace.type(I32), [16] * self.lanes)
            words = [b.shl(b.zext(v, trace.type(I32)), half) for v in found]
            found = [b.bitcast(v, single) for v in words]
        elif fmt == FP16:
            found = [b.fpext(v, single) for v in found]
        return Value(trace, tuple(v if v.type == wide else b.fpext(v, wide) for v in found))

    def _store(self, trace: Trace, field: Field, place: Any, x: Value) -> None:
        b, fmt, size = trace.builder, field.format, int(field.format.itemsize)
        single = trace.type(FLOAT)
        for pointer, v in zip(self._cells(trace, field, place), x.parts, strict=True):
            # Exact: numbers have been rounded already.
            if fmt != FP64 and v.type != single:
                v = b.fptrunc(v, single)
            if fmt == BF16:
                half = ir.Constant(trace.type(I32), [16] * self.lanes)
                v = b.trunc(b.lshr(b.bitcast(v, trace.type(I32)), half), trace.type(I16))
            elif fmt == FP16:
                v = b.fptrunc(v, trace.type(LLVM[FP16]))
            b.store(v, pointer, align=size)


def over(spec: Elementwise, settings: Settings) -> Any:
    """Intrinsic (first, last, addresses): run the kernel for elements first, ..., last - 1.

    The addresses are those of all fields, in order. The result is the number of elements for which
    the kernel's counted condition held, as a float64.
    """
    block = _Block(spec, settings)
    moved = [f for f in spec.fields if not f.uniform]
    sizes = {f.name: int(f.format.itemsize) for f in moved}

    @intrinsic
    def loop(typing, first, last, addresses):
        def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
            begin, end, packed = args
            given = {f.name: b.extract_value(packed, k) for k, f in enumerate(spec.fields)}
            tables = {f.name: given[f.name] for f in spec.fields if f.uniform}
            with b.goto_entry_block():
                rooms = {n: _room(b, size * block.length) for n, size in sizes.items()}
            starts = {n: b.add(given[n], b.mul(begin, I64(s))) for n, s in sizes.items()}
            count = b.sub(end, begin)
            before = b.block
            head, filling, body, emptying, following, after = (
                b.append_basic_block(n)
                for n in (
                    "sweep",
                    "sweep.in",
                    "sweep.block",
                    "sweep.out",
                    "sweep.next",
                    "sweep.end",
                )
            )
            b.cbranch(b.icmp_signed(">", count, I64(0)), head, after)

            b.position_at_end(head)
            left = b.phi(I64)
            at = {n: b.phi(I64) for n in sizes}
            counted = b.phi(I64)
            full = b.icmp_signed(">=", left, I64(block.length))
            b.cbranch(full, body, filling)

            b.position_at_end(filling)
            for f in moved:
                if f.read:
                    _clear(b, rooms[f.name], sizes[f.name] * block.length)
                    _copy(b, rooms[f.name], at[f.name], b.mul(left, I64(sizes[f.name])))
            b.branch(body)

            b.position_at_end(body)
            places = {}
            for n in sizes:
                places[n] = b.phi(I64)
                places[n].add_incoming(at[n], head)
                places[n].add_incoming(rooms[n], filling)
            total = b.add(counted, block.count(b, block.write(b, places, tables), left))
            b.cbranch(full, following, emptying)

            b.position_at_end(emptying)
            for f in moved:
                if f.written:
                    _copy(b, at[f.name], rooms[f.name], b.mul(left, I64(sizes[f.name])))
            b.branch(after)

            b.position_at_end(following)
            rest = b.sub(left, I64(block.length))
            for n, size in sizes.items():
                at[n].add_incoming(starts[n], before)
                at[n].add_incoming(b.add(at[n], I64(size * block.length)), following)
            left.add_incoming(count, before)
            left.add_incoming(rest, following)
            counted.add_incoming(I64(0), before)
            counted.add_incoming(total, following)
            b.cbranch(b.icmp_signed(">", rest, I64(0)), head, after)

            b.position_at_end(after)
            found = b.phi(I64)
            found.add_incoming(I64(0), before)
            found.add_incoming(total, emptying)
            found.add_incoming(total, following)
            return b.uitofp(found, DOUBLE)

        return types.float64(types.int64, types.int64, addresses), write

    return loop
