"""Make the CPU loop of an `Elementwise` declaration and compile it."""

from __future__ import annotations

import functools
import linecache
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numba
import numpy as np

from mcf.kernels import streams
from mcf.kernels.algorithms.words import random16, stochastic
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import BF16, FP32, FP64, Format
from mcf.kernels.numba import loops, memory, rewrite, team
from mcf.kernels.numba.words import WORDS, element

# Elements whose terms are added up in registers before they are added in float64.
CHUNK = 4096

_lock = threading.RLock()
_kernels: dict[Elementwise, Loop] = {}


class Table(NamedTuple):
    """The words of the table that a loop is called with: addresses of arrays, but for `parts`.

    Args:
        addresses: of the tensors, uint64 [rows, fields].
        rows: the row of each item, int64.
        starts: the first element of each item, int64.
        stops: the element after its last, int64.
        scalars: register format, [rows, scalars].
        sums: float64 [items, terms].
        parts: how many shares the items are cut into.
        shares: made by `team.shares` for this call.
    """

    addresses: int
    rows: int
    starts: int
    stops: int
    scalars: int
    sums: int
    parts: int
    shares: int


def _jit(function: Any) -> Any:
    # Inlined into the loop whatever its length, or the loop does not vectorise.
    return numba.njit(function, error_model="numpy", nogil=True, forceinline=True)


def _jit_sums(function: Any) -> Any:
    return numba.njit(
        function, error_model="numpy", nogil=True, forceinline=True, fastmath={"contract"}
    )


@_jit
def _same(x):
    return x


@_jit
def _neg(x):
    return -x


@_jit
def _div(a, b):
    return a / b


@_jit
def _sqrt(x):
    return np.sqrt(x)


@_jit
def _where(condition, a, b):
    return a if condition else b


