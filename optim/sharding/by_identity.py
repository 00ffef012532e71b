"""Cached facts about objects of another library, for as long as an object lives."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """A mapping keyed by objects' identity instead of equality, which keeps none alive.

    A mesh of destroyed process groups equals a mesh of new ones; a mesh that is kept alive keeps
    its groups, with two threads and their sockets each.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, key: object) -> Value | None:
        """Return an object's value; None if it has none."""
        found = self._known.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def set(self, key: object, value: Value) -> None:
        """Store a value that does not refer to the object."""
        at = id(key)

        def forget(reference: weakref.ref[Any]) -> None:
            found = self._known.get(at)
            if found is not None and found[0] is reference:
                del self._known[at]

        self._known[at] = weakref.ref(key, forget), value

    def __len__(self) -> int:
        return len(self._known)
