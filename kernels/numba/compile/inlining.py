"""Numba intrinsics that inline the instructions written by a `Trace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import Format
from mcf.kernels.numba.compile.llvm_types import DOUBLE, FLOAT, I1, I32, I64
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.numba.compile.trace import Trace, Value

_TYPES = {
    types.float32: FLOAT, types.float64: DOUBLE, types.boolean: I1, types.int32: I32,
    types.int64: I64, types.uint64: I64,
}  # fmt: skip


class Lanes(types.Type):
    """A register or a condition as the lanes of several vectors.

    Args:
        kind: Numba's type of a lane.
        lanes: the lanes of a vector.
        count: the number of vectors.
    """

    def __init__(self, kind: Any, lanes: int, count: int) -> None:
        self.kind, self.lanes, self.count = kind, lanes, count
        super().__init__(name=f"Lanes({kind}, {lanes}, {count})")

    @property
    def vectors(self) -> list[Any]:
        """LLVM's type of each vector."""
        return [ir.VectorType(_TYPES[self.kind], self.lanes)] * self.count

    def parts(self, builder: Any, x: Any) -> tuple[Any, ...]:
        """Return the vectors of a value, undefined ones for None."""
        if x is None:
            return tuple(ir.Constant(kind, ir.Undefined) for kind in self.vectors)
        return tuple(builder.extract_value(x, k) for k in range(self.count))

    def packed(self, builder: Any, parts: Sequence[Any]) -> Any:
        """Return the value of these vectors."""
        found = ir.Constant(ir.LiteralStructType(self.vectors), ir.Undefined)
        for k, part in enumerate(parts):
            found = builder.insert_value(found, part, k)
        return found


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        super().__init__(dmm, fe_type, ir.LiteralStructType(fe_type.vectors))


def _shape(kinds: Any) -> tuple[int, int]:
    """Return the lanes and the vectors of arguments, 0 and 1 for single elements."""
    for kind in kinds:
        if isinstance(kind, Lanes):
            return kind.lanes, kind.count
        if isinstance(kind, types.BaseTuple) and _shape(kind.types)[0]:
            return _shape(kind.types)
    return 0, 1


def _kind(x: Any) -> Any:
    """Return Numba's type of a value, or of a tuple of values."""
    if isinstance(x, tuple):
        return types.BaseTuple.from_types([_kind(each) for each in x])
    one = next(n for n, kind in _TYPES.items() if kind == x.kind)
    return Lanes(one, x.trace.lanes, x.trace.count) if x.trace.lanes else one


def _given(trace: Trace, kind: Any, x: Any) -> Any:
    """Wrap Numba's values for the trace; use placeholders where Numba has none yet."""
    if isinstance(kind, types.BaseTuple):
        cells = [None if x is None else trace.builder.extract_value(x, k) for k in range(len(kind))]
        return tuple(_given(trace, t, c) for t, c in zip(kind.types, cells, strict=True))
    if isinstance(kind, Lanes):
        return Value(trace, kind.parts(trace.builder, x))
    return trace.spread(ir.Constant(_TYPES[kind], ir.Undefined) if x is None else x)


def _returned(trace: Trace, x: Any) -> Any:
    return tuple(_returned(trace, v) for v in x) if isinstance(x, tuple) else trace.number(x)


def _held(context: Any, builder: Any, x: Any) -> Any:
    """Unwrap values of a trace for Numba."""
    if not isinstance(x, tuple):
        kind = _kind(x)
        return kind.packed(builder, x.parts) if isinstance(kind, Lanes) else x.parts[0]
    return context.make_tuple(builder, _kind(x), [_held(context, builder, v) for v in x])


def inlined(settings: Settings, make: Callable[[Trace], Callable[..., Any]]) -> Any:
    """Return an intrinsic whose instructions are written at the call.

    Args:
        settings: of the trace.
        make: returns the function on a trace's values.
    """

    def run(builder: Any, given: Any, x: Any) -> Any:
        trace = Trace(builder, settings, *_shape(given))
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
