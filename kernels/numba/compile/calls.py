"""Make algorithms callable: inlined in Numba code, or as functions that a formula calls often.

The types of an algorithm's results are known only after its instructions are written, so that they
are written twice: once into a scratch module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from mcf.kernels.bind import Algorithm, Binder
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


def _mapped(make: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function to the members of nested tuples."""
    return tuple(_mapped(make, each) for each in x) if isinstance(x, tuple) else make(x)


def _leaves(x: Any) -> list[Any]:
    return [v for each in x for v in _leaves(each)] if isinstance(x, tuple) else [x]


def _scratch(given: Collection[Any] = ()) -> Any:
    """Return an empty function of a module that is not compiled."""
    return ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), given), "nowhere")


def _kind(x: Any) -> Any:
    """Return Numba's type of a value, or of a tuple of values."""
    if isinstance(x, tuple):
        return types.BaseTuple.from_types([_kind(each) for each in x])
    one = next(n for n, kind in _TYPES.items() if kind == x.kind)
    return Lanes(one, x.owner.lanes, x.owner.count) if x.owner.lanes else one


def _given(trace: Trace, kind: Any, x: Any) -> Any:
    """Wrap Numba's values for the trace; use placeholders where Numba has none yet."""
    if isinstance(kind, types.BaseTuple):
        cells = [None if x is None else trace.builder.extract_value(x, k) for k in range(len(kind))]
        return tuple(_given(trace, t, c) for t, c in zip(kind.types, cells, strict=True))
    if isinstance(kind, Lanes):
        return Value(trace, kind.parts(trace.builder, x))
    return trace.spread(ir.Constant(_TYPES[kind], ir.Undefined) if x is None else x)


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
        return _mapped(trace.number, make(trace)(*_given(trace, given, x)))

    @intrinsic
    def call(typing, *arguments):
        given = types.StarArgTuple.from_types(arguments)
        result = _kind(run(ir.IRBuilder(_scratch().append_basic_block()), given, None))

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


class Calling(Binder):
    """Binder that binds some algorithms as calls of separate machine functions.

    Inlined code is compiled at each call, and LLVM's time grows faster than linearly with the
    length. A function is compiled once; a call takes some nanoseconds.

    Args:
        trace: trace that the calls are written to.
        slots: as in `Binder`.
        outlined: the algorithms.
    """

    def __init__(
        self, trace: Trace, slots: Mapping[str, Algorithm], outlined: Collection[Algorithm]
    ) -> None:
        super().__init__(trace.branching, trace.primitives, slots)
        self._trace, self._open, self._outlined = trace, slots, frozenset(outlined)
        self._made: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, function: Algorithm) -> Any:
        """See `Binder`."""
        if function not in self._outlined:
            return super().__call__(function)
        return lambda *given: self._call(function, given)

    def _call(self, function: Algorithm, given: tuple[Any, ...]) -> Any:
        trace = self._trace
        flat = [p for x in _leaves(given) for p in trace.number(x).parts]
        key = function, _mapped(lambda x: None, given), tuple(str(p.type) for p in flat)
        if key not in self._made:
            self._made[key] = self._function(function, given, [p.type for p in flat])
        made, results = self._made[key]
        out = trace.builder.call(made, flat)
        parts = (trace.builder.extract_value(out, k) for k in range(len(out.type.elements)))
        return _filled(trace, results, parts)

    def _function(self, function: Algorithm, given: Any, kinds: list[Any]) -> tuple[Any, Any]:
        """Return the function, and sample results with the types that it returns."""
        module = self._trace.builder.module
        results = self._written(function, given, _scratch(kinds), ir.IRBuilder())
        returned = ir.LiteralStructType([p.type for x in _leaves(results) for p in x.parts])
        name = module.get_unique_name(f"mcf.{function.__name__}")
        made = ir.Function(module, ir.FunctionType(returned, kinds), name)
        made.linkage = "internal"
        made.attributes.add("noinline")
        # See `memory.prefer_wide_vectors`.
        set.add(made.attributes, '"prefer-vector-width"="512"')
        builder = ir.IRBuilder()
        results = self._written(function, given, made, builder)
        out = ir.Constant(returned, ir.Undefined)
        for k, part in enumerate(p for x in _leaves(results) for p in x.parts):
            out = builder.insert_value(out, part, k)
        builder.ret(out)
        return made, results

    def _written(self, function: Algorithm, given: Any, place: Any, builder: Any) -> Any:
        """Write the instructions of an algorithm into a function, and return its results."""
        builder.position_at_end(place.append_basic_block())
        outer = self._trace
        trace = Trace(builder, outer.settings, outer.lanes, outer.count)
        arguments = _filled(trace, given, iter(place.args))
        return _mapped(trace.number, trace.bound(function, self._open)(*arguments))


def _filled(trace: Trace, like: Any, parts: Iterator[Any]) -> Any:
    """Return values of LLVM's, in nested tuples like some others."""
    return _mapped(lambda x: Value(trace, tuple(next(parts) for _ in range(trace.count))), like)
