"""A loop as a Python function, with the operands and algorithms that it names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms.primitives import where
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP64, Format
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop (item, data, workspace) over `mcf.kernels.numba.compile.language`.

    Args:
        function: the loop.
        terms: the number of components of an expansion.
        operands: the format in memory, that of registers and the number of components of each
            operand, in the order of their numbers.
        algorithms: the algorithms that it names.
        names: the constants and functions of the language that it names.
        moved: the format of components that are moved without arithmetic, and that narrow results
            are rounded to.
        rewritten: whether `rewrite` applies.
        whole: whether it has the argument `data` alone, and no items.
    """

    function: FunctionType
    terms: int = 1
    operands: Sequence[tuple[Format, Format, int]] = ((FP64, FP64, 1),)
    algorithms: Mapping[str, Algorithm] = dataclasses.field(default_factory=dict)
    names: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    moved: Format = FP64
    rewritten: bool = False
    whole: bool = False

    def native(self, name: str = "") -> objects.Native:
        """Return its code, from the cache of files or compiled."""

        def make() -> tuple[Any, str]:
            from mcf.kernels.numba.compile import bound

            function = bound.compiled(self)
            return rewrite.rewritten(function) if self.rewritten else function

        algorithms = [[k, keys.algorithm(each)] for k, each in self.algorithms.items()]
        names = [[k, getattr(each, "__name__", each)] for k, each in self.names.items()]
        function = [self.function.__module__, self.function.__name__, name]
        operands = [[*each] for each in self.operands]
        parts = (self.terms, operands, algorithms, names, self.moved)
        return stored.native(("loop", function, *parts), make)


def chosen(condition, x, y):
    """Return x where a condition holds, else y."""
    found = ()
    for a, b in zip(x, y, strict=True):
        found = (*found, where(condition, a, b))
    return found
