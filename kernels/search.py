"""Binary search in sorted rows, as kernels of STEPS steps each.

To count how many of n elements precede a number, a step tests the last of the first half = n - n //
2 elements. If it precedes, they all do. Either way n // 2 elements are left, some of which may be
known to follow (Knuth, The Art of Computer Programming 3, 6.2.1). So all numbers take the same
number of steps, and the tested elements depend only on where the rest begins.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms.order import DOES_NOT_FOLLOW, PRECEDES
from mcf.kernels.algorithms.primitives import ONE, gather, long, rn, where, whole
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP64
from mcf.kernels.row_tasks import RowTask
from mcf.kernels.statements import recorded

# Steps of one kernel; kernels of one step do the remaining steps.
STEPS = 4

_NO_SCALARS = torch.zeros(1, 0, dtype=torch.float64, device="cpu")


@functools.cache
def kernel(terms: int, right: bool, steps: int) -> Elementwise:
    """Return the kernel of some steps of a search among canonical expansions, in float64.

    Its fields are the start of the remaining range after and before the steps, and the components
    of the number. As tables they are the lengths of the first halves and the components of the
    rows.
    """
    wanted, there = ([f"{c}{k}" for k in range(terms)] for c in "ws")
    goes_on = (DOES_NOT_FOLLOW if right else PRECEDES)[terms]

    def form(low: Any, w: Any, halves: Any, *rows: Any) -> Any:
        origin = long(low) - long(low)
        for k in range(steps):
            half = gather(halves, origin + whole(k))
            at = long(rn(rn(low + half) - ONE))
            low = where(goes_on(tuple(gather(row, at) for row in rows), w), rn(low + half), low)
        return (low,)

    name = f"search_{'right' if right else 'left'}_{terms}_{steps}"
    arguments = {"low": 0, "w": terms, "halves": 0, **dict.fromkeys(there, 0)}
    function = recorded(name, form, arguments, "Some steps of a binary search.")
    return Elementwise(
        name=name,
        function=function,
        results=("r",),
        fields=(
            Field("r", FP64, read=False, written=True),
            Field("low", FP64),
            *(Field(w, FP64) for w in wanted),
            *(Field(t, FP64, uniform=True, table=True) for t in ("halves", *there)),
        ),
        stores=(("r", "r"),),
        arithmetic=FP64,
        roundings=(("rc", FP64),),
        groups=(("w", tuple(wanted)),),
        rounded=("r",),
        long=True,
    )


def places(
    sequence: Sequence[Tensor], wanted: Sequence[Tensor], start: Tensor, right: bool
) -> Tensor:
    """Return the positions of numbers in sorted rows: before the first element not preceding them.

    Args:
        sequence: canonical components, contiguous float64 [rows, size].
        wanted: as many canonical components, contiguous float64 [count].
        start: float64 [count], the number of the first element of each one's row.
        right: whether equal numbers precede.

    Returns:
        Numbers of elements, from `start` to `start` + size, float64 [count].
    """
    left, halves = sequence[0].shape[-1], []
    while left:
        halves.append(float(left - left // 2))
        left //= 2
    if not wanted[0].numel():
        return start
    table = torch.tensor(halves, dtype=torch.float64, device=start.device)
    done = 0
    while done < len(halves):
        steps = STEPS if len(halves) - done >= STEPS else 1
        spec = kernel(len(wanted), right, steps)
        moved = torch.empty_like(start)
        tables = [table[done : done + steps].contiguous(), *sequence]
        registry.run(spec, [[moved, start, *wanted, *tables]], _NO_SCALARS)
        start, done = moved, done + steps
    return start


# Numbers that one thread searches for at a time.
PIECE = 1 << 12


# Steps whose elements are copied into a table when searching for many numbers: 64 KB, which fit the
# cache.
DEPTH = 12


def _levels(sequence: Tensor, depth: int) -> Tensor:
    """Return the elements that the first steps of a search may test, step after step."""
    starts, left = torch.zeros(1, dtype=torch.int64, device=sequence.device), sequence.numel()
    found = []
    for _ in range(depth):
        half = left - left // 2
        found.append(sequence[starts + (half - 1)])
        starts = torch.stack([starts, starts + half], 1).view(-1)
        left //= 2
    return torch.cat(found)


def _by_loop(sequence: list[Tensor], wanted: list[Tensor], right: bool) -> Tensor | None:
    """Search one sequence with an executor's loop; return None if it has none."""
    size, count = sequence[0].numel(), wanted[0].numel()
    out = torch.empty(wanted[0].shape, dtype=torch.int64, device=wanted[0].device)
    keys = [c.to(torch.float64).contiguous() for c in (*sequence, *wanted)]
    depth = 0
    if len(wanted) == 1 and size >= PIECE and count >= 4 * PIECE:
        depth = DEPTH
        keys.append(_levels(keys[0], depth))
    task = RowTask(f"search_{'right' if right else 'left'}", len(wanted), 0, (size, count, depth))
    done = registry.rows(task, (-(-count // PIECE), PIECE), [out, *keys])
    return out if done else None


def _places(sequence: list[Tensor], wanted: list[Tensor], right: bool) -> Tensor:
    first, size = wanted[0], sequence[0].shape[-1]
    if sequence[0].dim() == 1 and first.numel():
        found = _by_loop(sequence, wanted, right)
        if found is not None:
            return found
    if sequence[0].dim() == 1 or not first.numel():
        start = first.new_zeros(first.numel(), dtype=torch.float64)
    else:
        rows = torch.arange(first.numel() // first.shape[-1], device=first.device)
        start = (rows * size).to(torch.float64).repeat_interleave(first.shape[-1])
    rows_of = [c.to(torch.float64).contiguous() for c in sequence]
    flat = [c.to(torch.float64).contiguous().view(-1) for c in wanted]
    return (places(rows_of, flat, start, right) - start).to(torch.int64).view(first.shape)


_library = torch.library.Library("mcf", "FRAGMENT")
_library.define("search(Tensor[] sequence, Tensor[] wanted, bool right) -> Tensor")
_library.impl("search", _places, "CompositeExplicitAutograd")
torch.library.register_fake(
    "mcf::search",
    lambda sequence, wanted, right: torch.empty(
        wanted[0].shape, dtype=torch.int64, device=wanted[0].device
    ),
    lib=_library,
)


def search(sequence: Sequence[Tensor], wanted: Sequence[Tensor], right: bool) -> Tensor:
    """Count the elements of sorted rows that precede each number; NaN is the largest.

    Args:
        sequence: canonical components [..., size] of any format, or [size] for all.
        wanted: as many of that format [..., count].
        right: whether equal numbers count.

    Returns:
        int64, in the shape of `wanted`.
    """
    result: Tensor = torch.ops.mcf.search(list(sequence), list(wanted), right)
    return result
