"""Run the algorithms on Python floats, for scalars that the CPU computes.

A formula is written out once, as one Python function without calls, loops or primitives, by
applying it to the names of its variables. That function has the operations of the formula in its
order, and a step of an optimizer does not spend its time in calls of `rn`, which here is nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.elementwise import parameters

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


class _Name:
    """A variable of the function that is being generated."""

    def __init__(self, name: str, text: _Text) -> None:
        self.name, self._text = name, text

    def _made(self, pattern: str, other: Any = 0.0) -> _Name:
        word = other.name if isinstance(other, _Name) else repr(other)
        return self._text.assigned(pattern.format(self.name, word))

    def __add__(self, other: Any) -> _Name:
        return self._made("{} + {}", other)

    def __radd__(self, other: Any) -> _Name:
        return self._made("{1} + {0}", other)

    def __sub__(self, other: Any) -> _Name:
        return self._made("{} - {}", other)

    def __rsub__(self, other: Any) -> _Name:
        return self._made("{1} - {0}", other)

    def __mul__(self, other: Any) -> _Name:
        return self._made("{} * {}", other)

    def __rmul__(self, other: Any) -> _Name:
        return self._made("{1} * {0}", other)

    def __floordiv__(self, other: Any) -> _Name:
        return self._made("{} // {}", other)

    def __lt__(self, other: Any) -> _Name:
        return self._made("{} < {}", other)

    def __gt__(self, other: Any) -> _Name:
        return self._made("{} > {}", other)

    def __eq__(self, other: object) -> Any:
        return self._made("{} == {}", other)

    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> _Name:
        return self._made("-{}")

    def __bool__(self) -> bool:
        raise TypeError("a formula asks for the value of a variable; it is written with `where`")


def _word(x: Any) -> str:
    return x.name if isinstance(x, _Name) else repr(x)


class _Text:
    """The source lines of one generated function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers = itertools.count()

    def variable(self) -> _Name:
        """Create a fresh variable."""
        return _Name(f"x{next(self._numbers)}", self)

    def assigned(self, expression: str) -> _Name:
        """Assign an expression to a fresh variable and return it."""
        name = f"x{next(self._numbers)}"
        self.lines.append(f"{name} = {expression}")
        return _Name(name, self)

    def called(self, name: str, count: int, arguments: tuple[Any, ...]) -> tuple[_Name, ...]:
        """Emit a call of a function that is not inlined, and return its results."""
        found = tuple([self.variable() for _ in range(count)])
        results, given = (", ".join([_word(x) for x in some]) for some in (found, arguments))
        self.lines.append(f"{results} = {name}({given})")
        return found

    def primitives(self) -> dict[str, Any]:
        """Return the primitives of `mcf.kernels.algorithms` as functions that emit source."""

        def same(x: Any) -> Any:
            return x

        def fms(a: Any, b: Any, c: Any) -> Any:
            """RN(a * b - c) where c = RN(a * b), by Dekker's product.

            Far from overflow and underflow.
            """
            # One line for each statement, because the first step of a process writes many products.
            a, b, c = _word(a), _word(b), _word(c)
            t = self.assigned(f"{_SPLITTER!r} * {a}").name
            s = self.assigned(f"{_SPLITTER!r} * {b}").name
            ah = self.assigned(f"{t} - ({t} - {a})").name
            bh = self.assigned(f"{s} - ({s} - {b})").name
            al, bl = self.assigned(f"{a} - {ah}").name, self.assigned(f"{b} - {bh}").name
            rest = f"(({c} - {ah} * {bh}) - {al} * {bh}) - {ah} * {bl}"
            return self.assigned(f"{al} * {bl} - ({rest})")

        def div(a: Any, b: Any) -> Any:
            a, b = _word(a), _word(b)
            return self.assigned(f"{a} / {b} if {b} else quotient({a}, {b})")

        def sqrt(x: Any) -> Any:
            return self.assigned(f"sqrt({_word(x)}) if {_word(x)} >= 0 else nan")

        def where(condition: Any, a: Any, b: Any) -> Any:
            return self.assigned(f"{_word(a)} if {_word(condition)} else {_word(b)}")

        return {
            "rn": same,
            "rc": same,
            "rx": same,
            "fms": fms,
            "div": div,
            "sqrt": sqrt,
            "where": where,
            "neg": lambda x: -x,
            "ZERO": 0.0,
            "ONE": 1.0,
        }


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
        text = _Text()
        calls, called = _CALLS.get(function.__name__, {}), dict[str, Any]()

        def wrap(inner: FunctionType) -> Any:
            name = inner.__name__
            if name not in calls:
                return inner
            called[name] = self.bind(function.__globals__[name])
            return lambda *arguments: text.called(name, calls[name], arguments)

        binder = Binder(wrap, text.primitives(), self._slots)
        names = [_Name(p, text) for p in parameters(function)]
        results = binder(function)(*names)
        many = isinstance(results, tuple)
        words = [_word(r) for r in (results if many else (results,))]
        lines = [
            f"def formula({', '.join([n.name for n in names])}):",
            *text.lines,
            f"return {', '.join(words)}{',' if many else ''}",
        ]
        space = {"sqrt": math.sqrt, "nan": math.nan, "quotient": quotient, **called}
        exec(compile("\n    ".join(lines), f"<mcf host {function.__name__}>", "exec"), space)
        made: Callable[..., Any] = space["formula"]
        return functools.lru_cache(4096)(made) if function.__name__ in _KEPT else made


bind = Host().bind
