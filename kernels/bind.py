"""Bind the algorithms to one executor: the same code objects over that executor's primitives."""

from __future__ import annotations

import builtins
import dataclasses
import dis
import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms import primitives as _primitives

# A plain Python function of straight-line formulas over the primitives.
Algorithm = Callable[..., Any]

# Name of the optional first parameter of an algorithm. The algorithm need not run where the
# parameter is false for every element of a block: its result is then selected nowhere.
NEEDED = "needed"

PRIMITIVE_NAMES = frozenset(n for n in vars(_primitives) if not n.startswith("_"))


@functools.cache
def weight(function: Algorithm) -> int:
    """Count the arithmetic operations of an algorithm, those of called algorithms included."""
    assert isinstance(function, FunctionType)
    found = 0
    for step in dis.get_instructions(function):
        if step.opname.startswith("BINARY") and step.opname != "BINARY_SUBSCR":
            found += 1
        elif step.opname.startswith("LOAD_GLOBAL"):
            called = function.__globals__.get(step.argval)
            if step.argval not in PRIMITIVE_NAMES and isinstance(called, FunctionType):
                found += weight(called)
            elif step.argval in ("fms", "div", "sqrt", "where"):
                found += 1
    return found


# Instances are compared and hashed by identity, like `mcf.kernels.elementwise.Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Formulas:
    """The algorithms of a loop over matrices; they are attributes, too.

    Args:
        terms: the number of components of a number, of both parts of a complex one.
        parts: 1 for real numbers, 2 for complex ones, whose real part comes first.
        algorithms: the algorithms by the names that loops give them.
    """

    terms: int
    parts: int
    algorithms: Mapping[str, Algorithm]

    def __getattr__(self, name: str) -> Algorithm:
        try:
            return self.algorithms[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no algorithm {name!r}") from None


class Binder:
    """Bind an algorithm, and every algorithm it calls, to the primitives of one executor.

    Args:
        wrap: applied to each bound function (`numba.njit`, a Triton jit, the identity).
        primitives: the executor's version of each name in `mcf.kernels.algorithms.primitives`.
        slots: functions for the undefined names of an algorithm, by name; they are
            themselves algorithms and are bound the same way.
        own: the executor's own versions of some algorithms, which have the same bits.
    """

    def __init__(
        self,
        wrap: Callable[[FunctionType], Any],
        primitives: Mapping[str, Any],
        slots: Mapping[str, Algorithm] | None = None,
        own: Mapping[Algorithm, Any] | None = None,
    ) -> None:
        self._wrap = wrap
        self._own = dict(own or {})
        self._primitives = dict(primitives)
        self._slots = dict(slots or {})
        self._bound: dict[Any, Any] = {}

    def with_own(self, own: Mapping[Algorithm, Any]) -> Binder:
        """Return a binder that also uses the executor's own versions in `own`."""
        return Binder(self._wrap, self._primitives, self._slots, {**self._own, **own})

    def identity(self, function: Algorithm) -> Any:
        """Return the cache key of an algorithm; algorithms with equal keys are bound once."""
        return function

    def __call__(self, function: Algorithm) -> Any:
        """Return `function` bound to the primitives.

        Each function is bound once and then shared.
        """
        if function in self._own:
            return self._own[function]
        identity = self.identity(function)
        if identity not in self._bound:
            assert isinstance(function, FunctionType)
            namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": function.__module__}
            for name in function.__code__.co_names:
                if name in self._slots:
                    namespace[name] = self(self._slots[name])
                elif name in PRIMITIVE_NAMES:
                    namespace[name] = self._primitives[name]
                elif isinstance(function.__globals__.get(name), FunctionType):
                    namespace[name] = self(function.__globals__[name])
            bound = FunctionType(function.__code__, namespace, function.__name__)
            bound.__module__ = function.__module__
            bound.__doc__ = function.__doc__
            self._bound[identity] = self._wrap(bound)
        return self._bound[identity]
