"""Loops over the elements of an `Elementwise` kernel, whose instructions one trace writes.

The formula of an element is a Python function of its numbers in registers, which runs once on the
trace. LLVM vectorises the loop over single elements, or over pairs of packed ones.

High-operation-count kernels are written as explicit vector code. LLVM spends most of the
compilation on vectorising their loop, and also compiles a scalar loop for the remainder. With
hundreds of operations per element neither is needed: the remainder is copied into a padded block
and out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mcf.kernels.elementwise import Elementwise, parameters
from mcf.kernels.formats import BF16
from mcf.kernels.numba.compile import memory, vector_loops
from mcf.kernels.numba.compile.calls import Calling
from mcf.kernels.numba.compile.llvm_types import DOUBLE, I1, I32, I64, LLVM
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.numba.compile.trace import Trace, Value
from mcf.kernels.numba.runtime import processor

_BYTE = ir.IntType(8)
# Vectors per iteration. A high-operation-count kernel is a dependent chain of thousands of
# operations; two chains overlap.
VECTORS = 3


class _Kernel:
    """The elements of a kernel."""

    def __init__(self, spec: Elementwise, formula: str, interleaved: int) -> None:
        self.spec, self.interleaved = spec, interleaved
        self._code = compile(formula, f"<mcf numba {spec.name} {spec.serial}>", "exec")
        self.register = spec.register
        codes = {code.field for code in spec.codes}
        payloads = any(f.format != BF16 and f.name not in codes for f in spec.fields)
        self.settings = Settings(self.register, spec.arithmetic, spec.roundings, payloads)
        # Operands that overlap no other one: the fields, and the sums.
        self.count = len(spec.fields) + 1
        # Elements per step of a loop for vectors.
        self.lanes = processor.vector_bytes() // int(self.register.itemsize)
        self.vectors = 1 if spec.few else VECTORS
        self.length = self.lanes * self.vectors

    def function(self, trace: Trace) -> Callable[..., Any]:
        """Return the formula of an element on a trace."""
        spec = self.spec
        bind = Calling(trace, dict(spec.slots), spec.calls)
        names: dict[str, Any] = {"function": bind(spec.function), "ZERO": trace.number(0)}
        names |= {name: bind(each) for name, each in spec.helpers().items()}
        for field in spec.fields:
            names[f"round_{field.name}"] = self._rounding(trace, field.format)
        if spec.sums is not None:
            names["sum_terms"] = self._terms(trace)
        exec(self._code, names)
        made: Callable[..., Any] = names["element"]
        return made

    def _rounding(self, trace: Trace, fmt: Any) -> Callable[[Any], Value]:
        # Numbers of high-operation-count kernels have been rounded already.
        return lambda x: trace.number(x) if self.spec.long else trace.rounded(trace.number(x), fmt)

    def _terms(self, trace: Trace) -> Callable[..., Any]:
        """Return the terms of sums, whose products may be contracted with additions."""
        assert self.spec.sums is not None
        settings = trace.settings._replace(flags=() if self.spec.long else ("contract",))
        other = Trace(trace.builder, settings, trace.lanes, trace.count)
        function = other.bound(self.spec.sums, dict(self.spec.slots))

        def moved(x: Any) -> Any:
            return tuple(map(moved, x)) if isinstance(x, tuple) else Value(other, x.parts)

        return lambda *given: function(*(moved(trace.number(x)) for x in given))

    def shared(self, trace: Trace, places: Mapping[str, Any]) -> dict[str, Any]:
        """Return tables' addresses, and the numbers that are equal for every index."""
        found = {}
        for k, field in enumerate(self.spec.fields):
            if field.table:
                found[field.name] = Value(trace, (places[field.name],) * trace.count)
            elif field.uniform:
                # High-operation-count kernels load them again for each block.
                index = None if self.spec.long else k
                given = self.register, field.format, index, self.count
                number = memory.loaded(trace.builder, places[field.name], I64(0), *given)
                found[field.name] = trace.spread(number)
        return found


def _pointer(b: Any, address: Any, index: Any, kind: Any) -> Any:
    return b.gep(b.inttoptr(address, kind.as_pointer()), [index])


def _scalars(kernel: _Kernel, trace: Trace, address: Any, row: Any) -> dict[str, Any]:
    """Return the scalars of a row, with any NaN as the one without a payload.

    They may come from a GPU, whose NaN has all bits set: rounding to bf16 would carry it to -0.
    """
    b, names, kind = trace.builder, kernel.spec.scalars, LLVM[kernel.register]
    found = {}
    for k, name in enumerate(names):
        at = b.add(b.mul(row, I64(len(names))), I64(k))
        x = b.load(_pointer(b, address, at, kind), align=int(kernel.register.itemsize))
        nan = ir.Constant(kind, float("nan"))
        found[name] = Value(trace, (b.select(b.fcmp_unordered("uno", x, x), nan, x),))
    return found


