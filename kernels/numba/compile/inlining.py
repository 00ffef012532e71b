"""Numba intrinsics that inline the instructions written by a `Trace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import Format
from mcf.kernels.numba.compile.llvm_types import DOUBLE, FLOAT, I1, I32, I64
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.numba.compile.trace import Trace

_TYPES = {
    types.float32: FLOAT, types.float64: DOUBLE, types.boolean: I1, types.int32: I32,
    types.int64: I64, types.uint64: I64,
}  # fmt: skip


def _kind(x: Any) -> Any:
    """Return Numba's type of a value, or of a tuple of values."""
    if isinstance(x, tuple):
        return types.BaseTuple.from_types([_kind(each) for each in x])
    return next(n for n, kind in _TYPES.items() if kind == x.kind)


def _given(trace: Trace, kind: Any, x: Any) -> Any:
    """Wrap Numba's values for the trace; use placeholders where Numba has none yet."""
    if isinstance(kind, types.BaseTuple):
        cells = [None if x is None else trace.builder.extract_value(x, k) for k in range(len(kind))]
        return tuple(_given(trace, t, c) for t, c in zip(kind.types, cells, strict=True))
    return trace.spread(ir.Constant(_TYPES[kind], ir.Undefined) if x is None else x)


def _returned(trace: Trace, x: Any) -> Any:
    return tuple(_returned(trace, v) for v in x) if isinstance(x, tuple) else trace.number(x)


def _held(context: Any, builder: Any, x: Any) -> Any:
    """Unwrap values of a trace for Numba."""
    if not isinstance(x, tuple):
        return x.parts[0]
    return context.make_tuple(builder, _kind(x), [_held(context, builder, v) for v in x])


def inlined(settings: Settings, make: Callable[[Trace], Callable[..., Any]]) -> Any:
    """Return an intrinsic whose instructions are written at the call.

    Args:
        settings: of the trace.
        make: returns the function on a trace's values.
    """

    def run(builder: Any, given: Any, x: Any) -> Any:
        trace = Trace(builder, settings)
        return _returned(trace, make(trace)(*_given(trace, given, x)))

    @intrinsic
    def call(typing, *arguments):
        given = types.StarArgTuple.from_types(arguments)
        # Written once into a scratch module to learn the result types.
        nowhere = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "nowhere")
        result = _kind(run(ir.IRBuilder(nowhere.append_basic_block()), given, None))

        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _held(context, builder, run(builder, given, args[0]))

        return result(given), write

    return call


def algorithm(
    settings: Settings, function: Algorithm, slots: Mapping[str, Algorithm] | None = None
) -> Any:
    """Return an algorithm as an intrinsic."""
    return inlined(settings, lambda trace: trace.bound(function, slots or {}))


def rounding(settings: Settings, fmt: Format) -> Any:
    """Return the rounding of a register to a format as an intrinsic."""
    return inlined(settings, lambda trace: lambda x: trace.rounded(x, fmt))