def primitives(
    register: Format, arithmetic: Format, roundings: Mapping[str, Format], payloads: bool
) -> dict[str, Any]:
    """The CPU's version of every primitive."""
    number = np.float32 if register == FP32 else np.float64
    return {
        "rn": memory.rounding(register, arithmetic, payloads),
        "rx": _same,
        "fms": memory.fused_multiply_subtract(register, arithmetic, payloads),
        "neg": _neg,
        "div": _div,
        "sqrt": _sqrt,
        "where": _where,
        **WORDS,
        "SPLITTER": number(2 ** ((arithmetic.p + 1) // 2) + 1),
        "ZERO": number(0),
        "ONE": number(1),
        "LARGEST": number(roundings.get("rv", arithmetic).max),
        **{name: memory.rounding(register, fmt, payloads) for name, fmt in roundings.items()},
    }


@functools.cache
def bindings(
    register: Format, arithmetic: Format, roundings: Any, slots: Any, payloads: bool
) -> Binder:
    """Binds algorithms as functions that Numba inlines."""
    return Binder(_jit, primitives(register, arithmetic, dict(roundings), payloads), dict(slots))


def source(spec: Elementwise) -> str:
    """The loop in Python. One item is a stretch of one tensor, so that threads share large ones.

    `data` is the address of a table, see `Table`. Threads take items in turn; which of them
    computes an item changes nothing.

    Sums are added up in vector registers, CHUNK elements at a time: their order depends on the
    processor's vectors, and on nothing else.
    """
    values = [f.name if f.uniform else f"{f.name}_address" for f in spec.fields] + [*spec.scalars]
    lines = [] if spec.sums is not None else loops.step("step", "i", values, _body(spec))
    wide = spec.sums is not None or any(f.format in (FP32, FP64) for f in spec.fields)
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
        emit(f"{name} = number({array}, item)")
    for k, field in enumerate(spec.fields):
        emit(f"{field.name}_address = word(addresses, row * {len(spec.fields)} + {k})")
    for k, scalar in enumerate(spec.scalars):
        emit(f"{scalar} = load_lane(scalars, row * {len(spec.scalars)} + {k})")
    for field in spec.fields:
        if field.uniform:
            emit(f"{field.name} = load_{field.name}({field.name}_address, 0)")
    if spec.sums is None:
        emit(loops.call("step", "first", "last", values))
        return "\n".join(lines) + "\n"
    terms = range(spec.sum_count)
    for k in terms:
        emit(f"sum{k} = 0.0")
    emit("for start in range(first, last, CHUNK):")
    for k in terms:
        emit(f"    total{k} = {'NONE' if k >= spec.sum_count - spec.counts else 'ZERO'}")
    emit("    for i in range(start, min(start + CHUNK, last)):")
    lines += [indent + "        " + line for line in _body(spec)]
    for k in terms:
        emit(f"    sum{k} += total{k}")
    for k in terms:
        emit(f"store_total(sums, item * {spec.sum_count} + {k}, sum{k})")
    return "\n".join(lines) + "\n"


def _body(spec: Elementwise) -> list[str]:
    """The statements for element i."""
    lines = [
        f"{field.name} = load_{field.name}({field.name}_address, {field.index('i')})"
        for field in spec.fields
        if field.read and not field.uniform
    ]
    lines.append(f"{spec.outputs()} = function({spec.call()})")
    if spec.random:
        lines.append(f"random = draw(element(i), {', '.join(streams.SCALARS)})")
    lines += spec.store_statements()
    for _, field in spec.stores:
        lines.append(f"store_{field}({field}_address, i, new_{field})")
    if spec.sums is not None:
        terms = ", ".join(f"term{k}" for k in range(spec.sum_count))
        lines.append(f"{terms}, = sum_terms({spec.call_of(spec.sums)})")
        lines += [f"total{k} = accumulate(total{k}, term{k})" for k in range(spec.sum_count)]
    return lines


class Loop:
    """The compiled loop of a declaration; see `team.run`.

    Args:
        function: of `numba.cfunc`.

    Attributes:
        address: of the loop.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self.address, self._keep = rewrite.rewritten(function)

    @functools.cached_property
    def _streamed(self) -> tuple[int, Any]:
        with _lock:
            return rewrite.rewritten(self._function, streamed=True)

    @property
    def streamed(self) -> int:
        """The address of the loop that stores past the cache, see `rewrite.rewritten`."""
        return self._streamed[0]


def build(spec: Elementwise) -> Loop:
    """The compiled loop of a declaration, made once."""
    with _lock:
        if spec not in _kernels:
            _kernels[spec] = Loop(_build(spec))
        return _kernels[spec]


def _build(spec: Elementwise) -> Any:
    register = spec.register
    payloads = any(field.format != BF16 for field in spec.fields)
    bind = bindings(register, spec.arithmetic, spec.roundings, spec.slots, payloads)
    number = np.float32 if register == FP32 else np.float64
    namespace: dict[str, Any] = {
        "ZERO": number(0),
        "function": bind(spec.function),
        "NONE": np.int32(0),
        "CHUNK": CHUNK,
        "accumulate": memory.accumulate,
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "word": memory.word,
        "number": memory.number,
        "claim": team.claim,
        "over": loops.over(),
        "jit": _jit,
    }
    if spec.sums is not None:
        table = primitives(register, spec.arithmetic, dict(spec.roundings), payloads)
        namespace["sum_terms"] = Binder(_jit_sums, table, dict(spec.slots))(spec.sums)
    if spec.random:
        namespace |= {"draw": bind(random16), "stochastic": bind(stochastic), "element": element}
    if spec.correction is not None:
        namespace["correct"] = bind(spec.correction[1])
    count = len(spec.fields) + 1
    namespace["load_lane"] = memory.loading(register, register, count - 1, count)
    namespace["store_lane"] = memory.storing(register, register, count - 1, count)
    namespace["store_total"] = memory.storing(FP64, FP64, count - 1, count)
    for k, field in enumerate(spec.fields):
        namespace[f"load_{field.name}"] = memory.loading(register, field.format, k, count)
        if field.written:
            namespace[f"store_{field.name}"] = memory.storing(register, field.format, k, count)
            namespace[f"round_{field.name}"] = memory.rounding(register, field.format, payloads)
    text = source(spec)
    filename = f"<mcf numba {spec.name} {spec.serial}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    return numba.cfunc("void(uint64)", error_model="numpy")(namespace["kernel"])
