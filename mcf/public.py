"""Collect the public names of a package."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

# The packages whose names are public.
_PACKAGES = frozenset({"mcf", "mcf.linalg", "mcf.nn", "mcf.optim"})


def public(namespace: dict[str, Any], modules: tuple[str, ...] = ()) -> list[str]:
    """Return the names for a package's `__all__`, sorted.

    A name is public if it has no leading underscore and is no module, or is one of `modules`.
    Functions and classes of this project get the package as their `__module__`, so that they print
    and pickle as `mcf.MCFTensor`, wherever they are defined.

    Args:
        namespace: the package's `globals()`.
        modules: the names of its public modules.
    """
    package: str = namespace["__name__"]
    found = []
    for name, value in namespace.items():
        if name.startswith("_") or (isinstance(value, ModuleType) and name not in modules):
            continue
        found.append(name)
        named = isinstance(value, (FunctionType, type)) and value.__qualname__ == name
        # An object that is public in two packages keeps the name of the first.
        if named and value.__module__.startswith("mcf.") and value.__module__ not in _PACKAGES:
            defined = value.__module__
            for each in (value, *_methods(value)):
                if each.__module__ == defined:
                    each.__module__ = package
    return sorted(found)


def _methods(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in the body of a class."""
    for member in vars(value).values() if isinstance(value, type) else ():
        inner = member.fget if isinstance(member, property) else member
        inner = getattr(inner, "__func__", inner)
        if isinstance(inner, FunctionType):
            yield inner