def _accumulated(b: Any, total: Any, term: Any) -> Any:
    """Add a term, or count a condition, where a loop may have several partial sums."""
    if term.type == I1:
        return b.add(total, b.zext(term, I32))
    return b.fadd(total, term, flags=("reassoc", "nsz", "contract"))


def _short(
    kernel: _Kernel, trace: Trace, first: Any, last: Any, places: Mapping[str, Any], shared: Any
) -> list[Any]:
    """Write the loop over single elements or pairs, and return the float64 sums."""
    spec, count, b = kernel.spec, kernel.count, trace.builder
    if spec.packed:
        first, last = (b.ashr(x, I64(1)) for x in (first, last))
    real = LLVM[kernel.register]
    kinds = [real] * (spec.sum_count - spec.counts) + [I32] * spec.counts
    before = b.block
    body, after = b.append_basic_block("elements"), b.append_basic_block("elements.end")
    b.cbranch(b.icmp_signed("<", first, last), body, after)
    b.position_at_end(body)
    i = b.phi(I64)
    i.add_incoming(first, before)
    totals = [b.phi(kind) for kind in kinds]
    formula, sides = kernel.function(trace), 2 if spec.packed else 1
    values: list[dict[str, Any]] = [dict(shared) for _ in range(sides)]
    for k, f in enumerate(spec.fields):
        if f.read and not f.uniform:
            given = b, places[f.name], i, kernel.register, f.format, k, count
            found = memory.loaded_pair(*given) if spec.packed else [memory.loaded(*given)]
            for side, x in zip(values, found, strict=True):
                side[f.name] = Value(trace, (x,))
    kept, terms = [], []
    for k, side in enumerate(values):
        index = b.add(b.add(i, i), I64(k)) if spec.packed else i
        given = map(side.__getitem__, parameters(formula)[1:])
        results = formula(Value(trace, (b.trunc(index, I32),)), *given)
        kept.append(results[: len(spec.stores)])
        terms.append([x.parts[0] for x in results[len(spec.stores) :]])
    fields = {f.name: (k, f.format) for k, f in enumerate(spec.fields)}
    for (_, name), *numbers in zip(spec.stores, *kept, strict=True):
        k, fmt = fields[name]
        parts = [trace.number(x).parts[0] for x in numbers]
        more = kernel.register, fmt, k, count
        if spec.packed:
            memory.store_pair(b, places[name], i, parts, *more)
        else:
            memory.stored(b, places[name], i, parts[0], *more)
    sums = list(totals)
    for side in terms:
        sums = [_accumulated(b, *each) for each in zip(sums, side, strict=True)]
    following = b.add(i, I64(1), flags=("nsw",))
    i.add_incoming(following, b.block)
    branch = b.cbranch(b.icmp_signed("<", following, last), body, after)
    if not kinds:
        branch.set_metadata("llvm.loop", vector_loops.interleaved(b.module, kernel.interleaved))
    end = b.block
    b.position_at_end(after)
    found = []
    for kind, total, new in zip(kinds, totals, sums, strict=True):
        zero = ir.Constant(kind, 0)
        total.add_incoming(zero, before)
        total.add_incoming(new, end)
        found.append(b.phi(kind))
        found[-1].add_incoming(zero, before)
        found[-1].add_incoming(new, end)
    return [_double(b, x) for x in found]


def _double(b: Any, x: Any) -> Any:
    """Convert a register or a count to float64."""
    if x.type in (I32, I64):
        return b.sitofp(x, DOUBLE)
    return x if x.type == DOUBLE else b.fpext(x, DOUBLE)


def _copy(b: Any, to: Any, source: Any, size: Any) -> None:
    pointers = [b.inttoptr(a, _BYTE.as_pointer()) for a in (to, source)]
    cgutils.raw_memcpy(b, *pointers, size, 1)


def _block(kernel: _Kernel, b: Any, at: Mapping[str, Any], places: Mapping[str, Any]) -> Any:
    """Compute a block of vectors, and return each vector's counted condition.

    Args:
        kernel: the kernel.
        b: llvmlite's builder.
        at: the address of the block's first element of each tensor.
        places: the addresses of all fields.
    """
    spec, lanes = kernel.spec, kernel.lanes
    trace = Trace(b, kernel.settings, lanes, kernel.vectors)
    values = kernel.shared(trace, places)
    given = kernel.register, None, 0, lanes

    def cells(field: Any) -> list[Any]:
        size = lanes * int(field.format.itemsize)
        return [b.add(at[field.name], I64(k * size)) for k in range(kernel.vectors)]

    def load(cell: Any, fmt: Any) -> Any:
        return memory.loaded(b, cell, I64(0), given[0], fmt, *given[1:])

    for f in spec.fields:
        if f.read and not f.uniform:
            values[f.name] = Value(trace, tuple([load(cell, f.format) for cell in cells(f)]))
    formula = kernel.function(trace)
    results = formula(None, *map(values.__getitem__, parameters(formula)[1:]))
    fields = {f.name: f for f in spec.fields}
    for (_, name), x in zip(spec.stores, results, strict=False):
        fmt = fields[name].format
        for cell, part in zip(cells(fields[name]), trace.number(x).parts, strict=True):
            memory.stored(b, cell, I64(0), part, given[0], fmt, *given[1:])
    return results[-1].parts if spec.sum_count else ()


