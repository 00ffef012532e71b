"""Loop of corrections of small orthogonal matrices, see `mcf.kernels.refinement`.

An item is a matrix. The workspace `work` has arrays of rows, padded to whole vectors: V, N, R, E
(first G), a transpose, M and Y. `row` is a row of results, `sums` its partial sums.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.formats import FP64
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.loops.matrices.folds import fold_rows, keep_total
from mcf.kernels.numba.loops.matrices.matrix_loop import Call, addresses, matrices, wide
from mcf.kernels.refinement import APART, DONE, STUCK, Refinement
from mcf.kernels.rotation import VANISHED

# Greatest number of rows and of columns: products of larger ones are faster by blocks.
SMALL = 48


def negate(c, row):
    """Negate a number of a row."""
    row[c] = difference(ZEROS, row[c])


def add_row(c, work, row, at):
    """Add a row of the workspace."""
    row[c] = plus(work[at + c], row[c])


def numerate(c, work, row, sizes, rest, products):
    """Compute N from s, R and G."""
    row[c] = fused(work[sizes + c], work[rest + c], work[products + c])


def transpose(work, source, target, rows, columns, length):
    """Store the conjugate transpose of an array."""
    for i in range(rows):
        for c in range(columns):
            work[target + c * length + i] = conjugate_by(work[source + i * length + c], -1.0)


def square_rows(work, row, sums, source, flat, target, rows, columns, length, lacking):
    """Compute A A^H, or I - A A^H where `lacking`, of which the right half is computed."""
    transpose(work, source, flat, rows, columns, length)
    for k in range(rows):
        first = k // PAD * PAD
        left = source + k * length
        fold_rows(work, left, 1, 1.0, work, flat, length, sums, columns, first, rows)
        over_padded(first, rows, keep_total, (sums, row, 0))
        diagonal = row[k]
        if lacking:
            over_padded(first, rows, negate, (row,))
            diagonal = difference(ONES, diagonal)
        row[k] = real(diagonal)
        for c in range(k):
            work[target + k * length + c] = conjugate_by(work[target + c * length + k], -1.0)
        for c in range(k, rows):
            work[target + k * length + c] = row[c]


def multiply(work, row, sums, left, right, target, rows, columns, length):
    """Compute the product of V and M, with zeros for rows that are nearly zero."""
    for k in range(rows):
        fold_rows(
            work, left + k * length, 1, 1.0, work, right, length, sums, rows, 0, columns
        )  # fmt: skip
        over_padded(0, columns, keep_total, (sums, row, 0))
        gone = True
        for c in range(columns):
            h = row[c]
            gone = gone and magnitude(h) < VANISHED
            work[target + k * length + c] = h
        for c in range(columns if gone else 0):
            work[target + k * length + c] = ZEROS


def add_product(work, row, sums, v, following, factors, down, along, way, rows, length):
    """Add to V the product of factors, with strides `down` and `along`, and V."""
    for k in range(rows):
        fold_rows(
            work, factors + k * down, along, way, work, v, length, sums, rows, 0, rows
        )  # fmt: skip
        over_padded(0, rows, keep_total, (sums, row, 0))
        over_padded(0, rows, add_row, (work, row, v + k * length))
        for c in range(rows):
            work[following + k * length + c] = row[c]
    for i in range(rows):
        for c in range(rows):
            work[v + i * length + c] = work[following + i * length + c]


def error_of(work, row, n_at, r, e, t, rows, length):
    """Compute s_i and its root in two rows at `t`, and N; return the error."""
    for i in range(rows):
        h = difference(ONES, work[r + i * length + i])
        h = quotient(work[e + i * length + i], h)
        work[t + i] = h
        work[t + length + i] = root((h[0],)) + ZEROS[1:]
    for i in range(rows):
        over_padded(0, rows, numerate, (work, row, t, r + i * length, e + i * length))
        for c in range(rows):
            work[n_at + i * length + c] = row[c]
    error = 0.0
    for i in range(rows):
        low = work[t + length + i][0]
        for c in range(rows):
            there = i * length + c
            middle = mean(work[n_at + there], work[n_at + c * length + i])
            both = low * work[t + length + c][0]
            cosine = 0.0
            if i != c and both > 0:
                cosine = middle / both
            off = magnitude(work[r + there])
            if off > cosine or off != off:
                cosine = off
            if cosine > error or cosine != cosine:
                error = cosine
    return error


def correct(work, n_at, r, e, t, rows, length):
    """Compute E in the memory of G."""
    for i in range(rows):
        low = work[t + i]
        for c in range(rows):
            there = i * length + c
            gap = difference(work[t + c], low)
            top = work[n_at + there]
            middle = mean(top, work[n_at + c * length + i])
            if middle > 5.9604644775390625e-08 * abs(gap[0]) or gap[0] == 0 or i == c:
                work[e + there] = halved(work[r + there])
            else:
                work[e + there] = quotient(top, gap)


def check_rows(work, squares, d, e, t, rows, length, tolerance, level):
    """Store the diagonal of G, and return whether rows are apart."""
    largest = 0.0
    for i in range(rows):
        h = work[e + i * length + i]
        squares[d + i] = h[:PART]
        h = root((h[0],)) + ZEROS[1:]
        work[t + i] = h
        largest = max(largest, h[0])
    least = power(level) * largest
    apart = False
    for i in range(rows):
        low = work[t + i][0]
        for c in range(i + 1, rows):
            high = work[t + c][0]
            limit = tolerance * low * high
            if not (low >= least and high >= least):
                limit = 8 * limit
            if magnitude(work[e + i * length + c]) > limit:
                apart = True
    return apart


def refine_rows(
    a, base, w, place, x, squares, d, work, row, sums, rows, columns, length, steps, exponent, level
):  # fmt: skip
    """Correct W, store X = W M and the squared norms of its rows, and return the final state."""
    square = rows * length
    n_at, r, e, t = square, 2 * square, 3 * square, 4 * square
    m = t + max(rows, columns, 2) * length
    y = m + square
    for i in range(rows):
        for c in range(rows):
            work[i * length + c] = w[place + i * rows + c]
        for c in range(columns):
            work[m + i * length + c] = a[base + i * columns + c]
    tolerance = power(exponent)
    before = 0.25
    state = early = 0
    while True:
        square_rows(work, row, sums, 0, t, r, rows, rows, length, True)
        if early < steps:
            for i in range(square):
                work[r + i] = halved(work[r + i])
            add_product(work, row, sums, 0, n_at, r, length, 1, 1.0, rows, length)
            early += 1
            continue
        multiply(work, row, sums, 0, m, y, rows, columns, length)
        if state != 0:
            break
        square_rows(work, row, sums, y, t, e, rows, columns, length, False)
        error = error_of(work, row, n_at, r, e, t, rows, length)
        slow = not (error <= 0.00390625 * before)
        before = error
        if error <= tolerance or (slow and error <= 8 * tolerance):
            if not check_rows(work, squares, d, e, t, rows, length, tolerance, level):
                state = DONE
                break
            state, early = APART, 0
        elif slow:
            check_rows(work, squares, d, e, t, rows, length, tolerance, level)
            state, early = STUCK, 0
        else:
            correct(work, n_at, r, e, t, rows, length)
            add_product(work, row, sums, 0, n_at, e, 1, length, -1.0, rows, length)
    for i in range(rows):
        for c in range(rows):
            w[place + i * rows + c] = work[i * length + c]
        for c in range(columns):
            x[base + i * columns + c] = work[y + i * length + c]
    return state


def refine_matrix(
    item, a, w, x, squares, work, row, sums, states, rows, columns, length, steps, exponent, level
):  # fmt: skip
    """Correct one matrix."""
    states[item] = refine_rows(
        a, item * rows * columns, w, item * rows * rows, x, squares, item * rows, work, row, sums,
        rows, columns, length, steps, exponent, level,
    )  # fmt: skip


def scratch(spec: Refinement) -> dict[str, int]:
    """Return the component counts of the scratch operands."""
    return {"work": spec.terms, "row": spec.terms, "sums": spec.products.state}


def sizes(rows: int, columns: int) -> dict[str, int]:
    """Return the numbers of the scratch operands."""
    length = max(rows, columns) + wide(FP64)
    # A transpose, and two rows for norms.
    return {"work": (6 * rows + max(rows, columns, 2)) * length} | dict.fromkeys(
        ("row", "sums"), length
    )


def constants(spec: Refinement) -> dict[str, object]:
    """Return the numbers that the corrections name."""
    zeros = (0.0,) * spec.terms
    found = {"ZEROS": zeros, "ONES": (1.0, *zeros[1:]), "PART": spec.terms // spec.parts}
    found |= {"COUNT": spec.products.count, "VANISHED": VANISHED}
    return found | {"DONE": DONE, "STUCK": STUCK, "APART": APART}


@functools.cache
def _loop(spec: Refinement) -> Loop:
    """Return the loop of corrections."""
    operands = dict.fromkeys(("a", "w", "x"), spec.terms)
    operands["squares"] = spec.terms // spec.parts
    given = operands, scratch(spec), ("states",)
    return matrices(refine_matrix, FP64, *given, spec.algorithms, constants(spec))


def refine(
    spec: Refinement,
    a: Sequence[Tensor],
    w: Sequence[Tensor],
    x: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: int,
    tolerance: int,
    share: int,
) -> Tensor:
    """Refine, see `mcf.kernels.executor.Executor.refine`."""
    batch, rows, columns = a[0].shape
    length = max(rows, columns) + wide(FP64)
    integers = {"rows": rows, "columns": columns, "length": length, "steps": steps}
    integers |= {"exponent": tolerance, "level": share}
    work = batch * rows * rows * columns
    call = Call(_loop(spec), batch, work, sizes(rows, columns), **integers)
    states = array("i", bytes(4 * batch))
    operands = {"a": a, "w": w, "x": x, "squares": squares}
    given = {name: addresses(components) for name, components in operands.items()}
    call.run(**given, states=states.buffer_info()[0])
    return torch.tensor(states, device="cpu")
