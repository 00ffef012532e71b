"""The table of operators that expansion tensors implement, and what happens to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import return_and_correct_aliasing

Implementation = TypeVar("Implementation", bound=Callable[..., Any])

# Operators, and what computes them: those that give new tensors, and those whose results are an
# argument or share memory with one.
_PLAIN: dict[OpOverload, Callable[..., Any]] = {}
_ALIASING: dict[OpOverload, Callable[..., Any]] = {}


def implements(*overloads: OpOverload) -> Callable[[Implementation], Implementation]:
    """Register a function for operators, under autograd: it gets the operator's own arguments.

    Args:
        overloads: such as `torch.ops.aten.exp.default`.

    Among the arguments any tensor may be an `MCFTensor` or a plain tensor; numbers are Python's.
    In-place and `out=` forms follow from the functional one by themselves.
    """

    def register(implementation: Implementation) -> Implementation:
        for overload in overloads:
            aliasing = overload.is_view or _is_in_place(overload)
            (_ALIASING if aliasing else _PLAIN)[overload] = implementation
        return implementation

    return register


class UnsupportedError(NotImplementedError):
    """A function has no implementation for expansion tensors."""


def readable(func: OpOverload) -> str:
    """The operator's name as users know it: `torch.index_add (aten.index_add.default)`."""
    namespace, name = func._schema.name.split("::")
    family = "torch" if namespace == "aten" else f"torch.ops.{namespace}"
    return f"{family}.{name} ({namespace}.{name}.{func._overloadname})"


def run(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the implementation of an operator, or derive one, or raise `UnsupportedError`."""
    implementation = _PLAIN.get(func)
    if implementation is not None:
        return implementation(*args, **kwargs)
    implementation = _ALIASING.get(func)
    if implementation is not None:
        out = implementation(*args, **kwargs)
        return return_and_correct_aliasing(func, args, kwargs, out)  # type: ignore[no-untyped-call]
    if "out" in kwargs:
        return _into(func, args, kwargs)
    if _is_in_place(func):
        return _in_place(func, args, kwargs)
    out = func.decompose(*args, **kwargs)
    if out is not NotImplemented:
        return out
    raise unsupported(func)


def unsupported(func: OpOverload) -> UnsupportedError:
    """The error for an operator that expansion tensors do not have."""
    return UnsupportedError(
        f"{readable(func)} is not supported on mcf.MCFTensor; convert first: x.to_plain() rounds "
        "to one plain tensor, x.components gives the components"
    )


def _is_in_place(func: OpOverload) -> bool:
    name = func._schema.name
    return name.endswith("_") and not name.endswith("__") and func._schema.is_mutable


def _functional(func: OpOverload) -> OpOverload:
    """The operator without the trailing underscore, of the same overload name."""
    name = func._schema.name.split("::")[1].removesuffix("_")
    packet = getattr(torch.ops.aten, name, None)
    overload = getattr(packet, func._overloadname, None)
    if overload is None:
        raise unsupported(func)
    return overload  # type: ignore[no-any-return]


def _in_place(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """An in-place operator: the functional one, whose result is copied into the argument."""
    from mcf.tensor.tensor import MCFTensor

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
    torch.ops.aten.copy_.default(target, result)
    return target


def _into(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """An operator with `out=`: the functional one, whose result is copied into `out`."""
    from mcf.tensor.tensor import MCFTensor

    target = kwargs["out"]
    packet = func.overloadpacket
    result = packet(*args, **{k: v for k, v in kwargs.items() if k != "out"})
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
    torch.ops.aten.copy_.default(target, result)
    return target
