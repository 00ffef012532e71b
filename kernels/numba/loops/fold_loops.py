"""Folds on the CPU: loops over lanes that vectorise, and items shared by threads.

The loops are functions over `mcf.kernels.numba.compile.language`; an expansion is a partial sum.
Rows of `fold_columns` are columns of matrices, adjacent in memory, or short contiguous rows. In a
matrix no wider than a tile, several elements of all columns are contiguous, and so are their lanes.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.fold import BLOCK, CHUNK, GROUP, LANES, STEP, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.loop import Loop, smaller
from mcf.kernels.numba.runtime import team

# Rows and columns of a matrix product per item: GROUP rows of the right matrix stay in the
# first-level cache while the item's rows pass over them.
ROWS, COLUMNS = 32, 128
# Columns per tile of a fold of columns, whose lanes stay in the second-level cache.
TILE = 32
# Prefetch distance in elements of a column.
AWAY = 2

# Operands, which do not overlap: lanes that a step writes and others that it reads, and those of
# the fold.
LANE, PEEK, FIRST, SECOND = range(4)


def term_of_one(bases, at, other):
    """Return the term of an element of one operand."""
    return term(load(FIRST, bases, at))


def term_of_two(bases, at, other):
    """Return the term of an element of each of two operands."""
    return term(load(FIRST, bases[:LEFT], at), load(SECOND, bases[LEFT:], other))


def tree(bases, at, other, apart, further):
    """Return the sum of the terms of GROUP elements, at distances in both operands."""
    left = merge(term_at(bases, at, other), term_at(bases, at + apart, other + further))
    third = term_at(bases, at + 2 * apart, other + 2 * further)
    return merge(left, merge(third, term_at(bases, at + 3 * apart, other + 3 * further)))


def first_tree(j, lanes, to, bases, at, along, other, beside, apart, further):
    """Begin a lane with a tree; the operands advance by `along` and `beside` from lane to lane."""
    store(LANE, lanes, to + j, tree(bases, at + j * along, other + j * beside, apart, further))


def next_tree(j, lanes, to, bases, at, along, other, beside, apart, further):
    """Add a tree to a lane."""
    found = tree(bases, at + j * along, other + j * beside, apart, further)
    store(LANE, lanes, to + j, combine(load(LANE, lanes, to + j), found))


def first_term(j, lanes, to, bases, at, along, other, beside):
    """Begin a lane with a term."""
    store(LANE, lanes, to + j, term_at(bases, at + j * along, other + j * beside))


def next_term(j, lanes, to, bases, at, along, other, beside):
    """Add a term to a lane."""
    found = term_at(bases, at + j * along, other + j * beside)
    store(LANE, lanes, to + j, combine(load(LANE, lanes, to + j), found))


def halved(j, lanes, to, other):
    """Add another lane to a lane."""
    found = combine(load(LANE, lanes, to + j), load(PEEK, lanes, other + j))
    store(LANE, lanes, to + j, found)


def written(j, out, to, lanes):
    """Write a result."""
    store(LANE, out, to + j, load(PEEK, lanes, j))


def is_outside(bases, start, stop, least, most):
    """Return whether a number of float64 components other than 0 is out of a range."""
    found = 0
    for i in range(start, stop):
        # Without branches, so that the loop vectorises.
        for c in range(LEFT):
            x = number(bases[c], i) & 0x7FFFFFFFFFFFFFFF
            found |= (x != 0) & ((x < least) | (x > most))
    return found


def fold_rows(
    item, workspace, bases, out, total, blocks, items, step, outside, least, most
):  # fmt: skip
    """Fold a block of a row. Its range is checked before, while it is loaded into the cache.

    `step` is STEP, hidden from LLVM, which would unroll the loop over it before vectorising. Where
    CHECKED, `outside` has one flag per item, set if a magnitude of the first operand other than 0
    is out of the range of `least` and `most`, as bit patterns of float64.
    """
    bases = stored_words(bases, 0)
    lanes = spaced(workspace, LANES)
    row = item // blocks
    start = row * total + item % blocks * BLOCK
    stop = min(start + BLOCK, (row + 1) * total)
    count = min(stop - start, LANES)
    if CHECKED:
        put(outside, item, is_outside(bases, start, stop, least, most))
    # An operand with one element per row is read at the row's index.
    beside, further = (0, 0) if FIXED else (1, STEP)
    if start + CHUNK <= stop:
        for t in range(0, LANES, STEP):
            at = start + t * GROUP
            other = row if FIXED else at
            over_one(0, step, first_tree, (lanes, t, bases, at, 1, other, beside, STEP, further))
        start += CHUNK
        while start + CHUNK <= stop:
            for t in range(0, LANES, STEP):
                at = start + t * GROUP
                other = row if FIXED else at
                over_one(0, step, next_tree, (lanes, t, bases, at, 1, other, beside, STEP, further))
            start += CHUNK
    else:
        over(0, count, first_term, (lanes, 0, bases, start, 1, row if FIXED else start, beside))
        start += LANES
    while start < stop:
        length = min(LANES, stop - start)
        over(0, length, next_term, (lanes, 0, bases, start, 1, row if FIXED else start, beside))
        start += LANES
    while count > 1:
        half = (count + 1) // 2
        over_one(0, count - half, halved, (lanes, 0, half))
        count = half
    store(LANE, spaced(out, items), item, load(LANE, lanes, 0))


def fold_products(item, bases, out, rows, inner, columns, stride, down, across):
    """Fold the inner dimension of a block of at most ROWS times COLUMNS results of one matrix.

    Lanes are the results themselves. Items advance along rows first, so that threads work on
    different rows: a thread that prefetches beyond its block would otherwise take lines from
    another.
    """
    bases, lanes = stored_words(bases, 0), spaced(out, stride)
    matrix = item // down // across
    left = item % across * COLUMNS
    last = min(left + COLUMNS, columns)
    top = item // across % down * ROWS
    bottom = matrix * rows + min(top + ROWS, rows)
    top += matrix * rows
    k = 0
    while k + GROUP <= inner:
        other = (matrix * inner + k) * columns
        if k == 0:
            for i in range(top, bottom):
                arguments = (lanes, i * columns, bases, i * inner, 0, other, 1, 1, columns)
                over(left, last, first_tree, arguments)
        else:
            for i in range(top, bottom):
                arguments = (lanes, i * columns, bases, i * inner + k, 0, other, 1, 1, columns)
                over(left, last, next_tree, arguments)
        k += GROUP
    while k < inner:
        other = (matrix * inner + k) * columns
        if k == 0:
            for i in range(top, bottom):
                over(left, last, first_term, (lanes, i * columns, bases, i * inner, 0, other, 1))
        else:
            for i in range(top, bottom):
                arguments = (lanes, i * columns, bases, i * inner + k, 0, other, 1)
                over(left, last, next_term, arguments)
        k += 1


def ask(bases, at):
    """Load the elements of a tile's columns into the cache, and a line more for unaligned ones."""
    for j in range(0, TILE + 1, 8 << SMALLER):
        prefetch(bases[:MOVING], (at + j) >> SMALLER)


