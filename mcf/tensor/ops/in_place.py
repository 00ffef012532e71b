"""Operators that write into an argument: by plan, or the functional one, whose result is copied."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.elementary.fused import Formula
from mcf.kernels import operators
from mcf.kernels.operators import COMPARISONS, Operation
from mcf.tensor.registry import (
    DERIVED,
    OPERATORS,
    STRAIGHT,
    WRITERS,
    UnsupportedError,
    forms,
    is_in_place,
    readable,
    run,
    unsupported,
)
from mcf.tensor.tensor import MCFTensor
from mcf.tensor.writing import into, shares_part

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


# As torch says it.
_SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)


def _check_memory(func: OpOverload, target: Any, args: tuple[Any, ...]) -> None:
    """Refuse what torch refuses of a function of elements: to write over a part of an operand."""
    if _is_of_elements(func) and shares_part(target, args):
        raise RuntimeError(_SHARED)


@functools.cache
def _is_of_elements(func: OpOverload) -> bool:
    # Not all overloads of a function have its tag, torch's choice has none, and what fills reads
    # its number before.
    if func._schema.name.startswith("aten::masked_fill"):
        return False
    packet = getattr(aten, func._schema.name.split("::")[1].removesuffix("_"), func.overloadpacket)
    each = [func, *(getattr(packet, name) for name in packet.overloads())]
    return func is aten.where.self_out or any(torch.Tag.pointwise in f.tags for f in each)


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
    _check_memory(func, target, args)
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
    _check_memory(func, target, args)
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
    _same_device(func, result, target)
    if result.shape != target.shape:
        if target.numel():
            warnings.warn(_RESIZED.format(list(target.shape), list(result.shape)), stacklevel=2)
        aten.resize_.default(target, result.shape)
    aten.copy_.default(target, result)
    return target


# As torch says it.
_RESIZED = (
    "An output with one or more elements was resized since it had shape {}, which does not match "
    "the required output shape {}. This behavior is deprecated, and in a future PyTorch release "
    "outputs will not be resized unless they have zero elements. You can explicitly reuse an out "
    "tensor t by resizing it, inplace, to zero elements with t.resize_(0)."
)


DERIVED.extend((into_out, in_place))


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


def _written(
    operation: Operation | Formula, func: OpOverload, count: int, read: Read
) -> Callable[..., Any]:
    truth = operation in COMPARISONS
    derived = in_place if _writes_first(func) else into_out

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
_writes(operators.ABS, "abs absolute", "out", "_default")
_writes(operators.COPYSIGN, "copysign", "out", "_Tensor", "_Scalar")
_bounds = (MCFTensor,), (int, float), (int, float)
_writes(operators.CLAMP, "clamp clip", "out", "Tensor_out", "_default", "_Tensor", kinds=_bounds)
for _names in (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin arcsin",
    "acos arccos", "atan arctan", "sinh", "cosh", "tanh", "asinh arcsinh", "acosh arccosh",
    "atanh arctanh", "sigmoid", "erf", "erfc", "floor", "ceil", "round", "trunc fix",
):  # fmt: skip
    _writes(Formula(_names.split()[0]), _names, "out", "_default")
