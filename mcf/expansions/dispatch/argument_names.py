"""Arguments by torch's names, for what stands in the place of its functions.

Implementations call their arguments what their formulas do. What torch's own function calls the
argument at a place is asked for once, of its schemas, when a call has a name that is not known.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

# What torch's functions take as well, for NumPy's sake.
_ALSO = {"input": ("x", "a", "x1"), "other": ("x2",)}


def by_place(
    func: Any, implementation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of torch's function for its implementation.

    Those that the implementation does not know by name, and torch does, get its own name for their
    place; what neither knows is left for the implementation to refuse.
    """
    names, known = _parameters(implementation)
    if kwargs.keys() <= known:
        return args, kwargs
    places = _places(func)
    found: dict[str, Any] = {}
    for name, value in kwargs.items():
        at = places.get(name, -1)
        own = names[at] if name not in known and len(args) <= at < len(names) else name
        if own in found or (own != name and own in kwargs):
            return args, kwargs
        found[own] = value
    return args, found


@functools.cache
def _parameters(implementation: Callable[..., Any]) -> tuple[list[str], frozenset[str]]:
    """The names of arguments by place, in their order, and all names."""
    found = inspect.signature(implementation).parameters.values()
    names = [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names, frozenset([*names, *(p.name for p in found if p.kind is p.KEYWORD_ONLY)])


@functools.cache
def _places(func: Any) -> dict[str, int]:
    """The places that torch's function has for its arguments' names."""
    if isinstance(func, FunctionType):
        return {name: at for at, name in enumerate(inspect.signature(func).parameters)}
    name = getattr(func, "__name__", "")
    # A method is called of its first argument.
    first = "" if hasattr(func, "__objclass__") else "input"
    found: dict[str, int] = {}
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        for at, argument in enumerate(schema.arguments):
            if not argument.kwarg_only:
                tensor = argument.name == "self" and str(argument.type) == "Tensor"
                given = first if tensor else argument.name
                for also in (given, *_ALSO.get(given, ())):
                    found.setdefault(also, at)
    return found
