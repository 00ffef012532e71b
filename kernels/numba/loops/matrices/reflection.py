"""Loop of reflections, see `mcf.kernels.reflection`, for one panel or a block of matrices an item.

The workspace `work` has R, V and x by rows, T by columns, and columns on the right by rows; rows
are padded to whole vectors. A vectorised step reads one operand and writes another, but for the
numbers that it updates: `vectors` has v, x and a row of results. V and T keep the zeros beyond
their diagonals that the memory begins with.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.formats import FP64
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.loops.matrices.folds import (
    fold_rows,
    keep_total,
    matrix_of,
    read_number,
    write_number,
)
from mcf.kernels.numba.loops.matrices.matrix_loop import Call, across, addresses, matrices, wide
from mcf.kernels.reflection import Reflection

# Greatest number of rows and columns of matrices across lanes.
MOST = 12


def divide(c, work, vectors, row, at, divisor):
    """Divide a number of x."""
    vectors[at + c] = quotient(work[row + c], divisor)


def overlap(c, sums, vectors, at):
    """Store the conjugate of a sum."""
    vectors[at + c] = conjugate(total(sums[c]))


def scale(c, sums, vectors, at, factor):
    """Multiply a sum by a factor."""
    vectors[at + c] = product(factor, total(sums[c]))


def update_row(c, work, vectors, row, at, factor):
    """Subtract a multiple of a row of results."""
    work[row + c] = update(work[row + c], factor, vectors[at + c])


def subtract(c, work, vectors, row, at):
    """Subtract a row of results."""
    work[row + c] = difference(work[row + c], vectors[at + c])


def reflect(
    item, matrix, q, reflectors, triangle, work, vectors, sums, batch, rows, columns, start, width,
    length, rest, wanted, side,
):  # fmt: skip
    """Reflect a matrix's panel in place, and compute V, T, columns on the right and Q."""
    height = rows - start
    v_at, t_at = height * length, 2 * height * length
    column = t_at + width * length
    x, g = height + length, 2 * (height + length)
    for lane in range(LANES):
        base = matrix_of(item, lane, batch) * rows * columns + start * (columns + 1)
        for i in range(height):
            each(0, width, read_number, (work, i * length, 1, lane, matrix, base + i * columns, 1))
    for j in range(width):
        divisor, tau = begin_column(work, vectors, sums, j, column, x, height, length)
        if j > 0:
            vectors[j - 1] = zero(tau)
        over_padded(0, height - j, divide, (work, vectors, column, j, divisor))
        vectors[j] = one(tau)
        for i in range(j, height):
            work[v_at + i * length + j] = vectors[i]
        row = j * length + j
        fold_rows(vectors, j, 1, -1.0, work, row - j, length, sums, height - j, j, width)
        over_padded(j, width, scale, (sums, vectors, g, conjugate_by(tau, -1.0)))
        for i in range(j, height):
            # Numbers below the diagonal are not read.
            first = j + (1 if i > j else 0)
            over_padded(first, width, update_row, (work, vectors, i * length, g, vectors[i]))
        if j > 0 and (not ACROSS or rest + wanted > 0):
            fold_rows(vectors, 0, 1, -1.0, work, v_at, length, sums, height, 0, j)
            over_padded(0, j, overlap, (sums, vectors, g))
            fold_rows(vectors, g, 1, 1.0, work, t_at, length, sums, j, 0, j)
            over_padded(0, j, scale, (sums, vectors, g, tau))
            for i in range(j):
                work[t_at + j * length + i] = minus(vectors[g + i])
        work[t_at + j * length + j] = tau
    for of_q in range(2):
        if (wanted if of_q else rest) > 0:
            reflect_others(
                item, of_q, matrix, q, work, vectors, sums, batch, rows, columns, start, width,
                length, wanted if of_q else rest, side, column + height + length,
            )  # fmt: skip
    for lane in range(LANES):
        which = matrix_of(item, lane, batch)
        base = which * rows * columns + start * (columns + 1)
        for i in range(height):
            each(0, width, write_number, (matrix, base + i * columns, 1, work, i * length, 1, lane))
    if not ACROSS:
        for i in range(height):
            here = (item * height + i) * width
            each(0, width, write_number, (reflectors, here, 1, work, v_at + i * length, 1, 0))
        for i in range(width):
            here = (item * width + i) * width
            each(0, width, write_number, (triangle, here, 1, work, t_at + i, length, 0))


def begin_column(work, vectors, sums, j, column, x, height, length):
    """Scale x, and return the divisor of its numbers below the first, and tau."""
    largest = (magnitude(work[j * length + j]),)
    for i in range(j + 1, height):
        size = (magnitude(work[i * length + j]),)
        largest = chosen_one(larger(size, largest), size, largest)
    more, main = powers(largest)
    flat = alike(largest, (1.0,))
    for i in range(height - j):
        h = scaled(work[(j + i) * length + j], more, main)
        if i > 0:
            flat = still_flat(flat, h)
        work[column + i] = h
        vectors[x + i] = h
    fold_rows(vectors, x, 1, -1.0, work, column, 1, sums, height - j, 0, 1)
    return reflector(vectors[x], total(sums[0]), is_flat(flat))


