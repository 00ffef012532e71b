"""Forms of operations by plan that write into an argument, below and above autograd."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.elementary.fused import Formula
from mcf.kernels import operators
from mcf.kernels.operators import COMPARISONS, Operation
from mcf.tensor.ops.in_place import in_place, into_out, writes_first
from mcf.tensor.registry import OPERATORS, STRAIGHT, WRITERS, forms
from mcf.tensor.tensor import MCFTensor
from mcf.tensor.writing import into

aten = torch.ops.aten

# The operands that a function's arguments are.
Read = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def _as_given(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _exchanged(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[::-1]


def _twice(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args + args


def _positive_part(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*args, 0)


def _chosen(args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, mask, value = args
    return mask, value, x


def _written(
    operation: Operation | Formula, func: OpOverload, count: int, read: Read
) -> Callable[..., Any]:
    truth = operation in COMPARISONS
    derived = in_place if writes_first(func) else into_out

    def implementation(*args: Any, **kwargs: Any) -> Any:
        target = kwargs["out"] if "out" in kwargs else args[0]
        # Only a comparison's result is a plain tensor.
        if isinstance(target, MCFTensor) is not truth and len(args) == count:
            if kwargs.get("alpha", 1) == 1 and into(operation, read(args), target):
                return target
        return derived(func, args, kwargs)

    return implementation


_duals = torch.autograd.forward_ad
_grad = torch.is_grad_enabled
_unasked = torch._C.DisableTorchFunctionSubclass
_increment: Any = torch._C._increment_version

_TENSORS = MCFTensor, Tensor
_OPERANDS = *_TENSORS, int, float
# What types arguments may have, by their number.
_KINDS: dict[int, tuple[tuple[type, ...], ...]] = {1: ((MCFTensor,),), 2: (_TENSORS, _OPERANDS)}


def _writer(
    operation: Operation | Formula, read: Read, kinds: tuple[tuple[type, ...], ...]
) -> Callable[[tuple[Any, ...], Any], bool]:
    """What writes an operation's result above autograd, where nothing records it."""
    kind = Tensor if operation in COMPARISONS else MCFTensor
    allowed = frozenset(types for types in product(*kinds) if MCFTensor in types)

    def write(args: tuple[Any, ...], out: Any) -> bool:
        if type(out) is not kind or (*map(type, args),) not in allowed:
            return False
        if torch.compiler.is_compiling() or _duals._current_level >= 0:
            return False
        with _unasked():
            if out.is_inference() or (out.requires_grad and _grad()):
                return False
            if not into(operation, read(args), out, above=True):
                return False
            # Autograd may have kept what was there.
            _increment([out])
        return True

    return write


def _at_once(write: Callable[[tuple[Any, ...], Any], bool]) -> Callable[[tuple[Any, ...]], Any]:
    """The function in place, as `mcf.tensor.straight` has functions."""

    def call(args: tuple[Any, ...]) -> Any:
        return args[0] if args and write(args, args[0]) else NotImplemented

    return call


def _writes(
    operation: Operation | Formula,
    names: str,
    *overloads: str,
    kinds: tuple[tuple[type, ...], ...] | None = None,
    read: Read = _as_given,
) -> None:
    """Register forms of an operation by plan that write into an argument.

    Args:
        operation: what they compute.
        names: of the function, in aten the first of them.
        *overloads: with `out=`, or after a "_" of the function in place.
        kinds: what types arguments may have; None for `_KINDS`.
        read: what makes the operation's operands of the arguments.
    """
    kinds = kinds or _KINDS[len(operation.arguments)]
    write = _writer(operation, read, kinds)
    name, *_ = known = names.split()
    for form in overloads:
        packet = getattr(aten, name + "_" if form.startswith("_") else name)
        func = getattr(packet, form.removeprefix("_"))
        # Not by `implements`: they return the argument itself, with nothing to be put right.
        OPERATORS[func] = _written(operation, func, len(kinds), read)
        for each in known:
            if "out" in form:
                WRITERS[getattr(torch, each)] = write
            else:
                for function in forms(f"{each}_"):
                    STRAIGHT[function] = _at_once(write)


_writes(operators.ADD, "add", "out", "_Tensor", "_Scalar")
_writes(operators.SUB, "sub subtract", "out", "_Tensor", "_Scalar")
_writes(operators.MUL, "mul multiply", "out", "_Tensor", "_Scalar")
_writes(operators.DIV, "div divide true_divide", "out", "_Tensor", "_Scalar")
for _name, _operator in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}.items():
    STRAIGHT[getattr(Tensor, f"__i{_name}__")] = STRAIGHT[getattr(Tensor, f"{_operator}_")]
for _name in ("sqrt", "reciprocal", "rsqrt"):
    _writes(getattr(operators, _name.upper()), _name, "out", "_default")
for _name, _names in {
    "lt": "lt less",
    "le": "le less_equal",
    "eq": "eq",
    "ne": "ne not_equal",
}.items():
    _writes(getattr(operators, _name.upper()), _names, "Tensor_out", "Scalar_out")
_writes(operators.LT, "gt greater", "Tensor_out", "Scalar_out", read=_exchanged)
_writes(operators.LE, "ge greater_equal", "Tensor_out", "Scalar_out", read=_exchanged)
for _name in ("maximum", "minimum", "fmax", "fmin"):
    _writes(getattr(operators, _name.upper()), _name, "out", kinds=(_TENSORS, _TENSORS))
_writes(operators.WHERE, "where", "self_out", kinds=((Tensor,), _OPERANDS, _OPERANDS))
_bound = (MCFTensor,), (int, float)
_writes(operators.MAXIMUM, "clamp_min", "out", "_default", kinds=_bound)
_writes(operators.MINIMUM, "clamp_max", "out", "_default", kinds=_bound)
_writes(operators.MAXIMUM, "relu", "_default", kinds=_KINDS[1], read=_positive_part)
_writes(operators.MUL, "square", "out", "_default", kinds=_KINDS[1], read=_twice)
_writes(
    operators.WHERE,
    "masked_fill",
    "_Scalar",
    kinds=((MCFTensor,), (Tensor,), (int, float)),
    read=_chosen,
)
_writes(operators.ABS, "abs absolute", "out", "_default")
_writes(operators.COPYSIGN, "copysign", "out", "_Tensor", "_Scalar")
_bounds = (MCFTensor,), (int, float), (int, float)
_writes(operators.CLAMP, "clamp clip", "out", "Tensor_out", "_default", "_Tensor", kinds=_bounds)
for _names in (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin arcsin",
    "acos arccos", "atan arctan", "sinh", "cosh", "tanh", "asinh arcsinh", "acosh arccosh",
    "atanh arctanh", "sigmoid", "erf", "erfc", "floor", "ceil", "round", "trunc fix", "lgamma",
    "digamma",
):  # fmt: skip
    _writes(Formula(_names.split()[0]), _names, "out", "_default")
for _names in ("hypot", "atan2 arctan2"):
    _two = (MCFTensor,), (MCFTensor,)
    _writes(Formula(_names.split()[0]), _names, "out", "_default", kinds=_two)
