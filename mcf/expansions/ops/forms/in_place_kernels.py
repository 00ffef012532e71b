"""Write the result of one kernel into an argument: `out=` and the in-place forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.registry import OPERATORS
from mcf.expansions.launch.operations import into, shares_part
from mcf.expansions.ops.arithmetic.arithmetic import (
    addcdiv_into,
    addcmul_into,
    lerp_into,
    multiple_into,
)
from mcf.expansions.ops.forms.in_place import in_place, into_out, writes_first
from mcf.expansions.tensor import MCFTensor
from mcf.kernels import operators
from mcf.kernels.operators import COMPARISONS, Operation

aten = torch.ops.aten

# Maps the arguments of an overload to the operands of a kernel.
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


# write(target, args, **named) writes a result into a tensor; it returns False if unsupported.
Write = Callable[..., bool]


def _register(func: OpOverload, count: int, write: Write, truth: bool = False) -> None:
    """Register a direct implementation of an overload, with `ops.in_place` as fallback.

    Args:
        func: the overload.
        count: the number of positional arguments that `write` supports.
        write: returns False, with nothing written, for unsupported targets and arguments.
        truth: whether the target is a plain bool tensor.
    """
    derived = in_place if writes_first(func) else into_out

    def implementation(*args: Any, **kwargs: Any) -> Any:
        target = kwargs["out"] if "out" in kwargs else args[0]
        if isinstance(target, MCFTensor) is not truth and len(args) == count:
            named = {k: v for k, v in kwargs.items() if k != "out"}
            if write(target, args, **named):
                return target
        return derived(func, args, kwargs)

    # `implements` would correct aliasing; these return the argument itself.
    OPERATORS[func] = implementation


def _writes(
    operation: Operation | Formula,
    name: str,
    *overloads: str,
    count: int | None = None,
    read: Read = _as_given,
) -> None:
    """Register the forms of an operator that write into an argument.

    Args:
        operation: the operation that computes the result.
        name: the operator's name in aten.
        *overloads: overload names; a leading "_" means the in-place operator, else `out=`.
        count: the number of arguments; None for that of the operation.
        read: maps the arguments to the operation's operands.
    """

    def write(target: Any, args: tuple[Any, ...], alpha: Any = 1) -> bool:
        if alpha != 1:
            x, y = args
            return multiple_into(operation, target, x, y, alpha)
        return into(operation, read(args), target)

    for form in overloads:
        packet = getattr(aten, name + "_" if form.startswith("_") else name)
        func = getattr(packet, form.removeprefix("_"))
        _register(func, count or len(operation.arguments), write, operation in COMPARISONS)


for _name in ("add", "sub", "mul", "div"):
    _writes(getattr(operators, _name.upper()), _name, "out", "_Tensor", "_Scalar")
for _name in ("sqrt", "reciprocal", "rsqrt", "abs"):
    _writes(getattr(operators, _name.upper()), _name, "out", "_default")
for _name in ("lt", "le", "eq", "ne"):
    _writes(getattr(operators, _name.upper()), _name, "Tensor_out", "Scalar_out")
_writes(operators.LT, "gt", "Tensor_out", "Scalar_out", read=_exchanged)
_writes(operators.LE, "ge", "Tensor_out", "Scalar_out", read=_exchanged)
for _name in ("maximum", "minimum", "fmax", "fmin"):
    _writes(getattr(operators, _name.upper()), _name, "out")
_writes(operators.WHERE, "where", "self_out")
_writes(operators.MAXIMUM, "clamp_min", "out", "_default")
_writes(operators.MINIMUM, "clamp_max", "out", "_default")
_writes(operators.MAXIMUM, "relu", "_default", count=1, read=_positive_part)
_writes(operators.MUL, "square", "out", "_default", count=1, read=_twice)
_writes(operators.WHERE, "masked_fill", "_Scalar", read=_chosen)
_writes(operators.COPYSIGN, "copysign", "out", "_Tensor", "_Scalar")
_writes(operators.CLAMP, "clamp", "out", "Tensor_out", "_default", "_Tensor")
for _name in (
    "exp expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc floor ceil round trunc lgamma digamma hypot atan2"
).split():
    _writes(Formula(_name), _name, "out", "_default")


def _into(function: Callable[..., bool]) -> Write:
    """Return a Write that also refuses targets that share part of an operand's memory."""

    def write(target: Any, args: tuple[Any, ...], **factor: Any) -> bool:
        return not shares_part(target, args) and function(target, *args, **factor)

    return write


for _function, _overloads in (
    (lerp_into, (aten.lerp.Scalar_out, aten.lerp.Tensor_out, aten.lerp_.Scalar, aten.lerp_.Tensor)),
    (addcmul_into, (aten.addcmul.out, aten.addcmul_.default)),
    (addcdiv_into, (aten.addcdiv.out, aten.addcdiv_.default)),
):
    for _overload in _overloads:
        _register(_overload, 3, _into(_function))