def reflect_others(
    item, of_q, matrix, q, work, vectors, sums, batch, rows, columns, start, width, length, count,
    side, z,
):  # fmt: skip
    """Update columns Z on the right of the panel or of Q: V^H Z, T V^H Z, then Z - V T V^H Z."""
    height = rows - start
    v_at, t_at = height * length, 2 * height * length
    g, y = 2 * (height + length), z + height * side
    ones, zeros = one(work[0]), zero(work[0])
    for i in range(height if of_q else 0):
        for c in range(count):
            work[z + i * side + c] = ones if i == c else zeros
    for lane in range(0 if of_q else LANES):
        base = matrix_of(item, lane, batch) * rows * columns + start * (columns + 1) + width
        for i in range(height):
            arguments = (work, z + i * side, 1, lane, matrix, base + i * columns, 1)
            each(0, count, read_number, arguments)
    for k in range(2 * width + height):
        if k < width:
            n, way, row = height, -1.0, z
            for i in range(height):
                vectors[i] = work[v_at + i * length + k]
        elif k < 2 * width:
            # T^H with the columns on the right, T with those of Q.
            n, way, row = width, 1.0 if of_q else -1.0, y
            for i in range(width):
                at = i * length + k - width if of_q else (k - width) * length + i
                vectors[i] = work[t_at + at]
        else:
            n, way, row = width, 1.0, y + width * side
            for i in range(width):
                vectors[i] = work[v_at + (k - 2 * width) * length + i]
        fold_rows(vectors, 0, 1, way, work, row, side, sums, n, 0, count)
        over_padded(0, count, keep_total, (sums, vectors, g))
        if k < 2 * width:
            for c in range(count):
                work[y + k * side + c] = vectors[g + c]
        else:
            over_padded(0, count, subtract, (work, vectors, z + (k - 2 * width) * side, g))
    for lane in range(LANES):
        which = matrix_of(item, lane, batch)
        base = which * rows * columns + start * (columns + 1) + width
        for i in range(height):
            if of_q:
                here = (which * height + i) * count
                each(0, count, write_number, (q, here, 1, work, z + i * side, 1, lane))
            else:
                here = base + i * columns
                each(0, count, write_number, (matrix, here, 1, work, z + i * side, 1, lane))


@functools.cache
def _loop(spec: Reflection, lanes: bool) -> Loop:
    """Return the loop of reflections."""
    operands = dict.fromkeys(("matrix", "q", "reflectors", "triangle"), spec.terms)
    scratch = {"work": spec.terms, "vectors": spec.terms, "sums": spec.products.state}
    constants = {"COUNT": spec.products.count}
    return matrices(reflect, FP64, operands, scratch, (), spec.algorithms, constants, lanes)


def panel(
    spec: Reflection,
    r: Sequence[Tensor],
    start: int,
    v: Sequence[Tensor],
    t: Sequence[Tensor],
    whole: bool,
    q: Sequence[Tensor] | None,
) -> None:
    """Reflect a panel, see `mcf.kernels.executor.Executor.reflect`."""
    wanted = 0 if q is None else q[0].shape[2]
    call = _call(spec, r[0].shape, start, v[0].shape[2], whole, wanted)
    operands = {"matrix": r, "q": q or r, "reflectors": v, "triangle": t}
    call.run(**{name: addresses(x) for name, x in operands.items()})


@functools.lru_cache(1024)
def _call(
    spec: Reflection, shape: torch.Size, start: int, width: int, whole: bool, wanted: int
) -> Call:
    """Return the loop over panels of `width` columns of matrices [B, m, n]."""
    batch, rows, columns = shape
    lanes = whole and start == 0 and across(FP64, batch, max(rows, columns), MOST)
    pad = 0 if lanes else wide(FP64)
    height, rest = rows - start, columns - start - width if whole else 0
    length, side = width + pad, max(rest, wanted) + pad
    row = max(length, side)
    sizes = {"work": (2 * height + width + 1) * length + height + (height + 2 * width) * side}
    sizes |= {"vectors": 2 * (height + length) + row, "sums": row}
    integers = {"batch": batch, "rows": rows, "columns": columns, "start": start, "width": width}
    integers |= {"length": length, "rest": rest, "wanted": wanted, "side": side}
    work = batch * height * width * (width + rest + wanted)
    items = -(-batch // wide(FP64)) if lanes else batch
    return Call(_loop(spec, lanes), items, work, sizes, **integers)
