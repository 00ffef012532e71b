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
    """A loop over `mcf.kernels.numba.compile.language`.

    Args:
        function: the loop.
        terms: the number of components of an expansion.
        numbered: the format in memory, that of registers and the number of components of each
            operand of `load` and `store`, in the order of their numbers.
        algorithms: the algorithms that it names.
        names: the constants and functions of the language that it names.
        moved: the format of components that are moved without arithmetic, and that narrow results
            are rounded to.
        format: the format that algorithms compute in, and of operands in the caller's memory.
        operands: the number of components of operands in the caller's memory, by parameter.
        scratch: the number of components of operands in each thread's workspace.
        tables: the parameters that are addresses of 32-bit integers.
        across: whether an item is a block of matrices, one per vector lane.
        ordered: see `rewrite.rewritten`.
        whole: whether it has the argument `data` alone, and no items.
        intrinsics: returns further names, when the loop is compiled.
    """

    function: FunctionType
    terms: int = 1
    numbered: Sequence[tuple[Format, Format, int]] = ((FP64, FP64, 1),)
    algorithms: Mapping[str, Algorithm] = dataclasses.field(default_factory=dict)
    names: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    moved: Format = FP64
    format: Format = FP64
    operands: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scratch: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tables: Sequence[str] = ()
    across: bool = False
    ordered: bool = False
    whole: bool = False
    intrinsics: Callable[[], Mapping[str, Any]] = dict

    @property
    def parameters(self) -> tuple[str, ...]:
        """The loop's parameters after the item, in the order of its argument struct."""
        code = self.function.__code__
        return code.co_varnames[1 : code.co_argcount]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of its argument struct after the head, without operands."""
        others = {"data", "workspace", *self.operands, *self.scratch}
        return tuple(name for name in self.parameters if name not in others)

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
        numbered = [[*each] for each in self.numbered]
        counts = [[*each.items()] for each in (self.operands, self.scratch)]
        return stored.native(
            (
                *("loop", function, self.terms, numbered, algorithms, names, self.moved),
                *(self.format, counts, self.across),
            ),
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