def fold_columns(
    item, workspace, bases, out, total, inner, blocks, tiles, results, wide, far
):  # fmt: skip
    """Fold a block of a tile of columns, or of short rows whose elements are `far` apart.

    An operand with one element per row has a tile's elements adjacent in memory, with copies for
    STEP elements of a narrow matrix.
    """
    # Compiled apart: inlined in the loop over items it takes a tenth longer.
    prefer_wide_vectors()
    bases = stored_words(bases, 0)
    narrow = tiles == 1 and not SHORT
    along = far if SHORT else 1
    tile = wide if narrow else TILE
    lanes = spaced(workspace, LANES * TILE)
    column = item % tiles * TILE
    block, outer = item // tiles % blocks, item // tiles // blocks
    width = min(TILE, wide - column)
    length = min(BLOCK, total - block * BLOCK)
    start = (outer * total + block * BLOCK) * inner + column * far
    own = outer * STEP * wide if narrow else outer * wide + column
    at, apart, fresh = 0, STEP * inner, True
    while at + CHUNK <= length and not SHORT:
        span = STEP if narrow else 1
        for t in range(0, LANES, STEP):
            for j in range(0, STEP, span):
                here, to = start + (at + t * GROUP + j) * inner, (t + j) * tile
                other, further = (own, 0) if FIXED else (here, apart)
                if span == 1:
                    for r in range(GROUP):
                        ask(bases, here + r * apart + AWAY * inner)
                arguments = (lanes, to, bases, here, 1, other, 1, apart, further)
                if fresh:
                    over(0, width * span, first_tree, arguments)
                else:
                    over(0, width * span, next_tree, arguments)
        at += CHUNK
        fresh = False
    while at < length:
        some = min(LANES, length - at)
        span = (STEP if FIXED else some) if narrow else 1
        for j in range(0, some, span):
            here, to = start + (at + j) * inner, j * tile
            if span == 1 and not SHORT:
                ask(bases, here + AWAY * inner)
            arguments = (lanes, to, bases, here, along, own if FIXED else here, 1)
            if fresh:
                over(0, width * min(span, some - j), first_term, arguments)
            else:
                over(0, width * min(span, some - j), next_term, arguments)
        at += some
        fresh = False
    count = min(length, LANES)
    while count > 1:
        half = (count + 1) // 2
        # Lanes outside these columns are unused; adding them does no harm.
        over_one(0, (count - half) * tile, halved, (lanes, 0, half * tile))
        count = half
    to = block * results + outer * wide + column
    over(0, width, written, (spaced(out, blocks * results), to, lanes))


