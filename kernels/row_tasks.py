"""Declare tasks on rows of float64 expansions for which executors may have sequential loops.

The tensors of a task are contiguous, float64 [rows, count] unless stated otherwise; indices are
int64. With a stride `inner` between the elements of a row, they are [rows / inner, count, inner],
tensors with one number for each row are [rows / inner, inner], and rows are along the middle
dimension. Keys are canonical components (`mcf.kernels.algorithms.order`). x has components of any
kind, which move as the keys do. Results overlap nothing. Each task lists its results, then its
operands.

"sort": option 0 is 1 for descending order, options 1 and 2 are the first wanted place and the end
of the wanted places, and with option 3 a row with NaN gives its first NaN for a single place.
Results: index and numbers of those places, [rows, wanted]. Operands: the keys, x. The sort is
stable, and NaN is the largest.

"largest", "smallest": index and number, [rows], the keys, x. NaN wins, then the first.

"highest", "lowest": option 0 is the precision of x's format, option 1 the exponent of its smallest
number. Index and number, [rows], of the largest or smallest, the first components of x, x. The
index is -1 where first components do not decide: where another is less than a few units in the last
place away, or one is not finite. For 16-bit formats all `terms` components are read, and the index
is -1 where one is not finite or the sum of a number's components is not exact in float64.

"running_largest", "running_smallest": index and number of the extreme so far, the keys, which are
any normalised pairs or canonical, x. The last of equal ones; NaN stays.

"search_left", "search_right": option 0 is the length of a sorted sequence [length], option 1 how
many numbers there are, of which rows have `count` each and the last one what is left; of single
components option 2 is how many first steps have what they look at in a table. The place of each
number in it, int64, the keys of the sequence, those of the numbers, such a table. Which elements
are looked at is what `mcf.kernels.ordering` says.

"prod": products [rows], x. While there are c > 1 numbers, number j of the first c // 2 is
multiplied by number j + ceil(c / 2); with an odd c the one in the middle stays.

"rest": sums [rows] of all but one number of each row, the index of that one [rows], x, in which 0
takes its place. While there are c > 1 numbers, number j of the first c // 2 is added to number
j + c // 2; with an odd c the last one stays the last.

"spread": x of each row at each of its elements, [rows, count], x [rows].

"cumsum", "cumprod": what runs, x. The order is part of the definition. A block is 2**j elements
that begin at a multiple of 2**j; it is the combination of its halves, as a tree. What runs up to
element m, counted from 1, is what runs up to m - 2**j combined with the block of 2**j elements that
ends at m, where 2**j is the largest power of two that divides m; the block itself where that is
all. So each is of at most 2 log2(count) combinations, and each block is combined once (Brent and
Kung 1982, doi:10.1109/TC.1982.1675982).

Of these and of "prod" x may have narrower components, see `Narrow`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from mcf.kernels.algorithms import ieee, order, sums
from mcf.kernels.algorithms.distillation import distill
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP64, Format

_ALGORITHMS = {
    "sort": order.precedes,
    "largest": order.precedes,
    "smallest": order.falls_below,
    "highest": order.precedes,
    "lowest": order.falls_below,
    "running_largest": order.does_not_follow,
    "running_smallest": order.does_not_precede,
    "search_left": order.precedes,
    "search_right": order.does_not_follow,
    "cumsum": ieee.ADD,
    "cumprod": ieee.MUL,
    "prod": ieee.MUL,
    "rest": ieee.ADD,
    # "spread" only broadcasts; width 5 carries a 4-component logsumexp and its exponent.
    "spread": dict.fromkeys((1, 2, 3, 4, 5), ieee.ADD[1]),
}


@dataclasses.dataclass(frozen=True)
class Narrow:
    """The storage of x and running results that are narrower in memory than in registers.

    Products ("prod") are stored as in a task without narrowing.

    Args:
        format: the format of the stored components.
        count: how many components a stored number has.
        enter: converts stored components to those of the task.
        leave: rounds the task's components to stored ones.
    """

    format: Format
    count: int
    enter: Algorithm
    leave: Algorithm


_OWN_KEYS = frozenset({"running_largest", "running_smallest"})


def along(shape: Sequence[int], dim: int) -> tuple[int, int]:
    """Return the length of rows along a dimension, and the distance between their elements.

    Raises:
        IndexError: if the shape has no such dimension.
    """
    n = len(shape)
    if not -n <= dim < n:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})"
        )
    return shape[dim], math.prod(shape[dim % n + 1 :])


@dataclasses.dataclass(frozen=True)
class RowTask:
    """A task on rows and its options.

    Args:
        name: the name of the task.
        terms: the number of components of keys, or of running results.
        moved: the number of components of x.
        options: whole numbers, 0 or larger.
        inner: the stride between neighbours in a row, in elements.
        narrow: the storage format if it differs from that of the computation.
        format: the format of x in "sort", "highest", "lowest" and running extremes, which only copy
            x.
        keys: the format of the keys of "highest" and "lowest", and of running extremes on arbitrary
            pairs.
    """

    name: str
    terms: int
    moved: int = 0
    options: tuple[int, ...] = ()
    inner: int = 1
    narrow: Narrow | None = None
    format: Format = FP64
    keys: Format = FP64

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that compares or combines two expansions."""
        return _ALGORITHMS[self.name][self.terms]

    @property
    def key(self) -> Algorithm | None:
        """The algorithm that makes keys canonical, if the task does it itself; None otherwise.

        Narrow keys become float64 numbers, as in `mcf.kernels.ordering`.
        """
        if self.keys != FP64:
            return order.summed
        return distill(2, 2) if self.name in _OWN_KEYS and self.terms == 2 else None

    @property
    def formats(self) -> list[Format]:
        """The formats of the tensors of a task that moves numbers by keys (FP64 for indices)."""
        moved = [self.format] * self.moved
        return [FP64, *moved, *[self.keys] * self.terms, *moved]

    @property
    def network(self) -> Algorithm | None:
        """The algorithm that determines the result of "cumsum" for finite input; None otherwise."""
        return sums.SUM[self.terms] if self.name == "cumsum" else None
