"""Arithmetic of complex numbers whose parts are expansions.

Sums and the product are written once, for any type with `+`, `-` and `*`: for tensors, and here for
names of a kernel's values, whose operators emit calls of the real algorithms. So a kernel has the
same bits as the operations on parts. `complex_quotients` has the quotient, which needs scaling and
so is written for registers only.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from mcf.kernels.algorithms import ieee
from mcf.kernels.algorithms.families import written

Formula = Callable[..., tuple[Any, Any]]


def plus(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """(a + ib) + (c + id)."""
    return a + c, b + d


def minus(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """(a + ib) - (c + id)."""
    return a - c, b - d


def times(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """(a + ib)(c + id) = (ac - bd) + i(ad + bc), four products and two sums."""
    return a * c - b * d, a * d + b * c


def times_real(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """(a + ib) c."""
    return a * c, b * c


def over_real(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """(a + ib) / c."""
    return a / c, b / c


class _Name:
    """A value of the generated kernel and its number of components."""

    def __init__(self, name: str, terms: int, text: _Text) -> None:
        self.name, self.terms, self._text = name, terms, text

    def __add__(self, other: _Name) -> _Name:
        return self._text.call("add", ieee.ADD, ieee.ADD_FLOAT, self, other)

    def __sub__(self, other: _Name) -> _Name:
        return self._text.call("sub", ieee.SUB, ieee.SUB_FLOAT, self, other)

    def __mul__(self, other: _Name) -> _Name:
        return self._text.call("mul", ieee.MUL, ieee.MUL_FLOAT, self, other)

    def __truediv__(self, other: _Name) -> _Name:
        return self._text.call("div", ieee.DIV, ieee.DIV_FLOAT, self, other)


class _Text:
    """The statements of one generated kernel."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.called: dict[str, Any] = {}

    def call(self, name: str, whole: Any, by_float: Any, x: _Name, y: _Name) -> _Name:
        """Emit an operation; use the special algorithm if the second value has one component."""
        terms = max(x.terms, y.terms)
        short = y.terms < terms and terms in by_float
        function = by_float[terms] if short else whole[terms]
        called = f"{name}_{terms}{'_float' * short}"
        self.called[called] = function
        made = _Name(f"v{len(self.lines)}", terms, self)
        self.lines.append(f"{made.name} = {called}({x.name}, {y.name})")
        return made


def _algorithm(form: Formula, terms: tuple[int, ...]) -> FunctionType:
    """Return a formula as an algorithm for arguments with these numbers of components."""
    text, names = _Text(), parameters(form)
    results = form(*(_Name(n, t, text) for n, t in zip(names, terms, strict=True)))
    flat = [f"{r.name}[{k}]" for r in results for k in range(r.terms)]
    return written(
        f"complex_{form.__name__}_{''.join(map(str, terms))}",
        ", ".join(names),
        [*text.lines, f"return {', '.join(flat)}"],
        form.__doc__ or "",
        **text.called,
    )


def parameters(form: Formula) -> tuple[str, ...]:
    """Return the names of a formula's arguments."""
    return tuple(inspect.signature(form).parameters)


class Family(NamedTuple):
    """A formula for 1 to 4 components, with variants whose second operand has float parts."""

    parameters: tuple[str, ...]
    usual: tuple[FunctionType, ...]
    special: tuple[tuple[tuple[int, ...], FunctionType], ...]

    @classmethod
    def of(cls, form: Formula, by_float: ieee.Family) -> Family:
        """Return the family; the keys of `by_float` are the component counts with variants."""
        names = parameters(form)
        rest = len(names) - 2
        usual = tuple(_algorithm(form, (n,) * len(names)) for n in range(1, 5))
        counts = [
            (n, n, *short)
            for n in by_float
            for short in itertools.product((1, n), repeat=rest)
            if 1 in short
        ]
        return cls(names, usual, tuple((c, _algorithm(form, c)) for c in counts))


ADD = Family.of(plus, ieee.ADD_FLOAT)
SUB = Family.of(minus, ieee.SUB_FLOAT)
MUL = Family.of(times, ieee.MUL_FLOAT)
SCALE = Family.of(times_real, ieee.MUL_FLOAT)
UNSCALE = Family.of(over_real, ieee.DIV_FLOAT)
