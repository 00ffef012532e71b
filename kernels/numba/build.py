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
from mcf.kernels.formats import FP32, Format
from mcf.kernels.numba import memory

_lock = threading.RLock()
_kernels: dict[Elementwise, Callable[..., None]] = {}


def _jit(function: Any) -> Any:
    return numba.njit(function, error_model="numpy", nogil=True)


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
    register: Format, arithmetic: Format, roundings: Mapping[str, Format]
) -> dict[str, Any]:
    """The CPU's version of every primitive."""
    number = np.float32 if register == FP32 else np.float64
    return {
        "rn": memory.rounding(register, arithmetic),
        "fms": memory.fused_multiply_subtract(register, arithmetic),
        "div": _div,
        "sqrt": _sqrt,
        "where": _where,
        "SPLITTER": number(2 ** ((arithmetic.p + 1) // 2) + 1),
        "ZERO": number(0),
        "ONE": number(1),
        **{name: memory.rounding(register, fmt) for name, fmt in roundings.items()},
    }


@functools.cache
def _bindings(register: Format, arithmetic: Format, roundings: Any, slots: Any) -> Binder:
    return Binder(_jit, primitives(register, arithmetic, dict(roundings)), dict(slots))


def source(spec: Elementwise) -> str:
    """The loop in Python. One item is a stretch of one tensor, so that threads share large ones."""
    lines = [
        "def kernel(addresses, lengths, rows, scalars, sums, begin, end):",
        "    for item in range(begin, end):",
        "        row = rows[item]",
    ]
    emit = lines.append
    for k, field in enumerate(spec.fields):
        emit(f"        {field.name}_address = addresses[item, {k}]")
    for k, scalar in enumerate(spec.scalars):
        emit(f"        {scalar} = scalars[row, {k}]")
    for k in range(spec.sum_count):
        emit(f"        sum{k} = ZERO")
    emit("        for i in range(lengths[item]):")
    for field in spec.fields:
        if field.read:
            emit(f"            {field.name} = load_{field.name}({field.name}_address, i)")
    emit(f"            {spec.outputs()} = function({spec.call()})")
    for result, field in spec.stores:
        emit(f"            new_{field} = round_{field}(out_{result})")
    if spec.sums is not None:
        terms = ", ".join(f"term{k}" for k in range(spec.sum_count))
        emit(f"            {terms}, = sum_terms({spec.sums_call()})")
        for k in range(spec.sum_count):
            emit(f"            sum{k} = accumulate(sum{k}, term{k})")
    for _, field in spec.stores:
        emit(f"            store_{field}({field}_address, i, new_{field})")
    for k in range(spec.sum_count):
        emit(f"        sums[item, {k}] = sum{k}")
    return "\n".join(lines) + "\n"


def build(spec: Elementwise) -> Callable[..., None]:
    """The compiled loop of a declaration, made once."""
    with _lock:
        if spec not in _kernels:
            _kernels[spec] = _build(spec)
        return _kernels[spec]


def _build(spec: Elementwise) -> Callable[..., None]:
    register = spec.register
    bind = _bindings(register, spec.arithmetic, spec.roundings, spec.slots)
    number = np.float32 if register == FP32 else np.float64
    namespace: dict[str, Any] = {
        "ZERO": number(0),
        "function": bind(spec.function),
        "accumulate": memory.adding_in_any_order(register),
    }
    if spec.sums is not None:
        namespace["sum_terms"] = bind(spec.sums)
    count = len(spec.fields)
    for k, field in enumerate(spec.fields):
        namespace[f"load_{field.name}"] = memory.loading(register, field.format, k, count)
        if field.written:
            namespace[f"store_{field.name}"] = memory.storing(register, field.format, k, count)
            namespace[f"round_{field.name}"] = memory.rounding(register, field.format)
    text = source(spec)
    filename = f"<mcf numba {spec.name} {spec.serial}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    kind = "float32" if register == FP32 else "float64"
    signature = (
        f"void(uint64[:, ::1], int64[::1], int64[::1], {kind}[:, ::1], float64[:, ::1], "
        "int64, int64)"
    )
    return numba.njit(signature, error_model="numpy", nogil=True)(namespace["kernel"])
