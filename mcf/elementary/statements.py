"""Translate PyTorch operations on tensors to source text on the registers of one element.

`Writer` knows the variables and literals of a formula and the functions that its text calls;
`mcf.elementary.formula_recording` decides which operations come in which order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import tables
from mcf.kernels.algorithms import longs
from mcf.kernels.algorithms import primitives as p
from mcf.kernels.formats import FP32, FP64, Format

aten = torch.ops.aten


class UnrecordableError(Exception):
    """A program reads a number or mixes elements, which a formula cannot do."""


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


# Roundings to component formats, by register format; to the registers' own it is `rn`, which
# prevents contraction by compilers.
_NARROW: dict[Format, dict[torch.dtype, Any]] = {
    FP64: {
        torch.float32: p.narrow, torch.bfloat16: longs.nearest_bf16,
        torch.float16: longs.nearest_fp16,
    },
    FP32: {torch.float32: p.rn, torch.bfloat16: p.narrow, torch.float16: p.narrow},
}  # fmt: skip


def _nearest(x: float, dtype: torch.dtype) -> float:
    """Return the nearest number of a format."""
    return torch.tensor(x, dtype=dtype, device="cpu").item()


class Writer:
    """Expressions over named values, which are living tensors.

    Args:
        named: the variables of the formula, by name.
        register: the format of the registers, float64 or float32. Integers have as many bits,
            though
            those of the program are int64.
    """

    def __init__(self, named: Mapping[str, Tensor], register: Format = FP64) -> None:
        assert register.dtype is not None
        self._register, self._kind = register, register.dtype
        self._narrow = _NARROW[register]
        self._calls = _CALLS | _BITWISE[register]
        self._names = {id(t): name for name, t in named.items()}
        # Tensors must stay alive, so that their ids stay unique.
        self._alive: list[Tensor] = [*named.values()]
        # The variables that were read since the last `begin`.
        self.read: list[str] = []
        self.tables: dict[str, None] = {}
        self.called: dict[str, Any] = {}

    def begin(self) -> None:
        """Forget which variables were read."""
        self.read = []

    def has(self, x: Any) -> bool:
        """Return whether x is a variable of the formula."""
        return id(x) in self._names

    def name(self, x: Tensor, name: str | None = None) -> str:
        """Give a tensor a name, by default a fresh one."""
        self._alive.append(x)
        self._names[id(x)] = name or f"v{len(self._alive)}"
        return self._names[id(x)]

    def call(self, function: Any, *arguments: str) -> str:
        """Return a call of a primitive or an algorithm."""
        name: str = function.__name__
        known = self.called.setdefault(name, function)
        assert known is function, f"two functions are called {name}"
        return f"{name}({', '.join(arguments)})"

    def value(self, x: Any, dtype: torch.dtype) -> str:
        """Return a variable, or a literal for a number or a tensor of equal numbers."""
        if isinstance(x, Tensor):
            if self.has(x):
                self.read.append(self._names[id(x)])
                return self._names[id(x)]
            dtype, numbers = x.dtype, x.reshape(-1).tolist()
            x = numbers[0]
            if any(y != x and y == y for y in numbers):
                raise UnrecordableError("a tensor of different numbers")
        if isinstance(x, bool) and dtype == torch.bool:
            return self.call(longs.holds, str(int(x)))
        if dtype in _LONGS:
            return self.call(p.whole, str(int(x)))
        if not isinstance(x, (int, float)):
            raise UnrecordableError(f"an argument {x}")
        if dtype is torch.float32 is self._kind and math.isfinite(x):
            # PyTorch rounds a number that is combined with a tensor.
            x = _nearest(x, dtype)
        if not dtype.is_floating_point or (dtype in self._narrow and _nearest(x, dtype) != x == x):
            raise UnrecordableError(f"the number {x} with dtype {dtype}")
        if not math.isfinite(x):
            if self._register is FP32:
                (pattern,) = struct.unpack(">i", struct.pack(">f", x))
                return self.call(p.from_bits, self.call(p.whole, str(pattern)))
            (pattern,) = struct.unpack(">q", struct.pack(">d", x))
            return self.call(p.from_bits64, self.call(p.whole, str(pattern)))
        number = self.call(p.const, repr(abs(float(x))))
        # A literal may lose the sign of its zero.
        return self.call(p.neg, number) if math.copysign(1.0, x) < 0 else number

    def expression(self, func: Any, args: Any, kwargs: Mapping[str, Any], to: torch.dtype) -> str:
        """Return the expression of a PyTorch operation with a result of this dtype."""
        name = func.overloadpacket.__name__.removesuffix("_" * (not _dunder(func)))
        text = self._expression(func, name, args, kwargs, to)
        if to in self._narrow and name in _ROUNDED:
            return self.call(self._narrow[to], text)
        return text

    def _expression(
        self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any], to: torch.dtype
    ) -> str:
        kind = next(a.dtype for a in args if self.has(a))
        if name == "where":
            return self.call(p.where, *(self.value(a, to) for a in args))
        if name == "_to_copy":
            return self._converted(args[0], to)
        if func is aten.view.dtype and {kind, to} == {torch.int64, torch.float64}:
            return self.call(p.bits64 if to == torch.int64 else p.from_bits64, self.value(*args))
        if func is aten.view.dtype and {kind, to} == {torch.int32, torch.float32}:
            return self.call(p.bits if to == torch.int32 else p.from_bits, self.value(*args))
        if name == "rsub":
            args, name = (args[1], args[0]), "sub"
        if name == "clamp":
            return self._clamped(args, kwargs, kind)
        given = [self.value(a, kind) for a in args]
        if kind == torch.bool and name in ("eq", "bitwise_not"):
            return self.call(p.invert, given[0] if len(given) == 1 else " ^ ".join(given))
        if name in _INFIX:
            return f"{given[0]} {_INFIX[name]} {given[1]}"
        if kind in _LONGS:
            return self._of_longs(func, name, args, kwargs, given)
        if name == "isnan":
            return f"{given[0]} != {given[0]}"
        if name == "reciprocal":
            return self.call(p.div, self.value(1.0, kind), *given)
        if name == "remainder" and args[1] == 2:
            return self.call(longs.modulo_2, given[0])
        if name in self._calls and len(kwargs) == 0:
            return self.call(self._calls[name], *given)
        raise UnrecordableError(f"{func} of {kind}")

    def _clamped(self, args: Any, kwargs: Mapping[str, Any], kind: torch.dtype) -> str:
        """Return a value clamped to bounds, either of which may be absent; NaN stays."""
        text = self.value(args[0], kind)
        bounds = dict(zip(("min", "max"), args[1:], strict=False)) | {**kwargs}
        for side, function in (("min", longs.larger), ("max", longs.smaller)):
            if bounds.get(side) is not None:
                text = self.call(function, text, self.value(bounds[side], kind))
        return text

    def _of_longs(
        self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any], given: Sequence[str]
    ) -> str:
        text = given[0]
        if name in ("minimum", "maximum"):
            return self.call(longs.smaller if name == "minimum" else longs.larger, *given)
        if name == "neg":
            return f"{self.call(p.whole, '0')} - {text}"
        if name == "abs":
            return self.call(longs.larger, text, f"{self.call(p.whole, '0')} - {text}")
        if func is aten.div.Tensor_mode and kwargs == {"rounding_mode": "floor"}:
            shift = int(args[1]).bit_length() - 1
            if args[1] == 1 << shift:
                return f"{text} >> {self.call(p.whole, str(shift))}"
        raise UnrecordableError(f"{func} of integers")

    def rounded(self, x: Tensor, to: torch.dtype) -> str:
        """Return a register rounded once to a narrower format."""
        return self.call(self._narrow[to], self.value(x, x.dtype))

    def _converted(self, x: Tensor, to: torch.dtype) -> str:
        value = self.value(x, x.dtype)
        if x.dtype == torch.bool:
            return self.call(p.where, value, self.value(1, to), self.value(0, to))
        if x.dtype.is_floating_point and to.is_floating_point:
            if to == x.dtype or to.itemsize > x.dtype.itemsize:
                return value
            return self.call(self._narrow[to], value)
        if x.dtype in _LONGS and to in _LONGS and self._register is FP32:
            return value
        functions = {
            (self._kind, torch.int64): p.long,
            (torch.int64, self._kind): p.floating,
        }
        if self._register is FP32:
            functions |= {
                (self._kind, torch.int32): p.long,
                (torch.int32, self._kind): p.floating,
            }
        if (x.dtype, to) not in functions:
            raise UnrecordableError(f"{x.dtype} to {to}")
        return self.call(functions[x.dtype, to], value)

    def entry(self, table: Tensor, place: Tensor) -> str:
        """Return an entry of a table, with its index clamped into the table."""
        name = tables.named.get(table.untyped_storage().data_ptr())
        if name is None or table.dtype != self._kind or not self.has(place):
            raise UnrecordableError("an index into a tensor that is not a table")
        self.tables[name] = None
        self.read.append(name)
        at = self.call(longs.larger, self.value(place, torch.int64), self.call(p.whole, "0"))
        at = self.call(longs.smaller, at, self.call(p.whole, str(len(table) - 1)))
        start = self.call(p.whole, str(table.storage_offset()))
        return self.call(p.gather, name, f"{at} + {start}")


def _dunder(func: Any) -> bool:
    return bool(func.overloadpacket.__name__.endswith("__"))
