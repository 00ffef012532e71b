"""Arithmetic of complex numbers whose parts are expansions.

Sums and the product are written once, for any type with `+`, `-` and `*`: for tensors, and here for
names of a kernel's values, whose operators record calls of the real algorithms. So a kernel has the
same bits as the operations on parts. `complex_quotients` has the quotient, which needs scaling and
so is written for registers only.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from mcf.kernels.algorithms import ieee
from mcf.kernels.statements import Complex, Family, Symbolic, kept, recorded

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


# The algorithms of an operator: by number of components, and those for a float as second operand.
_REAL = {
    "add": (ieee.ADD, ieee.ADD_FLOAT),
    "sub": (ieee.SUB, ieee.SUB_FLOAT),
    "mul": (ieee.MUL, ieee.MUL_FLOAT),
    "truediv": (ieee.DIV, ieee.DIV_FLOAT),
}


class _Number(Symbolic):
    """A real number of the generated kernel, on whose components operators call algorithms."""

    __slots__ = ("components",)

    def __init__(self, components: tuple[Any, ...]) -> None:
        super().__init__(self)
        self.components = components

    def operate(self, name: str, x: _Number, y: _Number) -> _Number:
        """Call the algorithm of an operator; the special one if the second number is a float."""
        whole, by_float = _REAL[name]
        terms = max(len(x.components), len(y.components))
        short = len(y.components) < terms and terms in by_float
        function = kept((by_float if short else whole)[terms], terms)
        return _Number(function(x.components, y.components))


def _algorithm(form: Formula, terms: tuple[int, ...]) -> FunctionType:
    """Return a formula as an algorithm for arguments with these numbers of components."""

    def formed(*given: Any) -> Complex:
        return Complex(*(r.components for r in form(*map(_Number, given))))

    name = f"complex_{form.__name__}_{''.join(map(str, terms))}"
    sizes = dict(zip(parameters(form), terms, strict=True))
    return recorded(name, formed, sizes, form.__doc__ or "")


def parameters(form: Formula) -> tuple[str, ...]:
    """Return the names of a formula's arguments."""
    return tuple(inspect.signature(form).parameters)


class Formulas(NamedTuple):
    """The algorithms of a formula.

    Args:
        parameters: the names of its arguments.
        usual: the algorithms by number of components.
        special: those whose second operand has floats as parts, by the number of components of
            each argument.
    """

    parameters: tuple[str, ...]
    usual: Family
    special: Family

    @classmethod
    def of(cls, form: Formula, by_float: Family) -> Formulas:
        """Return the algorithms; the keys of `by_float` are the component counts with variants."""
        names = parameters(form)
        counts = [
            (n, n, *short)
            for n in by_float
            for short in itertools.product((1, n), repeat=len(names) - 2)
            if 1 in short
        ]
        usual = Family(lambda n: _algorithm(form, (n,) * len(names)), range(1, 5))
        return cls(names, usual, Family(functools.partial(_algorithm, form), counts))


ADD = Formulas.of(plus, ieee.ADD_FLOAT)
SUB = Formulas.of(minus, ieee.SUB_FLOAT)
MUL = Formulas.of(times, ieee.MUL_FLOAT)
SCALE = Formulas.of(times_real, ieee.MUL_FLOAT)
UNSCALE = Formulas.of(over_real, ieee.DIV_FLOAT)
