"""Map keyword arguments of torch functions to the parameters of implementations.

Implementations name their parameters as their formulas do. When a call has an unknown keyword, its
position in torch's own function is read from torch's schemas and cached.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

# NumPy's aliases of torch's argument names.
_ALSO = {"input": ("x", "a", "x1"), "other": ("x2",)}


def by_place(
    func: Any, implementation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with keywords renamed to the implementation's parameters.

    A keyword that only torch knows is renamed to the parameter at the same position. The
    implementation refuses keywords that neither knows.
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
    """Return the names of positional parameters in order, and all names."""
    found = inspect.signature(implementation).parameters.values()
    names = [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names, frozenset([*names, *(p.name for p in found if p.kind is p.KEYWORD_ONLY)])


@functools.cache
def _places(func: Any) -> dict[str, int]:
    """Return the position of each argument name of a torch function."""
    if isinstance(func, FunctionType):
        return {name: at for at, name in enumerate(inspect.signature(func).parameters)}
    name = getattr(func, "__name__", "")
    # A method has no name for its first argument, `self`.
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
