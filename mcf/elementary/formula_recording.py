"""Record each elementary function's program over tensors once, as a formula.

The functions are programs over component tuples, about a hundred operations of PyTorch and
`mcf.kernels.operations` each. All of these are elementwise, so their effect on one element is a
straight-line formula, an algorithm like those of `mcf.kernels.algorithms`. `formula` runs the
program on tensors of two elements and records every operation as a statement over the primitives.
So the algorithm is written once, as the program. The formula is bound to executors like any other,
and computes the same bits in one kernel.

A program must not read numbers. A step that it skips if no element needs it, by
`bool(condition.any())`, is part of the formula; `.item()` cannot be recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mcf.elementary.branches import Statement, branched
from mcf.elementary.format import computing_in, left_out
from mcf.elementary.statements import UnrecordableError, Writer
from mcf.elementary.tables import Components
from mcf.kernels.algorithms import distillation, longs
from mcf.kernels.algorithms.families import written
from mcf.kernels.formats import FP64, Format
from mcf.kernels.operators import BARE, OPERATIONS, TRANSFORMS, kernel

aten = torch.ops.aten

# Constructors of constant tensors.
_CONSTANT = {
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.zeros.default,
    aten.scalar_tensor.default,
}
_SAME = {aten.expand.default, aten.detach.default, aten.alias.default, aten.clone.default}
_OPERATIONS = {o.operator: o for o in (*OPERATIONS, *BARE)}
_TRANSFORMS = {o.operator: o for o in TRANSFORMS}


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operations that depend on the inputs."""

    def __init__(self, inputs: Mapping[str, Tensor], register: Format) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writer, self._register = Writer(inputs, register), register
        self._statements: list[Statement] = []
        # The conditions of steps that are skipped if no element needs them.
        self._conditions: set[str] = set()

    def record(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and record an operation."""
        w, kwargs = self.writer, kwargs or {}
        flat = [a for each in args for a in (each if isinstance(each, list) else [each])]
        name = func.overloadpacket.__name__
        w.begin()
        if name == "index":
            flat = args[1]
        if func in _CONSTANT or not any(w.has(a) for a in flat):
            return _apart(func, args, kwargs)
        if func is aten.any.default:
            self._conditions.add(w.value(args[0], torch.bool))
            return torch.ones((), dtype=torch.bool, device="cpu")
        if name == "rounded":
            out = torch.zeros_like(args[0], dtype=args[1])
            return self._define([out], w.rounded(args[0], args[1]))[0]
        if func.namespace == "mcf":
            return self._operation(name, args)
        # Below autograd some composite operations arrive, such as `to`, which decomposes to
        # `_to_copy`.
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        w.begin()
        if name == "index":
            out = torch.zeros(args[1][0].shape, dtype=args[0].dtype, device="cpu")
            return self._define([out], w.entry(args[0], *args[1]))[0]
        # Read operands before an in-place operation changes them.
        text = w.expression(func, args, kwargs, args[0].dtype) if _in_place(func) else None
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor):
            raise UnrecordableError(str(func))
        if func in _SAME:
            text = w.value(args[0], out.dtype)
        text = text or w.expression(func, args, kwargs, out.dtype)
        if text.isidentifier():
            w.name(out, text)
            return out
        self._define([out], text)
        if name in ("where", "bitwise_and"):
            self._select(*args)
        return out

    def _define(self, out: list[Tensor], text: str, *, unpack: bool = False) -> list[Tensor]:
        names = tuple(self.writer.name(t) for t in out)
        self._statements.append(Statement(names, text, tuple(self.writer.read), unpack))
        return out

    def _select(self, condition: Any, chosen: Any, *otherwise: Any) -> None:
        """Note for the last statement that it takes `chosen` only where the condition holds."""
        w = self.writer
        if w.has(condition) and w.has(chosen) and condition.dtype == torch.bool:
            names = [w.value(x, x.dtype) for x in (condition, chosen)]
            others = tuple(w.value(x, x.dtype) for x in otherwise if w.has(x))
            self._statements[-1] = self._statements[-1]._replace(
                condition=names[0], chosen=names[1], others=(names[0], *others)
            )

    def _operation(self, name: str, args: Any) -> list[Tensor]:
        """Record a function of `mcf.kernels.operations`, with its kernel's algorithm."""
        w, kind = self.writer, self._register.dtype
        assert kind is not None
        groups = [a if isinstance(a, list) else [a] for a in args if not isinstance(a, int)]
        if any(t.dtype != kind for group in groups for t in group):
            raise UnrecordableError(f"{name} of another format")
        values = [[w.value(t, kind) for t in group] for group in groups]
        # Triton's interpreter treats a comparison of literals as a number.
        variables = [*w.read]
        for group in values:
            for k, text in enumerate(group):
                if variables and text not in variables:
                    group[k] = w.call(longs.beside, variables[0], text)
        if name == "expansion_renormalize":
            function: Any = distillation.distill(len(values[0]), args[1])
            count, given = args[1], [_tuple(values[0])]
        elif name in _TRANSFORMS:
            [function], count = _TRANSFORMS[name].algorithms, 2
            given = [v for group in values for v in group]
        elif name in _OPERATIONS:
            operation = _OPERATIONS[name]
            spec = kernel(operation, self._register, *map(len, values))
            function, count = spec.function, len(spec.results)
            taken, given = dict(spec.groups), []
            for argument, group in zip(operation.arguments, values, strict=True):
                absent = len(taken[argument]) - len(group)
                given.append(_tuple([*group, *[w.value(0.0, kind)] * absent]))
            given += [w.value(1.0, kind) for _ in spec.scalars]
        else:
            raise UnrecordableError(name)
        # The values are irrelevant: nothing reads them.
        out = [torch.zeros_like(groups[0][0]) for _ in range(count)]
        return self._define(out, w.call(function, *given), unpack=True)

    def body(self, results: Sequence[Tensor], label: str) -> list[str]:
        """Return the statements that the results need."""
        self.writer.begin()
        returned = [self.writer.value(t, t.dtype) for t in results]
        lines, steps = branched(
            self._statements,
            self.writer.read,
            frozenset(self._conditions),
            self.writer.called,
            label,
        )
        self.writer.called.update(steps)
        return [*lines, f"return {_tuple(returned)}"]


# Assigned here, since torch.compile would wrap a method of the class statement, and importing it
# takes seconds.
_Recorder.__torch_dispatch__ = _Recorder.record  # type: ignore[method-assign,assignment]


def _apart(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation that does not depend on the inputs; its table lookups are not recorded."""
    token = left_out.set(None)
    try:
        return func(*args, **kwargs)
    finally:
        left_out.reset(token)


def _tuple(values: Sequence[str]) -> str:
    return f"({', '.join(values)},)"


def _in_place(func: Any) -> bool:
    name = func.overloadpacket.__name__
    return bool(name.endswith("_") and not name.endswith("__"))


class Formula(NamedTuple):
    """A program's effect on one element.

    Args:
        function: the algorithm.
        tables: the names of the tables that it reads.
        partial: whether it has an additional result, 1 for an element that needs a skipped step
            (`working.rare`), else 0.
        results: the number of its other results.
    """

    function: FunctionType
    tables: tuple[str, ...]
    partial: bool
    results: int


def formula(
    name: str,
    compute: Callable[[tuple[Components, ...], Format, int], Components],
    arguments: Sequence[str],
    fmt: Format,
    terms: Sequence[int],
    register: Format = FP64,
    held: Format | None = None,
    count: int = 0,
) -> Formula:
    """Return the algorithm of a function on expansions.

    Its parameters are the arguments, tuples of components, and after them the tables; `narrow`
    rounds to the format.

    Args:
        name: the name of the function.
        compute: the program: arguments, format and number of components of the result.
        arguments: their names.
        fmt: the format of the components.
        terms: the number of components of each argument.
        register: the format of the computation, float64 or float32.
        held: the format of the arguments, if it differs.
        count: the number of components passed to the program, by default the maximum of `terms`.

    Raises:
        UnrecordableError: for a program that is not a formula.
    """
    groups = [[f"{a}{k}" for k in range(n)] for a, n in zip(arguments, terms, strict=True)]
    named = {
        n: torch.full((2,), 0.5, dtype=(held or fmt).dtype, device="cpu")
        for group in groups
        for n in group
    }
    recorder = _Recorder(named, register)
    conditions: list[Tensor] = []
    token = left_out.set(conditions)
    try:
        with torch.no_grad(), computing_in(register), recorder:
            given = tuple(tuple(named[n] for n in g) for g in groups)
            results = [*compute(given, fmt, count or max(terms))]
            found = len(results)
            if conditions:
                results.append(functools.reduce(torch.bitwise_or, conditions).to(register.dtype))
    finally:
        left_out.reset(token)
    label = f"{name}_{''.join(map(str, terms))}_{fmt.name}"
    label += f"_in_{register.name}" * (register is not FP64)
    body = recorder.body(results, label)
    function = written(
        label,
        ", ".join([*arguments, *recorder.writer.tables]),
        [*(f"{_tuple(g)} = {a}" for a, g in zip(arguments, groups, strict=True)), *body],
        f"`{name}` as one formula.",
        f"<mcf elementary {label}>",
        **recorder.writer.called,
    )
    return Formula(function, tuple(recorder.writer.tables), bool(conditions), found)
