"""Record each elementary function's program over tensors once, as a formula.

The functions are programs over component tuples, about a hundred operations of PyTorch and
`mcf.kernels.operations` each. All of these are elementwise, so their effect on one element is a
straight-line formula, an algorithm like those of `mcf.kernels.algorithms`. `formula` runs the
program on tensors of two elements and records every operation as statements over the primitives
(`mcf.kernels.statements`). So the algorithm is written once, as the program. The formula is bound
to executors like any other, and computes the same bits in one kernel.

A program must not read numbers. A step that it skips if no element needs it, by
`bool(condition.any())`, is part of the formula; `.item()` cannot be recorded.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mcf.elementary import tables
from mcf.elementary.format import computing_in, left_out
from mcf.elementary.tables import Components
from mcf.kernels.algorithms import longs
from mcf.kernels.algorithms import primitives as p
from mcf.kernels.formats import FP32, FP64, Format
from mcf.kernels.operators import BARE, OPERATIONS, TRANSFORMS, kernel, renormalize_kernel
from mcf.kernels.statements import Recording, branched, operands_of, printed

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
_OPERATIONS = {o.operator: o for o in (*OPERATIONS, *BARE, *TRANSFORMS)}

# Python's operators, on registers, longs and conditions.
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "__rshift__": ">>", "__lshift__": "<<",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
# Functions of registers. There is no root: `torch.sqrt` is not correctly rounded on every
# processor; `arithmetic.sqrt` is.
_CALLS: dict[str, Any] = {
    "neg": p.neg, "abs": p.absolute, "floor": p.floor, "round": p.rint, "sign": longs.sign,
    "div": p.div,
}  # fmt: skip
# Functions that read the bits of registers.
_BITWISE: dict[Format, dict[str, Any]] = {
    FP64: {
        "copysign": longs.with_sign, "signbit": longs.negative, "isinf": longs.infinite,
    },
    FP32: {
        "copysign": longs.short_with_sign, "signbit": longs.short_negative,
        "isinf": longs.short_infinite,
    },
}  # fmt: skip
# Operations whose results are rounded to the format of the operands.
_ROUNDED = ("add", "sub", "mul", "div", "rsub", "reciprocal")
_LONGS = (torch.int64, torch.int32)
# Reinterpretations of bits, by dtypes.
_VIEWS = {
    (torch.float64, torch.int64): p.bits64, (torch.int64, torch.float64): p.from_bits64,
    (torch.float32, torch.int32): p.bits, (torch.int32, torch.float32): p.from_bits,
}  # fmt: skip
# Roundings to component formats, by register format; to the registers' own it is `rn`, which
# prevents contraction by compilers.
_NARROW: dict[Format, dict[torch.dtype, Any]] = {
    FP64: {
        torch.float32: p.narrow, torch.bfloat16: longs.nearest_bf16,
        torch.float16: longs.nearest_fp16,
    },
    FP32: {torch.float32: p.rn, torch.bfloat16: p.narrow, torch.float16: p.narrow},
}  # fmt: skip


class UnrecordableError(Exception):
    """A program reads a number or mixes elements, which a formula cannot do."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operations that depend on the inputs.

    Args:
        inputs: the variables of the formula, by name.
        register: the format of the registers, float64 or float32. Integers have as many bits,
            though those of the program are int64.
    """

    def __init__(self, inputs: Mapping[str, Tensor], register: Format) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        assert register.dtype is not None
        self.recording = Recording()
        self.tables: dict[str, None] = {}
        # The conditions of steps that are skipped if no element needs them.
        self.conditions: set[str] = set()
        self._register, self._kind = register, register.dtype
        self._narrow, self._calls = _NARROW[register], _CALLS | _BITWISE[register]
        self._call = self.recording.call
        self._names = {id(t): name for name, t in inputs.items()}
        # Tensors must stay alive, so that their ids stay unique.
        self._alive: list[Tensor] = [*inputs.values()]

    def record(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and record an operation."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        flat = [a for each in args for a in (each if isinstance(each, list) else [each])]
        if func in _CONSTANT or not any(map(self._has, args[1] if name == "index" else flat)):
            return _apart(func, args, kwargs)
        if func is aten.any.default:
            self.conditions.add(self.operand(args[0], torch.bool))
            return torch.ones((), dtype=torch.bool, device="cpu")
        if name == "rounded":
            out = torch.zeros_like(args[0], dtype=args[1])
            return self._named(out, self._rounded(self.operand(*args), args[1]))
        if func.namespace == "mcf":
            return self._operation(name, args)
        # Below autograd some composite operations arrive, such as `to`, which decomposes to
        # `_to_copy`.
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        if name == "index":
            out = torch.zeros(args[1][0].shape, dtype=args[0].dtype, device="cpu")
            return self._named(out, self._entry(args[0], *args[1]))
        # Read operands before an in-place operation changes them.
        in_place = name.endswith("_") and not name.endswith("__")
        found = self._expression(func, args, kwargs, args[0].dtype) if in_place else None
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor):
            raise UnrecordableError(str(func))
        if func in _SAME:
            found = self.operand(args[0], out.dtype)
        return self._named(out, found or self._expression(func, args, kwargs, out.dtype))

    def _has(self, x: Any) -> bool:
        """Return whether x is a variable of the formula."""
        return id(x) in self._names

    def _named(self, x: Tensor, name: str) -> Tensor:
        self._alive.append(x)
        self._names[id(x)] = name
        return x

    def operand(self, x: Any, dtype: torch.dtype) -> str:
        """Return a variable, or a literal for a number or a tensor of equal numbers."""
        literal = self.recording.literal
        if isinstance(x, Tensor):
            if self._has(x):
                return self._names[id(x)]
            dtype, numbers = x.dtype, x.reshape(-1).tolist()
            x = numbers[0]
            if any(y != x and y == y for y in numbers):
                raise UnrecordableError("a tensor of different numbers")
        if isinstance(x, bool) and dtype == torch.bool:
            return literal(int(x), longs.holds)
        if dtype in _LONGS:
            return literal(int(x), p.whole)
        if not isinstance(x, (int, float)):
            raise UnrecordableError(f"an argument {x}")
        if dtype is torch.float32 is self._kind and math.isfinite(x):
            # PyTorch rounds a number that is combined with a tensor.
            x = _nearest(x, dtype)
        if not dtype.is_floating_point or (dtype in self._narrow and _nearest(x, dtype) != x == x):
            raise UnrecordableError(f"the number {x} with dtype {dtype}")
        if not math.isfinite(x):
            short = self._register is FP32
            (pattern,) = struct.unpack(
                *(">i", struct.pack(">f", x)) if short else (">q", struct.pack(">d", x))
            )
            return literal(pattern, p.from_bits if short else p.from_bits64, p.whole)
        # A literal may lose the sign of its zero.
        negative = math.copysign(1.0, x) < 0
        return literal(abs(float(x)), *[p.neg] * negative, p.const)

    def _operation(self, name: str, args: Any) -> list[Tensor]:
        """Record a function of `mcf.kernels.operations`, with its kernel's algorithm."""
        groups = [a if isinstance(a, list) else [a] for a in args if not isinstance(a, int)]
        if any(t.dtype != self._kind for group in groups for t in group):
            raise UnrecordableError(f"{name} of another format")
        if name == "expansion_renormalize":
            spec = renormalize_kernel(self._register, len(groups[0]), args[1])
        elif name in _OPERATIONS:
            spec = kernel(_OPERATIONS[name], self._register, *map(len, groups))
        else:
            raise UnrecordableError(name)
        given = [self.operand(t, self._kind) for group in groups for t in group]
        # Triton's interpreter treats a comparison of literals as a number.
        shape = next((x for x in given if x.isidentifier()), "")
        beside = self.recording.name_of(longs.beside)
        given = [f"{beside}({shape}, {x})" if shape and not x.isidentifier() else x for x in given]
        operands = operands_of(spec, given, self.recording.literal(0.0, p.const))
        names = self.recording.calls(spec.function, len(spec.results), *operands)
        # The values are irrelevant: nothing reads them.
        return [self._named(torch.zeros_like(groups[0][0]), n) for n in names]

    def _expression(self, func: Any, args: Any, kwargs: Mapping[str, Any], to: torch.dtype) -> str:
        """Record a PyTorch operation with a result of this dtype."""
        name = func.overloadpacket.__name__
        name = name if name.endswith("__") else name.removesuffix("_")
        found = self._exact(func, name, args, kwargs, to)
        return self._rounded(found, to) if to in self._narrow and name in _ROUNDED else found

    def _exact(
        self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any], to: torch.dtype
    ) -> str:
        """Record an operation in registers, without rounding to the components' format."""
        kind = next(a.dtype for a in args if self._has(a))
        if name == "where":
            return self._call(p.where, *(self.operand(a, to) for a in args))
        if name == "_to_copy":
            return self._converted(args[0], to)
        if func is aten.view.dtype and (kind, to) in _VIEWS:
            return self._call(_VIEWS[kind, to], self.operand(*args))
        if name == "rsub":
            args, name = (args[1], args[0]), "sub"
        if name == "clamp":
            return self._clamped(args, kwargs, kind)
        given = [self.operand(a, kind) for a in args]
        if kind == torch.bool and name in ("eq", "bitwise_not"):
            return self._call(
                p.invert, given[0] if len(given) == 1 else self.recording.record("^", *given)
            )
        if name in _INFIX:
            return self.recording.record(_INFIX[name], *given[:2])
        if kind in _LONGS:
            return self._of_longs(func, name, args, kwargs, given)
        if name == "isnan":
            return self.recording.record("!=", given[0], given[0])
        if name == "reciprocal":
            return self._call(p.div, self.operand(1.0, kind), *given)
        if name == "remainder" and args[1] == 2:
            return self._call(longs.modulo_2, given[0])
        if name in self._calls and len(kwargs) == 0:
            return self._call(self._calls[name], *given)
        raise UnrecordableError(f"{func} of {kind}")

    def _clamped(self, args: Any, kwargs: Mapping[str, Any], kind: torch.dtype) -> str:
        """Record a clamp to bounds, either of which may be absent; NaN stays."""
        found = self.operand(args[0], kind)
        bounds = dict(zip(("min", "max"), args[1:], strict=False)) | {**kwargs}
        for side, function in (("min", longs.larger), ("max", longs.smaller)):
            if bounds.get(side) is not None:
                found = self._call(function, found, self.operand(bounds[side], kind))
        return found

    def _of_longs(
        self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any], given: Sequence[str]
    ) -> str:
        """Record an operation on integers."""
        if name in ("minimum", "maximum"):
            return self._call(longs.smaller if name == "minimum" else longs.larger, *given)
        if name in ("neg", "abs"):
            negative = self.recording.record("-", self._whole(0), given[0])
            return negative if name == "neg" else self._call(longs.larger, given[0], negative)
        if func is aten.div.Tensor_mode and kwargs == {"rounding_mode": "floor"}:
            shift = int(args[1]).bit_length() - 1
            if args[1] == 1 << shift:
                return self.recording.record(">>", given[0], self._whole(shift))
        raise UnrecordableError(f"{func} of integers")

    def _whole(self, number: int) -> str:
        return self.recording.literal(number, p.whole)

    def _rounded(self, x: str, to: torch.dtype) -> str:
        """Record the rounding of a register to a format of components."""
        return self._call(self._narrow[to], x)

    def _converted(self, x: Tensor, to: torch.dtype) -> str:
        """Record a conversion to another dtype."""
        value = self.operand(x, x.dtype)
        if x.dtype == torch.bool:
            return self._call(p.where, value, self.operand(1, to), self.operand(0, to))
        if x.dtype.is_floating_point and to.is_floating_point:
            if to == x.dtype or to.itemsize > x.dtype.itemsize:
                return value
            return self._rounded(value, to)
        # Longs are int64, or also int32 if registers are float32.
        integers = _LONGS if self._register is FP32 else (torch.int64,)
        if x.dtype in integers and to in integers and self._register is FP32:
            return value
        if x.dtype == self._kind and to in integers:
            return self._call(p.long, value)
        if x.dtype in integers and to == self._kind:
            return self._call(p.floating, value)
        raise UnrecordableError(f"{x.dtype} to {to}")

    def _entry(self, table: Tensor, place: Tensor) -> str:
        """Record the load of a table entry, with its index clamped into the table."""
        name = tables.named.get(table.untyped_storage().data_ptr())
        if name is None or table.dtype != self._kind or not self._has(place):
            raise UnrecordableError("an index into a tensor that is not a table")
        self.tables[name] = None
        at = self._call(longs.larger, self.operand(place, torch.int64), self._whole(0))
        at = self._call(longs.smaller, at, self._whole(len(table) - 1))
        at = self.recording.record("+", at, self._whole(int(table.storage_offset())))
        return self._call(p.gather, name, at)


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


def _nearest(x: float, dtype: torch.dtype) -> float:
    """Return the nearest number of a format."""
    return torch.tensor(x, dtype=dtype, device="cpu").item()


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
    groups = [tuple(f"{a}{k}" for k in range(n)) for a, n in zip(arguments, terms, strict=True)]
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
    returned = tuple(recorder.operand(t, t.dtype) for t in results)
    recording = recorder.recording
    statements, functions = branched(
        recording.statements, returned, recorder.conditions, recording.functions, label
    )
    function = printed(
        label,
        [*zip(arguments, groups, strict=True), *recorder.tables],
        statements,
        returned,
        functions,
        f"`{name}` as one formula.",
        f"<mcf elementary {label}>",
    )
    return Formula(function, tuple(recorder.tables), bool(conditions), found)
