"""Tables of implementations of torch functions and aten operators for expansion tensors.

Above autograd the key is the torch function, `torch.exp` or `torch.Tensor.exp`. Most functions have
no entry there: they reach the operators below autograd, `torch.ops.aten.exp.default`, whose
derivatives are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import return_and_correct_aliasing

Implementation = TypeVar("Implementation", bound=Callable[..., Any])

# Torch functions -> their replacements above autograd.
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
# Operators that return new tensors -> their implementations below autograd.
OPERATORS: dict[OpOverload, Callable[..., Any]] = {}
# Operators whose results are an argument, or share memory with one -> their implementations.
ALIASING: dict[OpOverload, Callable[..., Any]] = {}
# Functions with `out=` that are not one operator with one result -> functions that compute and
# write the results.
INTO: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}
# Torch functions that return views -> fast implementations with positional arguments, which return
# NotImplemented for arguments that give no view.
VIEWS: dict[Any, Callable[..., Any]] = {}
# Functional operators -> functions write(target, args, **named) that write the result into a tensor
# by one launch. They return False, with nothing written, for unsupported targets and arguments.
WRITES: dict[OpOverload, Callable[..., bool]] = {}
# Functions of an operator, its arguments and keywords, tried for operators in neither table. They
# return NotImplemented for operators that they do not know.
DERIVED: list[Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]] = []


def forms(name: str, *more: Any) -> list[Any]:
    """Return the function and the method of a name, and functions of `more` namespaces, if any."""
    owners = (torch, Tensor, *more)
    return [getattr(owner, name) for owner in owners if hasattr(owner, name)]


def overloads(names: str) -> list[OpOverload]:
    """Return operators of aten by their names, such as "flip squeeze.dim"."""
    pairs = (name.partition(".") for name in names.split())
    return [getattr(getattr(torch.ops.aten, name), form or "default") for name, _, form in pairs]


def implements(*names: Any) -> Callable[[Implementation], Implementation]:
    """Register a function in place of functions of torch and for operators.

    Args:
        *names: functions and methods such as `torch.exp` and `torch.Tensor.exp`, above autograd:
            the replacement must be differentiable, being composed of differentiable functions.
            Overloads such as `torch.ops.aten.exp.default`, below autograd: in-place and `out=`
            forms are derived from them.

    The implementation gets the arguments of the function that it replaces. Any tensor among them
    may be an `MCFTensor` or plain; below autograd, numbers are Python numbers.
    """

    def register(implementation: Implementation) -> Implementation:
        for name in names:
            table: dict[Any, Callable[..., Any]]
            if not isinstance(name, OpOverload):
                table = FUNCTIONS
            else:
                table = ALIASING if name.is_view or is_in_place(name) else OPERATORS
            # Aliases may be one object; two different implementations are a mistake.
            if table.setdefault(name, implementation) is not implementation:
                raise ValueError(f"{name} already has the implementation {table[name]}")
        return implementation

    return register


class UnsupportedError(NotImplementedError):
    """A function has no implementation for expansion tensors; no other is used in its place."""


def readable(func: OpOverload) -> str:
    """Return an operator's name for users: `torch.index_add (aten.index_add.default)`."""
    namespace, name = func._schema.name.split("::")
    family = "torch" if namespace == "aten" else f"torch.ops.{namespace}"
    return f"{family}.{name} ({namespace}.{name}.{func._overloadname})"


def unsupported(func: OpOverload) -> UnsupportedError:
    """Return the error for an operator without an implementation."""
    name = func._schema.name.split("::")[1]
    if any(form in FUNCTIONS for form in forms(name)):
        return UnsupportedError(
            f"{readable(func)} is not supported on mcf.MCFTensor inside a transform of torch.func "
            f"or from another operator; call torch.{name} on expansion tensors outside, with "
            "derivatives by backward and torch.autograd.grad"
        )
    return UnsupportedError(
        f"{readable(func)} is not supported on mcf.MCFTensor; convert first: x.to_plain() rounds "
        "to one plain tensor, x.components gives the components"
    )


def is_in_place(func: OpOverload) -> bool:
    """Return whether an operator writes to its first argument and returns it."""
    name = func._schema.name
    return name.endswith("_") and not name.endswith("__") and func._schema.is_mutable


def run(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the implementation of an operator, or derive one, or raise `UnsupportedError`."""
    implementation = OPERATORS.get(func)
    if implementation is not None:
        return implementation(*args, **kwargs)
    implementation = ALIASING.get(func)
    if implementation is not None:
        out = implementation(*args, **kwargs)
        return return_and_correct_aliasing(func, args, kwargs, out)  # type: ignore[no-untyped-call]
    for derived in DERIVED:
        out = derived(func, args, kwargs)
        if out is not NotImplemented:
            return out
    out = func.decompose(*args, **kwargs)
    if out is NotImplemented:
        raise unsupported(func)
    return out
