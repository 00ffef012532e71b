"""Loops of eliminations, see `mcf.kernels.elimination`, for one matrix or a block of them an item.

Row k of a panel in the workspace is column k of the matrix, so that a step is a loop over a row.
Rows are padded to whole vectors: the numbers after a row take part and are ignored. The `row` has
the factors of a step, in memory that the loop over the other rows does not write.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.elimination import Elimination
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.loops.matrices.folds import matrix_of, read_number, write_number
from mcf.kernels.numba.loops.matrices.matrix_loop import Call, across, addresses, matrices, wide

# Columns of a substitution per item: with 32 rows they stay in the first-level cache.
TILE = 64
# Greatest number of rows and columns of matrices across lanes.
MOST = 8


def divide_row(c, panel, row, start, divisor):
    """Divide a number of a row, and keep it as a factor."""
    quotient_of_row = quotient(panel[start + c], divisor)
    panel[start + c] = quotient_of_row
    row[c] = quotient_of_row


def keep_row(c, panel, row, start):
    """Keep a number of a row as a factor."""
    row[c] = panel[start + c]


def update_row(c, panel, row, start, multiple):
    """Subtract a multiple of the kept row from another."""
    panel[start + c] = update(panel[start + c], multiple, row[c])


def cholesky(
    item, matrix, info, panel, row, first, batch, rows, columns, start, width, length
):  # fmt: skip
    """Factorise the square block on the diagonal; its upper triangle is copied unchanged."""
    for lane in range(LANES):
        which = matrix_of(item, lane, batch)
        base = which * rows * columns + start * (columns + 1)
        first[0, lane] = (REAL(info[which]),)
        for i in range(width):
            arguments = (panel, i, length, lane, matrix, base + i * columns, 1)
            one_by_one(0, width, read_number, arguments)
    for j in range(width):
        column = j * length
        d = panel[column + j]
        first[0] = first_bad(first[0], d, REAL(start + j + 1))
        h = head(d)
        panel[column + j] = h
        over_padded(j + 1, width, divide_row, (panel, row, column, h))
        for k in range(j + 1, width):
            over_padded(k, width, update_row, (panel, row, k * length, panel[column + k]))
    for lane in range(LANES):
        which = matrix_of(item, lane, batch)
        base = which * rows * columns + start * (columns + 1)
        info[which] = int(first[0, lane][0])
        for i in range(width):
            arguments = (matrix, base + i * columns, 1, panel, i, length, lane)
            one_by_one(0, width, write_number, arguments)


def lu(
    item, matrix, sides, determinants, info, pivots, panel, right, row, first, odd, found,
    batch, rows, columns, start, width, length, count, exchange, many, side, wanted,
):  # fmt: skip
    """Factorise a panel, exchange the rows of all columns, solve, and compute determinants."""
    height = rows - start
    for lane in range(LANES):
        which = matrix_of(item, lane, batch)
        base = which * rows * columns + start * (columns + 1)
        first[0, lane], odd[0, lane] = (REAL(info[which]),), (REAL(0),)
        for i in range(height):
            arguments = (panel, i, length, lane, matrix, base + i * columns, 1)
            each(0, width, read_number, arguments)
        for j in range(width if many > 0 else 0):
            arguments = (right, j * side, 1, lane, sides, (which * width + j) * many, 1)
            each(0, many, read_number, arguments)
    for j in range(width):
        column = j * length
        if exchange:
            if ACROSS:
                exchange_across(
                    item, j, panel, right, odd, found, pivots, batch, height, width, length, count,
                    many, side,
                )  # fmt: skip
            else:
                exchange_rows(
                    item, j, matrix, panel, right, odd, pivots, rows, columns, start, width,
                    length, count, many, side,
                )  # fmt: skip
        d = panel[column + j]
        first[0] = first_bad(first[0], d, REAL(start + j + 1))
        if j + 1 < height:
            over_padded(j + 1, height, divide_row, (panel, row, column, head(d)))
            for k in range(j + 1, width):
                arguments = (panel, row, k * length, panel[k * length + j])
                over_padded(j + 1, height, update_row, arguments)
    if many > 0:
        solve_rows(panel, 0, 1, length, right, row, side, many, width, 1, 0)
        solve_rows(panel, 0, 1, length, right, row, side, many, width, 0, 1)
    if wanted:
        multiply_diagonal(panel, row, odd, width, length)
    for lane in range(LANES):
        which = matrix_of(item, lane, batch)
        base = which * rows * columns + start * (columns + 1)
        info[which] = int(first[0, lane][0])
        for i in range(height):
            arguments = (matrix, base + i * columns, 1, panel, i, length, lane)
            each(0, width, write_number, arguments)
        for j in range(width if many > 0 else 0):
            arguments = (sides, (which * width + j) * many, 1, right, j * side, 1, lane)
            each(0, many, write_number, arguments)
        if wanted:
            determinants[which] = row[0, lane]


def exchange_rows(
    item, j, matrix, panel, right, odd, pivots, rows, columns, start, width, length, count, many,
    side,
):  # fmt: skip
    """Move the first of the largest to the diagonal, and exchange the rows of A outside."""
    largest, found = magnitude(panel[j * length + j]), j
    for i in range(j + 1, rows - start):
        size = magnitude(panel[j * length + i])
        # A branch is predicted well, where a selection would be a chain of dependent steps.
        if size > largest or (size != size and largest == largest):
            largest, found = size, i
    pivots[item * count + start + j] = start + found + 1
    if found != j:
        odd[0] = (REAL(1) - odd[0][0],)
        for k in range(width):
            swap(panel, k * length + j, k * length + found)
        for c in range(many):
            swap(right, j * side + c, found * side + c)
        here = (item * rows + start + j) * columns
        there = (item * rows + start + found) * columns
        for k in range(start):
            swap(matrix, here + k, there + k)
        for k in range(start + width, columns):
            swap(matrix, here + k, there + k)


def swap(operand, i, j):
    """Exchange two numbers."""
    one, other = operand[i], operand[j]
    operand[i], operand[j] = other, one


def exchange_across(
    item, j, panel, right, odd, found, pivots, batch, height, width, length, count, many, side,
):  # fmt: skip
    """Exchange as `exchange_rows`: each lane has a pivot of its own, so that all rows are read."""
    largest, index = (magnitude(panel[j * length + j]),), alike(odd[0], (REAL(j),))
    for i in range(j + 1, height):
        size = (magnitude(panel[j * length + i]),)
        more = larger(size, largest)
        largest, index = chosen_one(more, size, largest), chosen_one(more, (REAL(i),), index)
    found[0], odd[0] = index, toggled(odd[0], index, REAL(j))
    for lane in range(LANES):
        pivots[matrix_of(item, lane, batch) * count + j] = int(found[0, lane][0]) + 1
    for k in range(width):
        select_row(j, panel, index, k * length, 1, height)
    for c in range(many):
        select_row(j, right, index, c, side, width)


def select_row(j, operand, index, base, stride, rows):
    """Exchange number j of a column with the one that each lane chose."""
    above = operand[base + j * stride]
    top = above
    for i in range(j + 1, rows):
        other = operand[base + i * stride]
        here = equals(index, REAL(i))
        operand[base + i * stride] = chosen(here, above, other)
        top = chosen(here, other, top)
    operand[base + j * stride] = top


def solve_rows(
    triangle, first, down, along, right, row, side, many, width, unit, upper
):  # fmt: skip
    """Substitute in rows of right-hand sides; `down` and `along` are strides of the triangle."""
    for step in range(width):
        j = width - 1 - step if upper else step
        if unit:
            over_padded(0, many, keep_row, (right, row, j * side))
        else:
            over_padded(
                0, many, divide_row, (right, row, j * side, triangle[first + j * (down + along)])
            )
        for k in range(0 if upper else j + 1, j if upper else width):
            multiple = triangle[first + k * down + j * along]
            over_padded(0, many, update_row, (right, row, k * side, multiple))


def multiply_diagonal(panel, row, odd, width, length):
    """Multiply the diagonal of U by halves, with the sign of the exchanges."""
    for j in range(width):
        row[j] = panel[j * length + j]
    row[0] = signed(odd[0], row[0])
    left = width
    while left > 1:
        half = left // 2
        for c in range(half):
            row[c] = product(row[c], row[left - half + c])
        left -= half


def substitution(
    item, matrix, sides, panel, right, row, batch, tiles, tile, width, columns, side, unit, upper,
    a_batch, a_row, a_column, x_batch, x_row, x_column,
):  # fmt: skip
    """Solve in place for some columns of X, with a triangle of A; both have any strides."""
    first, block = item % tiles * tile, item // tiles
    many = min(tile, columns - first)
    for lane in range(LANES):
        which = matrix_of(block, lane, batch)
        a, x = which * a_batch, which * x_batch + first * x_column
        for j in range(width):
            if ACROSS:
                arguments = (panel, j * width, 1, lane, matrix, a + j * a_row, a_column)
                each(0, width, read_number, arguments)
            arguments = (right, j * side, 1, lane, sides, x + j * x_row, x_column)
            each(0, many, read_number, arguments)
    if ACROSS:
        solve_rows(panel, 0, width, 1, right, row, side, many, width, unit, upper)
    else:
        a = block * a_batch
        solve_rows(matrix, a, a_row, a_column, right, row, side, many, width, unit, upper)
    for lane in range(LANES):
        x = matrix_of(block, lane, batch) * x_batch + first * x_column
        for j in range(width):
            arguments = (sides, x + j * x_row, x_column, right, j * side, 1, lane)
            each(0, many, write_number, arguments)


_OPERANDS = {
    "lu": ("matrix", "sides", "determinants"),
    "cholesky": ("matrix",),
    "substitution": ("matrix", "sides"),
}
_SCRATCH = {
    "lu": ("panel", "right", "row"),
    "cholesky": ("panel", "row"),
    "substitution": ("panel", "right", "row"),
}
_FLAGS = {"lu": ("first", "odd", "found"), "cholesky": ("first",), "substitution": ()}
_LOOPS = {"lu": lu, "cholesky": cholesky, "substitution": substitution}


@functools.cache
def _loop(spec: Elimination, lanes: bool) -> Loop:
    """Return the loop of an elimination."""
    kind, n = spec.kind, spec.terms
    scratch = dict.fromkeys(_SCRATCH[kind], n) | dict.fromkeys(_FLAGS[kind], 1)
    operands, tables = dict.fromkeys(_OPERANDS[kind], n), ("info", "pivots")
    return matrices(
        _LOOPS[kind], spec.format, operands, scratch, tables, spec.algorithms, {}, lanes
    )


@functools.lru_cache(1024)
def _panel(
    spec: Elimination,
    shape: torch.Size,
    start: int,
    width: int,
    exchange: bool,
    many: int,
    determinant: bool,
) -> Call:
    """Return the loop over the panels of matrices [B, m, n], and over right-hand sides."""
    batch, rows, columns = shape
    height = rows - start if spec.kind == "lu" else width
    whole = start == 0 and width == columns <= rows
    lanes = whole and across(spec.format, batch, max(rows, many), MOST)
    pad = 0 if lanes else wide(spec.format)
    length, side = height + pad, many + pad if many else 0
    integers = {"batch": batch, "rows": rows, "columns": columns, "start": start, "width": width}
    integers |= {"length": length, "exchange": int(exchange), "many": many, "side": side}
    integers |= {"wanted": int(determinant)}
    sizes = {"panel": width * length, "right": width * side, "row": max(length, side)}
    sizes |= {"first": 1, "odd": 1, "found": 1}
    items = -(-batch // wide(spec.format)) if lanes else batch
    work = batch * width * width * (height + many)
    return Call(_loop(spec, lanes), items, work, sizes, **integers)


def panel(
    spec: Elimination,
    a: Sequence[Tensor],
    start: int,
    width: int,
    info: Tensor,
    pivots: Tensor | None,
    exchange: bool,
    sides: Sequence[Tensor] | None,
    determinant: Sequence[Tensor] | None,
) -> None:
    """Factorise a panel, see `mcf.kernels.executor.Executor.eliminate`."""
    many = 0 if sides is None else sides[0].shape[2]
    call = _panel(spec, a[0].shape, start, width, exchange, many, determinant is not None)
    entries = {"matrix": addresses(a), "info": info.data_ptr()}
    if pivots is not None:
        entries |= {"sides": addresses(sides or a), "determinants": addresses(determinant or a)}
        # Number of pivots of all panels.
        entries |= {"pivots": pivots.data_ptr(), "count": pivots.shape[1]}
    call.run(**entries)


def substitute(
    spec: Elimination, a: Sequence[Tensor], x: Sequence[Tensor], upper: bool, unit: bool
) -> None:
    """Substitute, see `mcf.kernels.executor.Executor.substitute`."""
    call = _substitution(spec, x[0].shape, a[0].stride(), x[0].stride(), upper, unit)
    call.run(matrix=addresses(a), sides=addresses(x))


@functools.lru_cache(1024)
def _substitution(
    spec: Elimination,
    shape: torch.Size,
    a: tuple[int, ...],
    x: tuple[int, ...],
    upper: bool,
    unit: bool,
) -> Call:
    """Return the loop that solves for X, for a shape and the strides of A and X."""
    batch, width, columns = shape
    lanes = across(spec.format, batch, max(width, columns), MOST)
    tile = min(TILE, columns)
    tiles = -(-columns // TILE)
    side = tile + (0 if lanes else wide(spec.format))
    names = ("a_batch", "a_row", "a_column", "x_batch", "x_row", "x_column")
    integers = {"batch": batch, "width": width, "columns": columns, "tiles": tiles, "tile": tile}
    integers |= {"side": side, "unit": int(unit), "upper": int(upper)}
    integers |= dict(zip(names, (*a, *x), strict=True))
    sizes = {"panel": width * width, "right": width * side, "row": side}
    items = -(-batch // wide(spec.format)) if lanes else batch * tiles
    work = batch * width * width * columns
    return Call(_loop(spec, lanes), items, work, sizes, **integers)
