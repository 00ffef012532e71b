"""Order numbers of rows: keys of narrow expansions, running extremes, binary searches.

*Keys*: a sum of two numbers of 32 or 16 bits is s + e with s = RN(x0 + x1) in float64, exactly. A
larger value has a larger or equal s, and e is 0 wherever the bits of both span less than 53. So s
alone nearly always decides, as one 64-bit number. Sums of float16 are exact: its largest and
smallest bit are 40 apart.

*Searches* are kernels of STEPS steps each. To count the elements among n that precede a number, a
step tests the last of the first half = n - n // 2 elements. If it precedes, they all do. Either way
n // 2 elements are left, some of which may be known to follow (Knuth, The Art of Computer
Programming 3, 6.2.1). So all numbers take the same number of steps, and the tested elements depend
only on where the rest begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms.order import (
    does_not_follow,
    does_not_precede,
    left_over,
    precedes,
    summed,
    summed_alone,
)
from mcf.kernels.algorithms.primitives import ONE, gather, long, rn, where, whole
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FORMATS, FP16, FP64, Format
from mcf.kernels.row_tasks import RowTask
from mcf.kernels.statements import recorded
from mcf.kernels.torch.registers import primitives

_library = torch.library.Library("mcf", "FRAGMENT")

# Smaller inputs are added by PyTorch: compiling a kernel would not pay.
_MANY = 1 << 12


def limit(fmt: Format) -> float:
    """Return the smallest magnitude that rounds to infinity in a format."""
    return fmt.largest + 2.0 ** (fmt.emax - fmt.p)


# Multiplying a number beyond the limit by this gives infinity in float64.
HUGE = 2.0**1023


@functools.cache
def _key_kernel(fmt: Format, terms: int, rest: bool) -> Elementwise:
    """Return the kernel that computes sums and counts inexact ones, or (`rest`) their errors."""
    x = tuple(f"x{k}" for k in range(terms))
    exact = fmt == FP16
    return Elementwise(
        name=f"key_{'rest' if rest else 'sum'}_{terms}_{fmt.name}",
        function=summed_alone[terms] if exact else summed,
        results=("s",) if exact else ("s", "e"),
        fields=(Field("r", FP64, read=False, written=True), *(Field(c, fmt) for c in x)),
        stores=(("e" if rest else "s", "r"),),
        arithmetic=FP64,
        roundings=(("rc", FP64),),
        scalars=("limit", "huge"),
        groups=(("x", x),),
        rounded=("r",),
        sums=None if exact or rest else left_over,
        sum_count=int(not (exact or rest)),
        counts=int(not (exact or rest)),
    )


@functools.cache
def _key_scalars(fmt: Format) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor([[limit(fmt), HUGE]], dtype=torch.float64, device="cpu")


def narrow_keys(x: Sequence[Tensor]) -> list[Tensor] | None:
    """Return float64 keys in whose lexicographic order the values are; None if unsupported.

    They depend on the value alone: of a sum beyond the range they are infinity and 0.

    Args:
        x: the components of one, of a pair or of float16, in any order and of any sizes; on a CPU.

    Returns:
        One contiguous tensor, or two where the second has a number that is not 0.
    """
    first, fmt, terms = x[0], FORMATS[x[0].dtype], len(x)
    if fmt == FP64 or first.device.type != "cpu" or (terms > 2 and fmt != FP16):
        return None
    if terms == 1:
        return [first.to(torch.float64).contiguous()]
    # Triton supports no 16-bit operands together with float64 registers.
    if first.numel() < _MANY or registry.executor_for(first.device) != "numba":
        return _by_torch(x, fmt)
    parts = [c.contiguous() for c in x]
    out = torch.empty(first.shape, dtype=torch.float64, device=first.device)
    counted = registry.run(_key_kernel(fmt, terms, False), [[out, *parts]], _key_scalars(fmt))
    if counted is None or counted.item() == 0:
        return [out]
    rest = torch.empty_like(out)
    registry.run(_key_kernel(fmt, terms, True), [[rest, *parts]], _key_scalars(fmt))
    return [out, rest]


def _by_torch(x: Sequence[Tensor], fmt: Format) -> list[Tensor]:
    """Compute `narrow_keys` with PyTorch operations."""
    first, *others = (c.to(torch.float64).contiguous() for c in x)
    s = first
    for c in others:
        s = s + c
    inside = s.abs() < limit(fmt)
    keys = [torch.where(inside, s, s * HUGE)]
    if fmt != FP16:
        t = s - first
        e = torch.where(inside, (first - (s - t)) + (others[0] - t), 0.0)
        if bool(e.any()):
            keys.append(e)
    return keys


@functools.cache
def _bound(terms: int, largest: bool) -> Callable[[Any, Any], Tensor]:
    bind = Binder(lambda f: f, primitives(FP64, FP64, {"rc": FP64}))
    function: Callable[[Any, Any], Tensor] = bind(
        (does_not_follow if largest else does_not_precede)[terms]
    )
    return function


def _doubling(keys: Sequence[Tensor], largest: bool) -> Tensor:
    """Return the indices in log2(count) steps; a step of width k covers 2 k elements."""
    rows, count = keys[0].shape
    wins = _bound(len(keys), largest)
    index = torch.arange(count, device=keys[0].device).expand(rows, count)
    width = 1
    while width < count:
        before, after = index[:, : count - width], index[:, width:]
        u, v = (tuple(k.gather(1, at) for k in keys) for at in (before, after))
        later = torch.where(wins(u, v), after, before)
        index = torch.cat([index[:, :width], later], 1)
        width *= 2
    return index.contiguous()


def _extremes(keys: list[Tensor], largest: bool) -> Tensor:
    # Use the sums of narrow pairs as keys: a first component alone would not decide the order.
    sums = narrow_keys(keys) if len(keys) == 2 else None
    given = [k.to(torch.float64).contiguous() for k in keys] if sums is None else sums
    if not given[0].numel():
        return torch.empty(given[0].shape, dtype=torch.int64, device=given[0].device)
    index = torch.empty(given[0].shape, dtype=torch.int64, device=given[0].device)
    task = RowTask("running_largest" if largest else "running_smallest", len(given))
    rows, count = index.shape
    if registry.rows(task, (rows, count), [index, *given]):
        return index
    return _doubling(given, largest)


_library.define("running_extremes(Tensor[] keys, bool largest) -> Tensor")
_library.impl("running_extremes", _extremes, "CompositeExplicitAutograd")
torch.library.register_fake(
    "mcf::running_extremes",
    lambda keys, largest: torch.empty(keys[0].shape, dtype=torch.int64, device=keys[0].device),
    lib=_library,
)


def running_extremes(keys: Sequence[Tensor], largest: bool) -> Tensor:
    """Return the index of the largest or smallest element so far, the last if equal; NaN stays.

    Args:
        keys: canonical components [rows, count] of any format.
        largest: whether to return the largest element.

    Returns:
        int64 [rows, count].
    """
    result: Tensor = torch.ops.mcf.running_extremes(list(keys), largest)
    return result


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
    goes_on = (does_not_follow if right else precedes)[terms]

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
