"""Generate the CPU loop of an `Elementwise` declaration; `compiler` compiles it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored, vector_loops
from mcf.kernels.numba.runtime import team

# Elements whose terms are added in registers before they are added in float64.
CHUNK = 4096

_kernels: dict[Elementwise, Loop] = {}


class Table(NamedTuple):
    """Argument struct of a loop: addresses of arrays, except for `parts`.

    Args:
        addresses: of the tensors, uint64 [rows, fields].
        rows: the row of each item, int64.
        starts: the first element of each item, int64.
        stops: the element after its last, int64.
        scalars: register format, [rows, scalars].
        sums: float64 [items, terms].
        parts: number of shares of the items.
        shares: created by `team.shares` for this call.
    """

    addresses: int
    rows: int
    starts: int
    stops: int
    scalars: int
    sums: int
    parts: int
    shares: int


def source(spec: Elementwise) -> str:
    """Return the loop's Python source; an item is a range of one tensor, so that threads share it.

    `data` is the address of an argument struct, see `Table`. Threads claim items dynamically; the
    assignment of items to threads changes no bit.

    Sums are accumulated in vector registers, CHUNK elements at a time: their order depends on the
    processor's vectors only.

    If numbers are packed, a loop index covers two adjacent elements, see `_pair`.
    """
    values = [f.name if f.uniform else f"{f.name}_address" for f in spec.fields] + [*spec.scalars]
    lines = _one(spec) if spec.packed else []
    body = _pair(spec) if spec.packed else _body(spec)
    lines += (
        [] if spec.sums is not None or spec.long else vector_loops.step("step", "i", values, body)
    )
    wide = spec.sums is not None or spec.long or any(f.format in (FP32, FP64) for f in spec.fields)
    lines += [
        "def kernel(data):",
        *(["    prefer_wide_vectors()"] if wide else []),
        *(f"    {name} = word(data, {k})" for k, name in enumerate(Table._fields)),
        f"    parts = number(data, {Table._fields.index('parts')})",
        *("    " + line for line in team.ITEMS),
    ]
    indent = "    " * (team.ITEMS_DEPTH + 1)

    def emit(line: str) -> None:
        lines.append(indent + line)

    for name, array in (("row", "rows"), ("first", "starts"), ("last", "stops")):
        half = " >> 1" if spec.packed and name != "row" else ""
        emit(f"{name} = number({array}, item){half}")
    for k, field in enumerate(spec.fields):
        emit(f"{field.name}_address = word(addresses, row * {len(spec.fields)} + {k})")
    for k, scalar in enumerate(spec.scalars):
        emit(f"{scalar} = usual_nan(load_lane(scalars, row * {len(spec.scalars)} + {k}))")
    for field in spec.fields:
        if field.table:
            emit(f"{field.name} = {field.name}_address")
        elif field.uniform and not spec.long:
            emit(f"{field.name} = load_{field.name}({field.name}_address, 0)")
    if spec.long:
        emit(
            f"found = sweep(first, last, ({', '.join(f'{f.name}_address' for f in spec.fields)},))"
        )
        if spec.sums is not None:
            emit("store_total(sums, item, found)")
        return "\n".join(lines) + "\n"
    if spec.sums is None:
        # A vector of 16-bit numbers is two of float32 registers already. Random bits (a hash) are a
        # dependent chain, whose gaps another vector fills; without it two more run out of
        # registers.
        two = wide or spec.random or spec.arithmetic != FP32
        emit(vector_loops.call("step", "first", "last", values, two))
        return "\n".join(lines) + "\n"
    terms = range(spec.sum_count)
    for k in terms:
        emit(f"sum{k} = 0.0")
    emit("for start in range(first, last, CHUNK):")
    for k in terms:
        emit(f"    total{k} = {'NONE' if k >= spec.sum_count - spec.counts else 'ZERO'}")
    emit("    for i in range(start, min(start + CHUNK, last)):")
    lines += [indent + "        " + line for line in body]
    for k in terms:
        emit(f"    sum{k} += total{k}")
    for k in terms:
        emit(f"store_total(sums, item * {spec.sum_count} + {k}, sum{k})")
    return "\n".join(lines) + "\n"


def _body(spec: Elementwise) -> list[str]:
    """Return the statements for element i."""
    lines = [
        f"{field.name} = load_{field.name}({field.name}_address, i)"
        for field in spec.fields
        if field.read and not field.uniform
    ]
    lines += spec.decode_statements()
    lines.append(f"{spec.outputs()} = function({spec.call()})")
    lines += spec.draw_statements("element(i)")
    lines += spec.store_statements()
    for _, field in spec.stores:
        lines.append(f"store_{field}({field}_address, i, {spec.kept(field)})")
    if spec.sums is not None:
        terms = ", ".join(f"term{k}" for k in range(spec.sum_count))
        lines.append(f"{terms}, = sum_terms({spec.call_of(spec.sums)})")
        lines += [f"total{k} = accumulate(total{k}, term{k})" for k in range(spec.sum_count)]
    return lines


def _arguments(spec: Elementwise) -> list[str]:
    """Return the arguments of the function of one element, except its index."""
    read = [f.name for f in spec.fields if f.read and not f.uniform]
    return [*read, *(f.name for f in spec.fields if f.uniform), *spec.scalars]


def _one(spec: Elementwise) -> list[str]:
    """Return a function of one element's numbers; it returns stored values and terms."""
    kept = [spec.kept(field) for _, field in spec.stores]
    lines = [
        *spec.decode_statements(),
        f"{spec.outputs()} = function({spec.call()})",
        *spec.draw_statements("index"),
        *spec.store_statements(),
    ]
    if spec.sums is not None:
        terms = [f"term{k}" for k in range(spec.sum_count)]
        lines.append(f"{', '.join(terms)}, = sum_terms({spec.call_of(spec.sums)})")
        kept += terms
    lines.append(f"return {', '.join(kept)},")
    return vector_loops.step("one", "index", _arguments(spec), lines)


