"""Operators that write into an argument: by plan, or the functional one, whose result is copied."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.elementary.fused import Formula
from mcf.kernels import operators
from mcf.kernels.operators import COMPARISONS, Operation
from mcf.tensor.recorded import differentiated, writable, written
from mcf.tensor.registry import (
    DERIVED,
    OPERATORS,
    WRITERS,
    UnsupportedError,
    is_in_place,
    readable,
    run,
    unsupported,
)
from mcf.tensor.tensor import MCFTensor
from mcf.tensor.writing import into

aten = torch.ops.aten

_writes_first = functools.cache(is_in_place)


@functools.cache
def _functional(func: OpOverload) -> OpOverload:
    """The operator without the trailing underscore, of the same overload name or arguments."""
    name = func._schema.name.split("::")[1].removesuffix("_")
    packet = getattr(torch.ops.aten, name, None)
    overload = getattr(packet, func._overloadname, None)
    # TorchScript's functions of numbers have the names of functions of tensors.
    if packet is not None and (overload is None or not _takes_tensor(overload)):
        overload = _new(packet, func)
    if overload is None:
        raise unsupported(func)
    return overload  # type: ignore[no-any-return]


def _takes_tensor(func: OpOverload) -> bool:
    return str(func._schema.arguments[0].type) == "Tensor"


@functools.cache
def _without_out(func: OpOverload) -> OpOverload | None:
    """The overload that takes the same arguments and returns a new tensor."""
    return _new(func.overloadpacket, func)


def _new(packet: Any, func: OpOverload) -> OpOverload | None:
    """Of a packet the overload with an operator's arguments that returns a new tensor."""

    def arguments(f: OpOverload) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in f._schema.arguments if not a.is_out]

    for name in packet.overloads():
        each = getattr(packet, name)
        if not each._schema.is_mutable and arguments(each) == arguments(func):
            return each  # type: ignore[no-any-return]
    return None


def _same_device(func: OpOverload, result: Tensor, target: Tensor) -> None:
    if result.device != target.device:
        raise RuntimeError(
            f"{readable(func)}: the result is on {result.device}, the tensor that it is written to "
            f"on {target.device}; nothing is moved silently"
        )


def in_place(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator that writes to its first argument."""
    if "out" in kwargs or not _writes_first(func):
        return NotImplemented
    target = args[0]
    if not isinstance(target, MCFTensor):
        raise UnsupportedError(
            f"{readable(func)} would round its result to a plain tensor; use the form that "
            "returns a new tensor"
        )
    result = run(_functional(func), args, kwargs)
    if result.shape != target.shape:
        raise RuntimeError(
            f"{readable(func)}: the result has shape {list(result.shape)} and cannot be written "
            f"into a tensor of shape {list(target.shape)}"
        )
    _same_device(func, result, target)
    aten.copy_.default(target, result)
    return target


def into_out(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator with `out=`."""
    if "out" not in kwargs:
        return NotImplemented
    target = kwargs["out"]
    rest = {k: v for k, v in kwargs.items() if k != "out"}
    functional = _without_out(func)
    if functional is not None and any(isinstance(x, MCFTensor) for x in args):
        result = run(functional, args, rest)
    else:
        result = func.overloadpacket(*args, **rest)
    if not isinstance(target, Tensor) or not isinstance(result, Tensor):
        raise unsupported(func)
    if isinstance(result, MCFTensor) and not isinstance(target, MCFTensor):
        raise UnsupportedError(
            f"{readable(func)} would round its result to `out`, a plain tensor; give an expansion "
            "tensor, or copy the result, which rounds"
        )
    if result.shape != target.shape:
        raise RuntimeError(
            f"{readable(func)}: `out` has shape {list(target.shape)}; allowed is the result's, "
            f"{list(result.shape)}"
        )
    _same_device(func, result, target)
    aten.copy_.default(target, result)
    return target


DERIVED.extend((into_out, in_place))


def _written(operation: Operation | Formula, func: OpOverload, step: int) -> Callable[..., Any]:
    count, truth = len(operation.arguments), operation in COMPARISONS
    derived = in_place if _writes_first(func) else into_out

    def implementation(*args: Any, **kwargs: Any) -> Any:
        target = kwargs["out"] if "out" in kwargs else args[0]
        # Only a comparison's result is a plain tensor.
        if isinstance(target, MCFTensor) is not truth and len(args) == count:
            if kwargs.get("alpha", 1) == 1 and into(operation, args[::step], target):
                return target
        return derived(func, args, kwargs)

    return implementation


def _writer(operation: Operation | Formula, step: int) -> Callable[[tuple[Any, ...], Any], bool]:
    """What writes an operation's result above autograd, where nothing records it."""
    count = len(operation.arguments)
    kind = Tensor if operation in COMPARISONS else MCFTensor

    def write(args: tuple[Any, ...], out: Any) -> bool:
        if type(out) is not kind or len(args) != count or not writable(out):
            return False
        if differentiated((*args, out)) or not into(operation, args[::step], out):
            return False
        written(out)
        return True

    return write


def _writes(
    operation: Operation | Formula, name: str, *forms: str, exchanged: bool = False
) -> None:
    """Register forms of an operation by plan that write into an argument.

    Args:
        operation: what they compute.
        name: of the function in aten.
        *forms: overloads: with `out=`, or after a "_" of the function in place.
        exchanged: whether the operation takes the arguments the other way round.
    """
    for form in forms:
        packet = getattr(aten, name + "_" if form.startswith("_") else name)
        func = getattr(packet, form.removeprefix("_"))
        # Not by `implements`: they return the argument itself, with nothing to be put right.
        step = -1 if exchanged else 1
        OPERATORS[func] = _written(operation, func, step)
        if "out" in form:
            WRITERS[getattr(torch, name)] = _writer(operation, step)


for _name in ("add", "sub", "mul", "div"):
    _writes(getattr(operators, _name.upper()), _name, "out", "_Tensor", "_Scalar")
for _name in ("sqrt", "reciprocal", "rsqrt"):
    _writes(getattr(operators, _name.upper()), _name, "out", "_default")
for _name in ("lt", "le", "eq", "ne"):
    _writes(getattr(operators, _name.upper()), _name, "Tensor_out", "Scalar_out")
_writes(operators.LT, "gt", "Tensor_out", "Scalar_out", exchanged=True)
_writes(operators.LE, "ge", "Tensor_out", "Scalar_out", exchanged=True)
for _name in ("maximum", "minimum", "fmax", "fmin"):
    _writes(getattr(operators, _name.upper()), _name, "out")
_writes(operators.WHERE, "where", "self_out")
_writes(operators.ABS, "abs", "out", "_default")
_writes(operators.COPYSIGN, "copysign", "out", "_Tensor", "_Scalar")
_writes(operators.CLAMP, "clamp", "out", "Tensor_out", "_default", "_Tensor")
for _name in (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "floor", "ceil",
    "round", "trunc",
):  # fmt: skip
    _writes(Formula(_name), _name, "out", "_default")
