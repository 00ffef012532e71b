"""Derive operators that write into an argument from functional ones.

Results of one kernel are written in place; other results are copied.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.registry import (
    DERIVED,
    INTO,
    WRITES,
    UnsupportedError,
    is_in_place,
    readable,
    run,
    unsupported,
)
from mcf.expansions.launch.operations import into, shares_part
from mcf.expansions.tensor import MCFTensor
from mcf.kernels import operators
from mcf.kernels.operators import COMPARISONS, Operation

aten = torch.ops.aten

writes_first = functools.cache(is_in_place)


@functools.cache
def _functional(func: OpOverload) -> OpOverload:
    """Return the functional overload of an in-place operator, by overload name or arguments."""
    name = func._schema.name.split("::")[1].removesuffix("_")
    packet = getattr(torch.ops.aten, name, None)
    overload = getattr(packet, func._overloadname, None)
    # TorchScript has functions of numbers under the same names.
    if packet is not None and (overload is None or not _takes_tensor(overload)):
        overload = _new(packet, func)
    if overload is None:
        raise unsupported(func)
    return overload  # type: ignore[no-any-return]


def _takes_tensor(func: OpOverload) -> bool:
    return str(func._schema.arguments[0].type) == "Tensor"


@functools.cache
def _without_out(func: OpOverload) -> OpOverload | None:
    """Return the overload that takes the same arguments and returns a new tensor."""
    return _new(func.overloadpacket, func)


def _new(packet: Any, func: OpOverload) -> OpOverload | None:
    """Return the functional overload of a packet with the arguments of `func`, or None."""

    def arguments(f: OpOverload) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in f._schema.arguments if not a.is_out]

    for name in packet.overloads():
        each = getattr(packet, name)
        if not each._schema.is_mutable and arguments(each) == arguments(func):
            return each  # type: ignore[no-any-return]
    return None


# PyTorch's message.
_SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)


def _check_memory(func: OpOverload, target: Any, args: tuple[Any, ...]) -> None:
    """Raise, like PyTorch, if a pointwise operator would overwrite part of an operand."""
    if _is_of_elements(func) and shares_part(target, args):
        raise RuntimeError(_SHARED)


@functools.cache
def _is_of_elements(func: OpOverload) -> bool:
    # Not all overloads carry the tag, `where.self_out` has none, and masked_fill reads its number
    # before it writes.
    if func._schema.name.startswith("aten::masked_fill"):
        return False
    packet = getattr(aten, func._schema.name.split("::")[1].removesuffix("_"), func.overloadpacket)
    each = [func, *(getattr(packet, name) for name in packet.overloads())]
    return func is aten.where.self_out or any(torch.Tag.pointwise in f.tags for f in each)


def _same_device(name: str, result: Tensor, target: Tensor) -> None:
    if result.device != target.device:
        raise RuntimeError(
            f"{name}: the result is on {result.device}, the tensor that it is written to "
            f"on {target.device}; nothing is moved silently"
        )


def _is_written(func: OpOverload, target: Any, args: tuple[Any, ...], named: Any) -> bool:
    """Write a functional operator's result into the target by one launch, if `WRITES` has one."""
    write = WRITES.get(func)
    return write is not None and write(target, args, **named)


