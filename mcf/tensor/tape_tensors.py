"""The tensors among an operator's arguments and results, for those who write its calls down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from mcf.tensor.registry import OPERATORS, run
from mcf.tensor.tensor import COMPONENTS, MCFTensor


class RefusedError(Exception):
    """A function does what its steps alone would not do again."""


def memory_of(t: Tensor) -> int:
    """Where a tensor's memory begins, which its views share."""
    return t.untyped_storage().data_ptr()


def leaves(x: Any) -> Iterator[Any]:
    """What is in lists, tuples and dictionaries."""
    if isinstance(x, list | tuple):
        for each in x:
            yield from leaves(each)
    elif isinstance(x, dict):
        yield from leaves([*x.values()])
    else:
        yield x


def tensors(x: Any) -> Iterator[Tensor]:
    """The plain tensors in something, those that expansions are made of among them."""
    for each in leaves(x):
        if type(each) is MCFTensor:
            own = each.__dict__
            yield from COMPONENTS[own["_terms"]](own)
        elif isinstance(each, Tensor):
            if type(each) is not Tensor:
                raise RefusedError(f"a {type(each).__name__}")
            yield each


def targets(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operator writes to."""
    for k, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name) if k >= len(args) else args[k]
            yield from tensors(value)


def run_operator(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator, below autograd."""
    if MCFTensor not in map(type, leaves((args, kwargs))):
        return func(*args, **kwargs)
    implementation = OPERATORS.get(func)
    return run(func, args, kwargs) if implementation is None else implementation(*args, **kwargs)