def halve_rows(data):
    """Add the second half of rows of [state, rows, columns] to the first.

    A call computes `count - half` rows. An odd row in the middle stays.
    """
    prefer_wide_vectors()
    rows, columns, count, half = number(data, 1), number(data, 2), number(data, 3), number(data, 4)
    lanes = spaced(word(data, 0), rows * columns)
    for row in range(count - half):
        over(0, columns, halved, (lanes, row * columns, (half + row) * columns))


_KERNELS = {
    "sum": fold_rows,
    "within": fold_rows,
    "product": fold_products,
    "columns": fold_columns,
    "short": fold_columns,
    "halving": halve_rows,
}


@functools.cache
def _loop(spec: Fold, kind: str) -> Loop:
    """Return the kernel `kind`, a key of `_KERNELS`."""
    register, (left, *others) = spec.register, spec.components
    lanes = register, register, spec.state
    operands = zip(spec.formats, spec.components, strict=True)
    given = [lanes, lanes, *((fmt, register, count) for fmt, count in operands)]
    names: dict[str, Any] = {"term_at": term_of_two if others else term_of_one}
    names |= {"COUNT": sum(spec.components), "LEFT": left, "FIXED": spec.fixed > 0}
    names |= {"MOVING": left if spec.fixed else left + sum(others)}
    names |= {"SMALLER": smaller(spec.formats[0])}
    names |= {"CHECKED": kind == "within", "SHORT": kind == "short"}
    # Constants of other files count in the key.
    names |= {"BLOCK": BLOCK, "CHUNK": CHUNK, "GROUP": GROUP, "LANES": LANES, "STEP": STEP}
    algorithms = {"term": spec.term, "merge": spec.merge, "combine": spec.combine}
    return Loop(
        _KERNELS[kind], spec.state, given, algorithms, names,
        format=register, whole=kind == "halving",
    )  # fmt: skip


@functools.cache
def compiled(spec: Fold, kind: str) -> objects.Native:
    """Return the compiled kernel `kind`, a key of `_KERNELS`."""
    return _loop(spec, kind).native()


def fields(spec: Fold, kind: str, words: Mapping[str, int]) -> dict[str, int]:
    """Return the fields of a kernel after the head of its struct; 0 for those not in `words`."""
    return {name: words.get(name, 0) for name in _loop(spec, kind).fields}


def workspace(spec: Fold, kind: str) -> int:
    """Return the 64-bit entries of workspace per thread."""
    if kind == "product":
        return 0
    lanes = LANES if kind in ("sum", "within") else LANES * TILE
    return spec.state * lanes * int(spec.register.itemsize) // 8


def _run(
    spec: Fold, kind: str, x: list[Tensor], items: int, size: int, words: dict[str, int]
) -> None:
    """Call a kernel for operands; `size` is the number of elements."""
    bases = array("Q", [c.data_ptr() for c in x])
    words |= {"bases": bases.buffer_info()[0]}
    with stored.lock:
        address = compiled(spec, kind).address
    given = fields(spec, kind, words).values()
    team.call(address, items, size, given, workspace(spec, kind))


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """Fold rows, see `mcf.kernels.executor.Executor`."""
    components = [c for operand in operands for c in operand]
    outer, total = components[0].shape
    if _are_short(spec, outer, total):
        return _side_by_side(spec, "short", components, total, outer, 1, total)[:, 0]
    return _of_blocks(spec, "sum", components, {})


