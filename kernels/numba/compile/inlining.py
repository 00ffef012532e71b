"""Functions written by a `Trace` that Numba can call: their instructions stand where it does."""

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
    """Numba's type of a value, or of a tuple of them."""
    if isinstance(x, tuple):
        return types.BaseTuple.from_types([_kind(each) for each in x])
    return next(n for n, kind in _TYPES.items() if kind == x.kind)


def _given(trace: Trace, kind: Any, x: Any) -> Any:
    """What Numba holds as values; where it holds nothing yet, something in its place."""
    if isinstance(kind, types.BaseTuple):
        cells = [None if x is None else trace.builder.extract_value(x, k) for k in range(len(kind))]
        return tuple(_given(trace, t, c) for t, c in zip(kind.types, cells, strict=True))
    return trace.spread(ir.Constant(_TYPES[kind], ir.Undefined) if x is None else x)


def _returned(trace: Trace, x: Any) -> Any:
    return tuple(_returned(trace, v) for v in x) if isinstance(x, tuple) else trace.number(x)


def _held(context: Any, builder: Any, x: Any) -> Any:
    """Values as Numba holds them."""
    if not isinstance(x, tuple):
        return x.parts[0]
    return context.make_tuple(builder, _kind(x), [_held(context, builder, v) for v in x])


def inlined(settings: Settings, make: Callable[[Trace], Callable[..., Any]]) -> Any:
    """What Numba can call, and whose instructions stand where it is called.

    Args:
        settings: of the trace.
        make: of a trace the function on its values.
    """

    def run(builder: Any, given: Any, x: Any) -> Any:
        trace = Trace(builder, settings)
        return _returned(trace, make(trace)(*_given(trace, given, x)))

    @intrinsic
    def call(typing, *arguments):
        given = types.StarArgTuple.from_types(arguments)
        # Written once before, to see what comes.
        nowhere = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "nowhere")
        result = _kind(run(ir.IRBuilder(nowhere.append_basic_block()), given, None))

        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _held(context, builder, run(builder, given, args[0]))

        return result(given), write

    return call


def algorithm(
    settings: Settings, function: Algorithm, slots: Mapping[str, Algorithm] | None = None
) -> Any:
    """An algorithm as what Numba can call."""
    return inlined(settings, lambda trace: trace.bound(function, slots or {}))


def rounding(settings: Settings, fmt: Format) -> Any:
    """The rounding of a register to a format as what Numba can call."""
    return inlined(settings, lambda trace: lambda x: trace.rounded(x, fmt))