def in_place(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that writes to its first argument."""
    if "out" in kwargs or not writes_first(func):
        return NotImplemented
    target = args[0]
    if not isinstance(target, MCFTensor):
        raise UnsupportedError(
            f"{readable(func)} would round its result to a plain tensor; use the form that "
            "returns a new tensor"
        )
    functional = _functional(func)
    if _is_written(functional, target, args, kwargs):
        return target
    _check_memory(func, target, args)
    result = run(functional, args, kwargs)
    if result.shape != target.shape:
        raise RuntimeError(
            f"{readable(func)}: the result has shape {list(result.shape)} and cannot be written "
            f"into a tensor of shape {list(target.shape)}"
        )
    _same_device(readable(func), result, target)
    aten.copy_.default(target, result)
    return target


def into_out(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator with `out=`."""
    if "out" not in kwargs:
        return NotImplemented
    target = kwargs["out"]
    rest = {k: v for k, v in kwargs.items() if k != "out"}
    functional = _without_out(func)
    if functional is not None and _is_written(functional, target, args, rest):
        return target
    _check_memory(func, target, args)
    if functional is not None and any(isinstance(x, MCFTensor) for x in args):
        result = run(functional, args, rest)
    else:
        result = func.overloadpacket(*args, **rest)
    if not isinstance(target, Tensor) or not isinstance(result, Tensor):
        raise unsupported(func)
    return written(readable(func), result, target)


def check_target(name: str, result: Tensor, target: Tensor) -> None:
    """Raise unless the target of `out=` can hold a result.

    Raises:
        UnsupportedError: if the result is an expansion and the target a plain tensor.
        RuntimeError: if the devices differ.
    """
    if isinstance(result, MCFTensor) and not isinstance(target, MCFTensor):
        raise UnsupportedError(
            f"{name} would round its result to `out`, a plain tensor; pass an expansion "
            "tensor, or copy the result, which rounds"
        )
    _same_device(name, result, target)


def written(name: str, result: Tensor, target: Tensor) -> Tensor:
    """Copy a result into the target of `out=`, resized as in PyTorch, and return the target."""
    check_target(name, result, target)
    if result.shape != target.shape:
        if target.numel():
            warnings.warn(_RESIZED.format(list(target.shape), list(result.shape)), stacklevel=2)
        aten.resize_.default(target, result.shape)
    aten.copy_.default(target, result)
    return target


# PyTorch's message.
_RESIZED = (
    "An output with one or more elements was resized since it had shape {}, which does not match "
    "the required output shape {}. This behavior is deprecated, and in a future PyTorch release "
    "outputs will not be resized unless they have zero elements. You can explicitly reuse an out "
    "tensor t by resizing it, inplace, to zero elements with t.resize_(0)."
)


DERIVED.extend((into_out, in_place))


# Arguments of a functional operator -> operands of the operation that computes it.
Read = Callable[..., tuple[Any, ...]]


def _writes(operation: Operation | Formula, name: str, read: Read = lambda *args: args) -> None:
    """Let the forms of an operator that write into an argument do so by one launch.

    Args:
        operation: the operation that computes the result.
        name: the operator's name in aten.
        read: maps the operator's arguments to the operation's operands.
    """
    count, truth = len(operation.arguments), operation in COMPARISONS

    def write(target: Any, args: tuple[Any, ...], **named: Any) -> bool:
        values = read(*args)
        if named or len(values) != count or isinstance(target, MCFTensor) is truth:
            return False
        return into(operation, values, target)

    packet = getattr(aten, name)
    for overload in packet.overloads():
        WRITES[getattr(packet, overload)] = write


for _name in (
    "mul div sqrt reciprocal rsqrt abs lt le eq ne maximum minimum fmax fmin where copysign clamp"
).split():
    _writes(getattr(operators, _name.upper()), _name)
_writes(operators.LT, "gt", lambda x, y: (y, x))
_writes(operators.LE, "ge", lambda x, y: (y, x))
_writes(operators.MAXIMUM, "clamp_min")
_writes(operators.MINIMUM, "clamp_max")
_writes(operators.MAXIMUM, "relu", lambda x: (x, 0))
_writes(operators.MUL, "square", lambda x: (x, x))
_writes(
    operators.WHERE,
    "masked_fill",
    # A number with dimensions is an error.
    lambda x, mask, value: () if isinstance(value, Tensor) else (mask, value, x),
)
for _name in (
    "exp expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc floor ceil round trunc lgamma digamma hypot atan2"
).split():
    _writes(Formula(_name), _name)


def _readable_name(func: Any) -> str:
    name = f"torch.{func.__name__.removeprefix('_')}"
    return re.sub("^torch.(linalg|special)_", r"torch.\1.", name)


def _check(name: str, result: Tensor, target: Any) -> None:
    if not isinstance(target, Tensor):
        raise TypeError(f"{name}: out must be a tensor or tensors, got {type(target).__name__}")
    expansion = isinstance(target, MCFTensor)
    if not result.dtype.is_floating_point and (expansion or target.dtype != result.dtype):
        kind = "an expansion of " if expansion else ""
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {result.dtype}, but got {kind}"
            f"{target.dtype} instead"
        )
    check_target(name, result, target)


def _check_gradients(name: str, values: Iterable[Any]) -> None:
    """Raise PyTorch's error if `out=` is used with an argument that requires grad."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in values):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad."
        )


def computed_into(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return a variant of a function with `out=`: compute all results, then write them.

    Args:
        function: a function of PyTorch or its replacement; called above autograd.

    Returns:
        An entry of `dispatch.registry.INTO`: a function of positional and keyword arguments.
        It returns `out`; several results in the function's own result type.

    Raises:
        TypeError: if `out` is not one tensor per result.
        RuntimeError: if the device or an integer dtype differs, or an argument requires grad.
        UnsupportedError: if a plain tensor would receive an expansion. Nothing is written then.
    """

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, target = _readable_name(function), kwargs["out"]
        rest = {k: v for k, v in kwargs.items() if k != "out"}
        _check_gradients(name, tree_leaves((target, args, rest)))
        found = function(*args, **rest)
        if not isinstance(found, tuple):
            _check(name, found, target)
            return written(name, found, target)
        if not isinstance(target, (tuple, list)) or len(target) != len(found):
            given = len(target) if isinstance(target, (tuple, list)) else type(target).__name__
            raise TypeError(f"{name}: out must be a tuple of {len(found)} tensors, got {given}")
        for result, each in zip(found, target, strict=True):
            _check(name, result, each)
        for result, each in zip(found, target, strict=True):
            written(name, result, each)
        own = type(found)
        return getattr(torch.return_types, f"{own.__name__}_out", own)(target)

    return call


_LINALG = (
    "cholesky cholesky_ex det eigh eigvalsh inv inv_ex ldl_factor ldl_factor_ex lstsq lu lu_factor "
    "lu_factor_ex matrix_norm matrix_rank norm qr slogdet solve solve_ex svd svdvals"
)
_ORDER = "aminmax argsort cummax cummin frexp kthvalue max median min mode nanmedian sort topk"
_OTHER = "geqrf inverse lu_unpack qr svd triangular_solve"
_FUNCTIONS = [getattr(torch.linalg, n) for n in _LINALG.split()] + [
    getattr(torch, n) for n in (*_ORDER.split(), *_OTHER.split()) if hasattr(torch, n)
]
# PyTorch's own compositions would give different last bits.
_COMPOSED = [torch.special.ndtr, torch.exp2, torch.special.exp2, torch.tensordot]
INTO.update({function: computed_into(function) for function in (*_FUNCTIONS, *_COMPOSED)})