def _pair(spec: Elementwise) -> list[str]:
    """Return the statements for elements 2 i and 2 i + 1: one load and store for both per tensor.

    A lane of a vector holds both, as a word of two 16-bit numbers or a byte of two 4-bit numbers.
    """
    lines = []
    for f in spec.fields:
        if f.read and not f.uniform:
            lines.append(f"{f.name}_0, {f.name}_1 = load_{f.name}({f.name}_address, i)")
    shared = {*spec.scalars, *(f.name for f in spec.fields if f.uniform)}
    kept = [f"kept_{field}" for _, field in spec.stores]
    kept += [f"term{k}" for k in range(spec.sum_count)]
    for k, index in enumerate(("i + i", "i + i + 1")):
        given = [x if x in shared else f"{x}_{k}" for x in _arguments(spec)]
        call = f"one({', '.join([f'element({index})', *given])})"
        lines.append(f"{', '.join(f'{x}_{k}' for x in kept)}, = {call}")
    for _, field in spec.stores:
        lines.append(f"store_{field}({field}_address, i, kept_{field}_0, kept_{field}_1)")
    for k in range(spec.sum_count):
        lines += [f"total{k} = accumulate(total{k}, term{k}_{j})" for j in range(2)]
    return lines


class Loop:
    """Compiled loop of a declaration; see `team.run`.

    Args:
        spec: the declaration.

    Attributes:
        address: of the loop.
    """

    def __init__(self, spec: Elementwise) -> None:
        self._spec, self._text = spec, source(spec)
        self.address, self._keep = self._native(streamed=False)

    @functools.cached_property
    def _streamed(self) -> objects.Native:
        return self._native(streamed=True)

    @property
    def streamed(self) -> int:
        """Return the address of the loop whose stores bypass the cache, see `rewrite.rewritten`."""
        return self._streamed.address

    def function(self) -> Any:
        """Return the function that Numba compiles."""
        from mcf.kernels.numba.compile import compiler

        return compiler.elementwise(self._spec, self._text, CHUNK)

    def _native(self, *, streamed: bool) -> objects.Native:
        return stored.native(
            (*self._parts(), streamed),
            lambda: rewrite.rewritten(self.function(), streamed=streamed, ordered=self._spec.long),
        )

    def _parts(self) -> tuple[Any, ...]:
        """Return all that determines the loop, except what `stored.native` adds."""
        spec = self._spec
        others = [*spec.helpers().values(), *([] if spec.sums is None else [spec.sums])]
        return (
            "elementwise",
            self._text,
            [keys.algorithm(each, spec.slots) for each in (spec.function, *others)],
            [spec.register, spec.arithmetic, *spec.roundings],
            [(f.name, f.format, f.read, f.written, f.uniform) for f in spec.fields],
            [*spec.scalars],
            spec.few,
            [keys.algorithm(each, spec.slots) for each in spec.calls],
        )


def build(spec: Elementwise) -> Loop:
    """Return the compiled loop of a declaration, cached."""
    with stored.lock:
        if spec not in _kernels:
            _kernels[spec] = Loop(spec)
        return _kernels[spec]
