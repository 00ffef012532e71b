"""A loop as a Python function, with the operands and algorithms that it names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
        register: the format of registers that algorithms compute in.
        ordered: see `rewrite.rewritten`.
        whole: whether it has the argument `data` alone, and no items.
        intrinsics: returns further names, when the loop is compiled.
    """

    function: FunctionType
    terms: int = 1
    operands: Sequence[tuple[Format, Format, int]] = ((FP64, FP64, 1),)
    algorithms: Mapping[str, Algorithm] = dataclasses.field(default_factory=dict)
    names: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    moved: Format = FP64
    register: Format = FP64
    ordered: bool = False
    whole: bool = False
    intrinsics: Callable[[], Mapping[str, Any]] = dict

    def compiled(self) -> Any:
        """Return the callback that Numba compiles."""
        from mcf.kernels.numba.compile import bound

        return bound.compiled(self)

    def native(self, *parts: Any, streamed: bool = False) -> objects.Native:
        """Return its code, from the cache of files or compiled.

        Args:
            *parts: all that determines the loop's intrinsics, and more names of it.
            streamed: see `rewrite.rewritten`.
        """

        def make() -> tuple[Any, str]:
            return rewrite.rewritten(self.compiled(), streamed=streamed, ordered=self.ordered)

        algorithms = [[k, keys.algorithm(each)] for k, each in self.algorithms.items()]
        names = [[k, getattr(each, "__name__", each)] for k, each in self.names.items()]
        function = [self.function.__module__, self.function.__name__, streamed, *parts]
        operands = [[*each] for each in self.operands]
        return stored.native(
            ("loop", function, self.terms, operands, algorithms, names, self.moved, self.register),
            make,
        )


def smaller(fmt: Format) -> int:
    """Return log2 of 8 bytes over the size of an element."""
    return 4 - int(fmt.itemsize).bit_length()


def chosen(condition, x, y):
    """Return x where a condition holds, else y."""
    found = ()
    for a, b in zip(x, y, strict=True):
        found = (*found, where(condition, a, b))
    return found
