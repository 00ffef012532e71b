"""Make the CPU loop of an `Elementwise` declaration and compile it."""

from __future__ import annotations

import functools
import linecache
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np

from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import BF16, FP32, Format
from mcf.kernels.numba import memory
from mcf.kernels.numba.words import WORDS

# Partial sums per term: enough for any vector length and the latency of an addition.
LANES = 512

_lock = threading.RLock()
_kernels: dict[Elementwise, Callable[..., None]] = {}


def _jit(function: Any) -> Any:
    # Inlined into the loop whatever its length, or the loop does not vectorise.
    return numba.njit(function, error_model="numpy", nogil=True, forceinline=True)


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
        **{name: memory.rounding(register, fmt, payloads) for name, fmt in roundings.items()},
    }


@functools.cache
def _bindings(
    register: Format, arithmetic: Format, roundings: Any, slots: Any, payloads: bool
) -> Binder:
    return Binder(_jit, primitives(register, arithmetic, dict(roundings), payloads), dict(slots))


def source(spec: Elementwise) -> str:
    """The loop in Python. One item is a stretch of one tensor, so that threads share large ones.

    Sums are kept in LANES separate registers per term, element i in lane i mod LANES, and folded at
    the end of the item: a single running sum would be one long chain of additions, or a sum whose
    order depends on the processor's vector length.
    """
    lines = [
        "def kernel(addresses, lengths, rows, scalars, lanes, sums, begin, end):",
        "    for item in range(begin, end):",
        "        row = rows[item]",
    ]
    emit = lines.append
    if spec.sums is not None or any(f.format == FP32 for f in spec.fields):
        lines.insert(1, "    prefer_wide_vectors()")
    for k, field in enumerate(spec.fields):
        emit(f"        {field.name}_address = addresses[item, {k}]")
    for k, scalar in enumerate(spec.scalars):
        emit(f"        {scalar} = scalars[row, {k}]")
    if spec.sums is None:
        emit("        for i in range(lengths[item]):")
        lines += ["            " + line for line in _body(spec)]
        return "\n".join(lines) + "\n"
    emit(f"        for j in range({spec.sum_count} * LANES):")
    emit("            store_lane(lanes, j, ZERO)")
    emit("        for start in range(0, lengths[item], LANES):")
    emit("            for j in range(min(LANES, lengths[item] - start)):")
    emit("                i = start + j")
    lines += ["                " + line for line in _body(spec)]
    for k in range(spec.sum_count):
        emit("        total = 0.0")
        emit("        for j in range(LANES):")
        emit(f"            total += load_lane(lanes, {k} * LANES + j)")
        emit(f"        sums[item, {k}] = total")
    return "\n".join(lines) + "\n"


def _body(spec: Elementwise) -> list[str]:
    """The statements for element i, which is in lane j."""
    lines = [
        f"{field.name} = load_{field.name}({field.name}_address, i)"
        for field in spec.fields
        if field.read
    ]
    lines.append(f"{spec.outputs()} = function({spec.call()})")
    for result, field in spec.stores:
        rounding = "" if result in spec.rounded else f"round_{field}"
        lines.append(f"new_{field} = {rounding}(out_{result})")
    for _, field in spec.stores:
        lines.append(f"store_{field}({field}_address, i, new_{field})")
    if spec.sums is not None:
        terms = ", ".join(f"term{k}" for k in range(spec.sum_count))
        lines.append(f"{terms}, = sum_terms({spec.sums_call()})")
        for k in range(spec.sum_count):
            lane = f"{k} * LANES + j"
            lines.append(f"store_lane(lanes, {lane}, load_lane(lanes, {lane}) + term{k})")
    return lines


def build(spec: Elementwise) -> Callable[..., None]:
    """The compiled loop of a declaration, made once."""
    with _lock:
        if spec not in _kernels:
            _kernels[spec] = _build(spec)
        return _kernels[spec]


def _build(spec: Elementwise) -> Callable[..., None]:
    register = spec.register
    payloads = any(field.format != BF16 for field in spec.fields)
    bind = _bindings(register, spec.arithmetic, spec.roundings, spec.slots, payloads)
    number = np.float32 if register == FP32 else np.float64
    namespace: dict[str, Any] = {
        "ZERO": number(0),
        "function": bind(spec.function),
        "LANES": LANES,
        "prefer_wide_vectors": memory.prefer_wide_vectors,
    }
    if spec.sums is not None:
        namespace["sum_terms"] = bind(spec.sums)
    count = len(spec.fields) + 1
    namespace["load_lane"] = memory.loading(register, register, count - 1, count)
    namespace["store_lane"] = memory.storing(register, register, count - 1, count)
    for k, field in enumerate(spec.fields):
        namespace[f"load_{field.name}"] = memory.loading(register, field.format, k, count)
        if field.written:
            namespace[f"store_{field.name}"] = memory.storing(register, field.format, k, count)
            namespace[f"round_{field.name}"] = memory.rounding(register, field.format, payloads)
    text = source(spec)
    filename = f"<mcf numba {spec.name} {spec.serial}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    kind = "float32" if register == FP32 else "float64"
    signature = (
        f"void(uint64[:, ::1], int64[::1], int64[::1], {kind}[:, ::1], uint64, "
        "float64[:, ::1], int64, int64)"
    )
    return numba.njit(signature, error_model="numpy", nogil=True)(namespace["kernel"])
