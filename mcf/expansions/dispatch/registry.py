"""What expansion tensors do for each function of torch, in two tables that the rooms register in.

Above autograd a function of torch is known by itself, `torch.exp` or `torch.Tensor.exp`; most have
no entry there and reach the operators below autograd, `torch.ops.aten.exp.default`, whose
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

# Functions of torch -> what is called in their place, above autograd.
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
# Operators -> what computes them, below autograd: those that give new tensors ...
OPERATORS: dict[OpOverload, Callable[..., Any]] = {}
# ... and those whose results are an argument, or share memory with one.
ALIASING: dict[OpOverload, Callable[..., Any]] = {}
# Functions with `out=` that no operator of one result does -> what computes and writes them.
INTO: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}
# Functions of torch that view -> what is called of them without a question, with arguments by
# position; it returns NotImplemented for what is no view.
VIEWS: dict[Any, Callable[..., Any]] = {}
# What may know an operator that is in neither: functions of it, its arguments and those by name.
DERIVED: list[Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]] = []


def forms(name: str) -> list[Any]:
    """The function and the method of a name, where torch has them."""
    rooms = (torch, Tensor)
    return [getattr(room, name) for room in rooms if hasattr(room, name)]


def implements(*names: Any) -> Callable[[Implementation], Implementation]:
    """Register a function in place of functions of torch and for operators.

    Args:
        *names: functions and methods such as `torch.exp` and `torch.Tensor.exp`, above autograd:
            what is called in their place is differentiable, being written in functions that are.
            Overloads such as `torch.ops.aten.exp.default`, below autograd: in-place and `out=`
            forms follow from them by themselves.

    The function gets the arguments of what it stands for. Any tensor among them may be an
    `MCFTensor` or a plain one; below autograd numbers are Python's.
    """

    def register(implementation: Implementation) -> Implementation:
        for name in names:
            table: dict[Any, Callable[..., Any]]
            if not isinstance(name, OpOverload):
                table = FUNCTIONS
            else:
                table = ALIASING if name.is_view or is_in_place(name) else OPERATORS
            # Some functions have two names; two functions of one name are a mistake.
            if table.setdefault(name, implementation) is not implementation:
                raise ValueError(f"{name} has an implementation already, {table[name]}")
        return implementation

    return register


class UnsupportedError(NotImplementedError):
    """A function has no implementation for expansion tensors."""


def readable(func: OpOverload) -> str:
    """The operator's name as users know it: `torch.index_add (aten.index_add.default)`."""
    namespace, name = func._schema.name.split("::")
    family = "torch" if namespace == "aten" else f"torch.ops.{namespace}"
    return f"{family}.{name} ({namespace}.{name}.{func._overloadname})"


def unsupported(func: OpOverload) -> UnsupportedError:
    """The error for an operator that expansion tensors do not have."""
    name = func._schema.name.split("::")[1]
    if any(form in FUNCTIONS for form in forms(name)):
        return UnsupportedError(
            f"{readable(func)} is not supported on mcf.MCFTensor inside a transform of torch.func "
            f"or from another operator; torch.{name} called of expansion tensors outside is, with "
            "derivatives by backward and torch.autograd.grad"
        )
    return UnsupportedError(
        f"{readable(func)} is not supported on mcf.MCFTensor; convert first: x.to_plain() rounds "
        "to one plain tensor, x.components gives the components"
    )


def is_in_place(func: OpOverload) -> bool:
    """Whether an operator writes to its first argument and returns it."""
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