def _counted(kernel: _Kernel, b: Any, conditions: Any, left: Any) -> Any:
    """Count the first `left` elements whose conditions hold."""
    total = I64(0)
    for k, condition in enumerate(conditions):
        for lane in range(kernel.lanes):
            inside = b.icmp_signed(">", left, I64(k * kernel.lanes + lane))
            holds = b.and_(inside, b.extract_element(condition, I32(lane)))
            total = b.add(total, b.zext(holds, I64))
    return total


def _long(kernel: _Kernel, b: Any, first: Any, last: Any, places: Mapping[str, Any]) -> list[Any]:
    """Write the loop over blocks of vectors, and return the float64 count."""
    moved = [f for f in kernel.spec.fields if not f.uniform]
    sizes = {f.name: int(f.format.itemsize) for f in moved}
    with b.goto_entry_block():
        # A padded block on the stack for each tensor.
        padded = {
            n: b.alloca(ir.ArrayType(_BYTE, size * kernel.length)) for n, size in sizes.items()
        }
        padded = {n: b.ptrtoint(x, I64) for n, x in padded.items()}
    starts = {n: b.add(places[n], b.mul(first, I64(s))) for n, s in sizes.items()}
    count = b.sub(last, first)
    before = b.block
    names = "sweep", "sweep.in", "sweep.block", "sweep.out", "sweep.next", "sweep.end"
    head, filling, body, emptying, following, after = map(b.append_basic_block, names)
    b.cbranch(b.icmp_signed(">", count, I64(0)), head, after)

    b.position_at_end(head)
    left, counted = b.phi(I64), b.phi(I64)
    at = {n: b.phi(I64) for n in sizes}
    full = b.icmp_signed(">=", left, I64(kernel.length))
    b.cbranch(full, body, filling)

    b.position_at_end(filling)
    for f in moved:
        if f.read:
            size = I64(sizes[f.name] * kernel.length)
            cgutils.memset(b, b.inttoptr(padded[f.name], _BYTE.as_pointer()), size, 0)
            _copy(b, padded[f.name], at[f.name], b.mul(left, I64(sizes[f.name])))
    b.branch(body)

    b.position_at_end(body)
    here = {}
    for n in sizes:
        here[n] = b.phi(I64)
        here[n].add_incoming(at[n], head)
        here[n].add_incoming(padded[n], filling)
    conditions = _block(kernel, b, here, places)
    total = b.add(counted, _counted(kernel, b, conditions, left))
    b.cbranch(full, following, emptying)

    b.position_at_end(emptying)
    for f in moved:
        if f.written:
            _copy(b, at[f.name], padded[f.name], b.mul(left, I64(sizes[f.name])))
    b.branch(after)

    b.position_at_end(following)
    rest = b.sub(left, I64(kernel.length))
    for n, size in sizes.items():
        at[n].add_incoming(starts[n], before)
        at[n].add_incoming(b.add(at[n], I64(size * kernel.length)), following)
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
    return [_double(b, found)] * kernel.spec.sum_count


def sweep(spec: Elementwise, formula: str, interleaved: int) -> Any:
    """Return the intrinsic (first, last, addresses, scalars, row, totals) -> totals.

    It runs the kernel for elements first, ..., last - 1 of one row and adds its sums to float64
    totals. `addresses` is the address of the row's addresses, `scalars` that of all rows' scalars.

    Args:
        spec: the declaration.
        formula: the source of the function `element`: its index, and the numbers of fields and
            scalars by name -> the stored numbers, and the terms of the sums.
        interleaved: the number of vectors per iteration, for loops that LLVM vectorises.
    """
    kernel = _Kernel(spec, formula, interleaved)

    @intrinsic
    def sweep(context, first, last, addresses, scalars, row, totals):
        def generate(c, b, signature, args):
            begin, end, table, given, number, sums = args
            places = {
                f.name: b.load(_pointer(b, table, I64(k), I64), align=8)
                for k, f in enumerate(spec.fields)
            }
            if spec.long:
                found = _long(kernel, b, begin, end, places)
            else:
                trace = Trace(b, kernel.settings)
                shared = kernel.shared(trace, places) | _scalars(kernel, trace, given, number)
                found = _short(kernel, trace, begin, end, places, shared)
            found = [b.fadd(b.extract_value(sums, k), x) for k, x in enumerate(found)]
            return c.make_tuple(b, totals, found)

        kinds = types.int64, types.int64, types.uint64, types.uint64, types.int64, totals
        return totals(*kinds), generate

    return sweep
