"""Compile algorithms as separate machine functions if a formula calls them often.

Inlined code is compiled at each call, and LLVM's time grows faster than linearly with the length. A
function is compiled once; a call takes some nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from llvmlite import ir

from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.numba.compile.trace import Trace, Value


class Calling(Binder):
    """Binder that binds some algorithms as function calls.

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
        key = function, _shape(given), tuple(str(p.type) for p in flat)
        if key not in self._made:
            self._made[key] = self._function(function, given, [p.type for p in flat])
        made, results = self._made[key]
        out = trace.builder.call(made, flat)
        parts = (trace.builder.extract_value(out, k) for k in range(len(out.type.elements)))
        return _filled(results, lambda: _next(trace, parts))

    def _function(self, function: Algorithm, given: Any, types: list[Any]) -> tuple[Any, Any]:
        """Return the function, and sample results with the types that it returns."""
        outer = self._trace
        module = outer.builder.module
        # Result types are known only after writing it: write it once for them, as in `inlining`.
        nowhere = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), types), "nowhere")
        results = self._written(function, given, nowhere)
        kinds = [p.type for x in _leaves(results) for p in x.parts]
        kind = ir.FunctionType(ir.LiteralStructType(kinds), types)
        name = module.get_unique_name(f"mcf.{function.__name__}")
        made = ir.Function(module, kind, name)
        made.linkage = "internal"
        made.attributes.add("noinline")
        # See `memory.prefer_wide_vectors`.
        set.add(made.attributes, '"prefer-vector-width"="512"')
        builder = ir.IRBuilder()
        results = self._written(function, given, made, builder)
        out = ir.Constant(kind.return_type, ir.Undefined)
        for k, part in enumerate(p for x in _leaves(results) for p in x.parts):
            out = builder.insert_value(out, part, k)
        builder.ret(out)
        return made, results

    def _written(self, function: Algorithm, given: Any, place: Any, builder: Any = None) -> Any:
        builder = ir.IRBuilder() if builder is None else builder
        builder.position_at_end(place.append_basic_block())
        outer = self._trace
        trace = Trace(builder, outer.settings, outer.lanes, outer.count)
        parts = iter(place.args)
        arguments = _filled(given, lambda: _next(trace, parts))
        return _numbers(trace, trace.bound(function, self._open)(*arguments))


def _next(trace: Trace, parts: Iterator[Any]) -> Value:
    return Value(trace, tuple(next(parts) for _ in range(trace.count)))


def _leaves(x: Any) -> list[Any]:
    return [v for each in x for v in _leaves(each)] if isinstance(x, tuple) else [x]


def _filled(x: Any, make: Callable[[], Any]) -> Any:
    return tuple(_filled(each, make) for each in x) if isinstance(x, tuple) else make()


def _numbers(trace: Trace, x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(_numbers(trace, each) for each in x)
    return trace.number(x)


def _shape(x: Any) -> Any:
    return tuple(map(_shape, x)) if isinstance(x, tuple) else None
