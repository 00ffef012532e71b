"""Run the algorithms on Python floats, for scalars that the CPU computes.

A formula is printed once as one Python function without calls, loops or primitives, by applying it
to the names of its variables (`mcf.kernels.statements.Value`). That function has the operations of
the formula in its order, and a step of an optimizer does not spend its time in calls of `rn`, which
here is the identity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.elementwise import parameters
from mcf.kernels.statements import Recording, Value, printed, text_of

_SPLITTER = 2.0**27 + 1


def quotient(a: float, b: float) -> float:
    """Return a / b as in IEEE 754, including division by zero."""
    if b == 0:
        if a == 0 or a != a:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def divided(x: Any, size: Any, inverse: Any) -> Any:
    """Return the quotient and remainder of `powers.divided` (exact), in plain Python."""
    q = x // size
    return q, x - q * size


def _fms(a: Any, b: Any, c: Any) -> Any:
    """RN(a * b - c) where c = RN(a * b), by Dekker's product.

    Far from overflow and underflow.
    """
    t, s = _SPLITTER * a, _SPLITTER * b
    ah, bh = t - (t - a), s - (s - b)
    al, bl = a - ah, b - bh
    return al * bl - (((c - ah * bh) - al * bh) - ah * bl)


# Primitives as expressions of Python.
_EXPRESSIONS = {
    "neg": "-{0}",
    "div": "{0} / {1} if {1} else quotient({0}, {1})",
    "sqrt": "sqrt({0}) if {0} >= 0 else nan",
    "where": "{1} if {0} else {2}",
}
_FUNCTIONS = {"sqrt": math.sqrt, "nan": math.nan, "quotient": quotient}
# Functions that steps call repeatedly; see `powers.power`. They stay calls, whose results are
# cached.
_KEPT = ("small_power", "large_power", "raised")
# Per function, the calls that are not inlined and the number of results of each. `large_power` is
# needed once in 256 steps; each of its 45 factors is a call, because inlining would take longer to
# compile than to run.
_CALLS: dict[str, dict[str, int]] = {
    "power": dict.fromkeys(_KEPT, 2),
    "large_power": {"_bit": 5},
}


class Host:
    """Compile the algorithms into functions of Python floats.

    Args:
        slots: functions for the undefined names of an algorithm, by name.
    """

    def __init__(self, slots: Mapping[str, Algorithm] | None = None) -> None:
        self._slots = {"divided": divided, **(slots or {})}
        self.bind = functools.cache(self._bind)

    def _bind(self, function: Algorithm) -> Callable[..., Any]:
        """Return an algorithm as a function of floats; each is compiled once."""
        assert isinstance(function, FunctionType)
        recording, name = Recording(), function.__name__
        calls = _CALLS.get(name, {})

        def wrap(inner: FunctionType) -> Any:
            called = inner.__name__
            if called not in calls:
                return inner
            recording.functions[called] = self.bind(function.__globals__[called])

            def call(*given: Any) -> tuple[Value, ...]:
                found = recording.tuple_of(called, calls[called], *map(text_of, given))
                return tuple(Value(recording, x) for x in found)

            return call

        primitives: dict[str, Any] = {
            n: functools.partial(recording.value, n) for n in _EXPRESSIONS
        }
        primitives |= dict.fromkeys(("rn", "rc", "rx"), lambda x: x)
        primitives |= {"fms": _fms, "ZERO": 0.0, "ONE": 1.0}
        names = parameters(function)
        arguments = [recording.variable() for _ in names]
        results = Binder(wrap, primitives, self._slots)(function)(
            *(Value(recording, a) for a in arguments)
        )
        many = isinstance(results, tuple)
        made: Callable[..., Any] = printed(
            name,
            arguments,
            recording.statements,
            tuple(map(text_of, results)) if many else text_of(results),
            {**_FUNCTIONS, **recording.functions},
            f"`{name}` of floats.",
            f"<mcf host {name}>",
            _EXPRESSIONS,
        )
        return functools.lru_cache(4096)(made) if name in _KEPT else made


bind = Host().bind