def fold_within(
    spec: Fold, operands: list[list[Tensor]], least: float, most: float
) -> tuple[Tensor, bool] | None:
    """Fold rows with a check of their range, see `mcf.kernels.executor.Executor`."""
    components = [c for operand in operands for c in operand]
    outer, total = components[0].shape
    narrow = spec.formats[0] != FP64 or spec.register != FP64
    if narrow or outer * total < _MANY or _are_short(spec, outer, total):
        return None
    outside = array("q", bytes(_WORD * outer * -(-total // BLOCK)))
    words = {"outside": outside.buffer_info()[0], **limits(least, most)}
    found = _of_blocks(spec, "within", components, words)
    return found, not any(outside)


def limits(least: float, most: float) -> dict[str, int]:
    """Return the fields of a range of magnitudes, which are ordered as their bit patterns."""
    low, high = struct.unpack("=qq", struct.pack("=dd", least, most))
    return {"least": low, "most": high}


def _are_short(spec: Fold, rows: int, length: int) -> bool:
    return length <= _SHORT and rows * length >= _MANY and spec.register == FP64


def _of_blocks(spec: Fold, kind: str, components: list[Tensor], more: dict[str, int]) -> Tensor:
    """Return the partial sums of rows by kernel `kind`; `more` extends its argument struct."""
    outer, total = components[0].shape
    blocks = -(-total // BLOCK)
    items = outer * blocks
    out = torch.empty((spec.state, items), dtype=spec.register.dtype, device="cpu")
    words = {"out": out.data_ptr(), "total": total, "blocks": blocks, "items": items, "step": STEP}
    _run(spec, kind, components, items, outer * total, words | more)
    if blocks == 1:
        return out
    # Blocks by row, then rows: halving then runs over contiguous rows.
    by_row = out.reshape(-1, outer, blocks).transpose(1, 2).contiguous()
    return _halve(spec, by_row).reshape(spec.state, outer)


# Smallest number of elements for a separate loop; greatest length of short rows.
_MANY, _SHORT = 1 << 15, 24


def deviations(
    spec: Fold, x: list[Tensor], centre: list[Tensor], count: int, inner: int
) -> Tensor | None:
    """Fold deviations, see `mcf.kernels.executor.Executor.fold_deviations`."""
    if inner == 1:
        return fold(spec, [[c.view(-1, count) for c in x], centre])
    if inner <= TILE:
        # Adjacent, like the elements of a narrow matrix that are folded together.
        centre = [c.view(-1, 1, inner).expand(-1, STEP, inner).contiguous() for c in centre]
    return columns(spec, [*x, *centre], count, inner)


def columns(spec: Fold, x: list[Tensor], count: int, inner: int) -> Tensor | None:
    """Fold columns in float64 registers, see `mcf.kernels.executor.Executor.fold_columns`."""
    if x[0].numel() < _MANY or spec.register != FP64:
        return None
    out = _side_by_side(spec, "columns", x, count, inner, inner, 1)
    return out[:, 0] if out.shape[1] == 1 else _halve(spec, out)


def _side_by_side(
    spec: Fold, kind: str, x: list[Tensor], count: int, wide: int, inner: int, far: int
) -> Tensor:
    """Return the partial sums of all blocks of rows, float64 [state, blocks, rows].

    Args:
        spec: the fold.
        kind: its kernel, "columns" or "short".
        x: components.
        count: elements of a row.
        wide: number of adjacent rows.
        inner: stride of the elements of a row.
        far: stride of the rows.
    """
    size = x[0].numel()
    results, blocks = size // count, -(-count // BLOCK)
    tiles = -(-wide // TILE)
    items = results // wide * blocks * tiles
    out = torch.empty((spec.state, blocks, results), dtype=torch.float64, device="cpu")
    words = {"out": out.data_ptr(), "total": count, "inner": inner, "blocks": blocks}
    words |= {"tiles": tiles, "results": results, "wide": wide, "far": far}
    _run(spec, kind, x, items, size, words)
    return out


_WORD = 8


def product_sizes(batch: int, rows: int, inner: int, columns: int) -> tuple[int, dict[str, int]]:
    """Return items and sizes of a product of [batch, rows, inner] by [batch, inner, columns]."""
    down, across = -(-rows // ROWS), -(-columns // COLUMNS)
    words = {"rows": rows, "inner": inner, "columns": columns, "down": down, "across": across}
    words |= {"stride": batch * rows * columns}
    return batch * across * down, words


def _halve(spec: Fold, state: Tensor) -> Tensor:
    """Halve [state, count, M] along the middle, in place."""
    _, rows, columns = state.shape
    with stored.lock:
        address = compiled(spec, "halving").address
    count = rows
    while count > 1:
        half = (count + 1) // 2
        table = array("Q", [state.data_ptr(), rows, columns, count, half])
        team.run(address, table.buffer_info()[0], 1)
        count = half
    return state[:, 0]


def product(spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Multiply matrices, see `mcf.kernels.executor.Executor`."""
    batch, rows, inner = left[0].shape
    columns = right[0].shape[2]
    out = torch.empty((spec.state, batch, rows, columns), dtype=spec.register.dtype, device="cpu")
    items, words = product_sizes(batch, rows, inner, columns)
    words |= {"out": out.data_ptr()}
    _run(spec, "product", [*left, *right], items, batch * rows * columns * inner, words)
    return out
