"""Loop of whole decompositions of small matrices, see `mcf.kernels.decomposition`.

An item is a matrix M. In the workspace `scaled` is M times a power of two, and `moved` the matrix
to orthogonalise, by `w` into `x` with squared norms `squares`. Sweeps rotate `plain` and
`turned_rows`. `work` and `row` are those of the corrections, then `work` has the vectors by columns
and products.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence

from mcf.kernels import refinement as corrections
from mcf.kernels.decomposition import (
    DONE,
    HIGHEST,
    LARGEST,
    LEFT,
    LOST,
    ROTATE,
    Decomposition,
    Numbers,
)
from mcf.kernels.formats import FP64
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.loops.matrices import refinement, rotation
from mcf.kernels.numba.loops.matrices.folds import fold_rows, keep_total, some_of
from mcf.kernels.numba.loops.matrices.matrix_loop import Call, matrices, wide
from mcf.kernels.numba.loops.matrices.refinement import refine_rows, square_rows
from mcf.kernels.numba.loops.matrices.rotation import sweep_rows
from mcf.kernels.rotation import SWEEPS

# Greatest number of rows and of columns.
SMALL = refinement.SMALL
# The limit is an integer in units of u^terms over this.
LIMIT = 2**20


def exponent_of(x):
    """Return the exponent k of x in [2^(k - 1), 2^k), -1022 for 0."""
    return ((bits64(x) >> 52) & 0x7FF) - 1022


def steps_of(size, step, more):
    """Return a multiple of a step, rounded down plus `more`, at most LOST."""
    count = size / step
    if not count < LOST:
        return int(LOST) + 1
    return int(count) + (more if size > 0 else 0)


def larger_number(x, y):
    """Return whether an expansion is larger."""
    for k in range(TERMS):
        if x[k] != y[k]:
            return x[k] > y[k]
    return False


def read_matrix(a, first, row_step, column_step, scaled, moved, rows, columns, symmetric):
    """Scale the matrix and build the one to orthogonalise; return the exponent, and if it may be.

    Of a symmetric matrix one triangle is read, and a power of two above its norm is added.
    """
    largest = 0.0
    fine = True
    for i in range(rows):
        for c in range(columns):
            low, high = i, c
            if symmetric and c > i:
                low, high = c, i
            h = tidy((a[first + low * row_step + high * column_step] + ZEROS)[:TERMS])
            fine = fine and usual(h)
            # As for the sum of a triangle and a transposed one: no -0.
            if symmetric and h[0] == 0:
                h = ZEROS
            largest = max(largest, abs(h[0]))
            scaled[i * columns + c] = h
    exponent = exponent_of(largest)
    if largest == 0:
        exponent = 0
    if not fine or exponent == -1022 or exponent > LARGEST:
        fine, exponent = False, 0
    factor = power(-exponent)
    for i in range(rows * columns):
        scaled[i] = times(scaled[i], factor)
    # Squares of elements, rounded up to multiples of 2^-16: an exact sum.
    squares_of = 0
    for i in range(rows * columns if symmetric and fine else 0):
        level = abs(scaled[i][0]) * 65536.0
        up = int(level)
        if float(up) < level:
            up += 1
        squares_of += up * up
    # The sum is below 2^bound.
    bound = 0
    if squares_of > 0:
        bound = exponent_of(float(squares_of)) - 32
    shift = (power((bound + 2) // 2),) + ZEROS[1:]
    for i in range(rows):
        for c in range(columns):
            h = scaled[i * columns + c]
            if symmetric:
                h = plus(h, shift if i == c else ZEROS)
            moved[i * columns + c] = h
    return exponent, fine


def norm_of(x, first, n):
    """Return the norm of a row of one component, summed in the order of a matrix product."""
    found = plain_alone((0.0,), (0.0,))
    i = 0
    while i + COUNT <= n:
        u = (x[first + i], x[first + i + 1], x[first + i + 2], x[first + i + 3])
        part = plain_tree(u, u)
        found = part if i == 0 else plain_combine(found, part)
        i += COUNT
    while i < n:
        u = x[first + i]
        found = plain_alone(u, u) if i == 0 else plain_joined(found, u, u)
        i += 1
    return root(plain_total(found))[0]


def start(
    moved, w, plain, halves, pairs, angles, places, rows, columns, even, across, symmetric, sweeps,
    plain_exponent,
):  # fmt: skip
    """Run the sweeps in float64, and return the start of W."""
    for i in range(even):
        for c in range(across):
            lead = 1.0 if c - columns == i and i < rows else 0.0
            if c < columns and i < rows:
                lead = moved[i * columns + c][0]
            plain[i * across + c] = (lead,)
    if rows > 1:
        sweep_rows(
            plain, 0, halves, pairs, angles, places, even, rows, across, columns, sweeps,
            plain_exponent, (0.0,), None,
        )  # fmt: skip
    for k in range(rows):
        here = k * across
        norm, side = 1.0, columns
        if symmetric:
            norm, side = norm_of(plain, here, columns), 0
        for c in range(rows):
            w[k * rows + c] = (plain[here + side + c][0] / norm,) + ZEROS[1:]


def square_of(x, first, n):
    """Return the squared norm of a row, summed in the order of a matrix product."""
    found = alone(ZEROS, ZEROS)
    i = 0
    while i + COUNT <= n:
        u = some_of(x, first + i, 1)
        part = tree(u, u)
        found = part if i == 0 else combine(found, part)
        i += COUNT
    while i < n:
        u = x[first + i]
        found = alone(u, u) if i == 0 else joined(found, u, u)
        i += 1
    return total(found)


def rotate_again(
    moved, w, x, squares, turned_rows, halves, pairs, angles, places, work, row, sums, rows,
    columns, even, length, sweeps, exponent, own, off, cosine, drift,
):  # fmt: skip
    """Run sweeps in expansions, and return whether they end with residuals within the limits."""
    wide = columns + rows
    for i in range(even):
        for c in range(wide):
            h = ZEROS
            if i < rows:
                h = x[i * columns + c] if c < columns else w[i * rows + c - columns]
            turned_rows[i * wide + c] = h
    held = True
    if rows > 1:
        held = sweep_rows(
            turned_rows, 0, halves, pairs, angles, places, even, rows, wide, columns, sweeps,
            exponent, ZEROS, 1,
        )  # fmt: skip
    # As in the corrections: W, its product I - W W^T, X X^T, a transpose, M, X.
    square = rows * length
    r, e, t = 2 * square, 3 * square, 4 * square
    m = t + max(rows, columns, 2) * length
    y = m + square
    for k in range(rows):
        for c in range(columns):
            h = turned_rows[k * wide + c]
            x[k * columns + c] = work[y + k * length + c] = h
            work[m + k * length + c] = moved[k * columns + c]
        for c in range(rows):
            h = turned_rows[k * wide + columns + c]
            w[k * rows + c] = work[k * length + c] = h
        squares[k] = square_of(turned_rows, k * wide, columns)
    square_rows(work, row, sums, 0, t, r, rows, rows, length, True)
    square_rows(work, row, sums, y, t, e, rows, columns, length, False)
    norm = norm_in_steps(moved, rows * columns)
    limit = drift * rows * UNIT
    step = step_of(limit, norm, columns)
    lost = 0
    for k in range(rows):
        low = root(squares[k][:1])[0]
        for c in range(rows):
            high = root(squares[c][:1])[0]
            gap = abs(work[r + k * length + c][0])
            held = held and gap <= (own * rows if c == k else off) * UNIT
            within = abs(work[e + k * length + c][0]) <= cosine * UNIT * low * high
            held = held and (c == k or within)
        fold_rows(work, k * length, 1, 1.0, work, m, length, sums, rows, 0, columns)
        over_padded(0, columns, keep_total, (sums, row, 0))
        for c in range(columns):
            count = steps_of(abs(difference(row[c], x[k * columns + c])[0]), step, 1)
            lost += count * count
    return held and float(lost) * (step * step) <= limit * limit * norm


def norm_in_steps(x, size):
    """Return the squared norm of a matrix whose elements are rounded down to multiples of 2^-10."""
    found = 0
    for i in range(size):
        count = steps_of(abs(x[i][0]), 0.0009765625, 0)
        found += count * count
    return float(found) * 9.5367431640625e-07


def step_of(limit, norm, columns):
    """Return the step of residuals, see `mcf.kernels.decomposition.Limits`."""
    return limit / (64 * columns) * power((exponent_of(norm) - 1) // 2)


def unmixed(scaled, work, row, sums, values, n_at, rows, length, limit):
    """Compute the diagonal of V^T A V, and return whether the rest is within a limit.

    `work` has the vectors by columns from `n_at` on; A and A V are stored before and after them.
    """
    norm = norm_in_steps(scaled, rows * rows)
    step = step_of(limit, norm, rows)
    for i in range(rows * rows):
        work[i // rows * length + i % rows] = scaled[i]
    product = n_at + rows * length
    for k in range(rows):
        fold_rows(work, k * length, 1, 1.0, work, n_at, length, sums, rows, 0, rows)
        over_padded(0, rows, keep_total, (sums, row, 0))
        for c in range(rows):
            work[product + k * length + c] = row[c]
    lost = 0
    for k in range(rows):
        fold_rows(work, product + k, length, 1.0, work, n_at, length, sums, rows, 0, k + 1)
        over_padded(0, k + 1, keep_total, (sums, row, 0))
        values[k] = row[k]
        for c in range(k):
            count = steps_of(abs(row[c][0] * 1.4142135623730951), step, 1)
            lost += count * count
    return float(lost) * (step * step) <= limit * limit * norm


def decompose(
    item, a, values, left, right, scaled, moved, w, x, squares, sizes, plain, turned_rows, order,
    halves, pairs, angles, more_pairs, more_angles, work, row, sums, places, states, rows, columns,
    even, across, length, symmetric, sweeps, plain_exponent, steps, exponent, level, own, off,
    cosine, drift, mixed, batch_step, row_step, column_step, wanted, transposed,
):  # fmt: skip
    """Decompose a matrix, or leave it to other operations."""
    first = item * batch_step
    scale, fine = read_matrix(
        a, first, row_step, column_step, scaled, moved, rows, columns, symmetric
    )  # fmt: skip
    states[item] = LEFT
    if fine:
        start(
            moved, w, plain, halves, pairs, angles, places, rows, columns, even, across, symmetric,
            sweeps, plain_exponent,
        )  # fmt: skip
        state = refine_rows(
            moved, 0, w, 0, x, squares, 0, work, row, sums, rows, columns, length, steps, exponent,
            level,
        )  # fmt: skip
        fine = state == REFINED
        if not fine:
            states[item] = ROTATE
            if ROTATING:
                states[item] = LEFT
                fine = rotate_again(
                    moved, w, x, squares, turned_rows, halves, more_pairs, more_angles, places,
                    work, row, sums, rows, columns, even, length, sweeps, exponent, own, off,
                    cosine, drift,
                )  # fmt: skip
    n_at = max(rows, columns) * length
    for i in range(rows if fine else 0):
        h = root_of(squares[i])
        sizes[i] = h
        if h[0] == 0:
            fine = fine and not wanted
            h = ONES
        for c in range(columns):
            work[n_at + c * length + i] = quotient(x[i * columns + c], h)
    if symmetric and fine:
        limit = mixed * rows * UNIT
        fine = unmixed(scaled, work, row, sums, sizes, n_at, rows, length, limit)
    if fine:
        sort_values(sizes, order, rows)
        factor = power(scale)
        for k in range(rows):
            i = int(order[rows - 1 - k if symmetric else k][0])
            h = times(sizes[i], factor)
            fine = fine and usual(h) and abs(h[0]) <= HIGHEST
            values[item * rows + k] = tidy(h)[:GIVEN]
            # The orthogonalised rows, and for `svd` also W.
            for c in range(columns if wanted else 0):
                h = work[n_at + c * length + i]
                fine = fine and usual(h)
                put_vector(
                    left, right, tidy(h)[:GIVEN], symmetric or transposed, item, k, c, rows, columns
                )  # fmt: skip
            for c in range(rows if wanted and not symmetric else 0):
                h = w[i * rows + c]
                fine = fine and usual(h)
                put_vector(
                    left, right, tidy(h)[:GIVEN], not transposed, item, k, c, rows, rows
                )  # fmt: skip
        if fine:
            states[item] = DONE


def put_vector(left, right, h, of_left, item, k, c, rows, length):
    """Store number c of vector k as a column on the left, or as a row on the right."""
    if of_left:
        left[(item * length + c) * rows + k] = h
    else:
        right[(item * rows + k) * length + c] = h


def sort_values(values, order, rows):
    """Order the values from the largest down, stable for equal ones."""
    for k in range(rows):
        z = values[k]
        i = k
        while i > 0 and larger_number(z, values[int(order[i - 1][0])]):
            order[i] = order[i - 1]
            i -= 1
        order[i] = (float(k),)


@functools.cache
def _loop(spec: Decomposition, rotating: bool) -> Loop:
    """Return the loop of decompositions; it is rarely `rotating`, and compiled twice as long."""
    n = spec.terms
    operands = dict.fromkeys(("a", "values", "left", "right"), spec.given)
    scratch = dict.fromkeys(("scaled", "moved", "w", "x", "squares", "sizes", "turned_rows"), n)
    more = rotation.scratch(spec.more)
    scratch |= {"plain": 1, "order": 1}
    scratch |= {"more_pairs": more["pairs"], "more_angles": more["angles"]}
    scratch |= rotation.scratch(spec.rotations) | refinement.scratch(spec.refinement)
    constants = rotation.constants(spec.more) | refinement.constants(spec.refinement)
    constants |= {"GIVEN": spec.given, "TERMS": n, "UNIT": 2.0 ** (-53 * n) / LIMIT}
    constants |= {"LOST": float(LOST), "LARGEST": LARGEST, "HIGHEST": 2.0**HIGHEST}
    constants |= {"REFINED": corrections.DONE, "DONE": DONE, "LEFT": LEFT, "ROTATE": ROTATE}
    constants |= {"ROTATING": rotating}
    algorithms = spec.algorithms | rotation.algorithms(spec.more, spec.rotations)
    algorithms |= {"gram": spec.rotations.gram, "added": spec.rotations.added}
    given = operands, scratch, ("places", "states")
    return matrices(decompose, FP64, *given, algorithms, constants)


class Decomposer:
    """Loop over matrices of one shape."""

    def __init__(
        self, spec: Decomposition, batch: int, shape: tuple[int, int], numbers: Numbers
    ) -> None:
        """Prepare the loop, see `mcf.kernels.executor.Executor.prepare_decomposition`."""
        self._spec, self._batch, self._shape, self._numbers = spec, batch, shape, numbers
        self._call = self._prepared(rotating=False)

    def _prepared(self, rotating: bool) -> Call:
        (rows, columns), numbers = self._shape, self._numbers
        even, wide_rows = rows + rows % 2, rows + columns
        across = columns if numbers.symmetric else wide_rows
        self._places = rotation.order(even)
        integers = {"rows": rows, "columns": columns, "even": even, "across": across}
        integers |= {"length": max(rows, columns) + wide(FP64), "sweeps": SWEEPS}
        integers |= {"symmetric": int(numbers.symmetric), "plain_exponent": numbers.plain}
        integers |= {"steps": numbers.steps, "exponent": numbers.tolerance, "level": numbers.share}
        integers |= {name: int(c * LIMIT) for name, c in numbers.limits._asdict().items()}
        integers |= {"places": self._places.buffer_info()[0]}
        sizes = dict.fromkeys(("scaled", "moved", "x"), rows * columns)
        sizes |= {"w": rows * rows, "squares": rows, "sizes": rows, "order": rows}
        sizes |= {"plain": even * across, "turned_rows": even * wide_rows if rotating else 1}
        sizes |= rotation.sizes(even, columns) | refinement.sizes(rows, columns)
        sizes |= {"more_pairs": sizes["pairs"], "more_angles": sizes["angles"]}
        work = self._batch * rows * rows * columns
        return Call(_loop(self._spec, rotating), self._batch, work, sizes, **integers)

    def __call__(
        self,
        a: list[int],
        steps: Sequence[int],
        results: list[int],
        wanted: bool,
        transposed: bool,
    ) -> array[int]:
        """Decompose, see `mcf.kernels.executor.Executor.prepare_decomposition`."""
        states, n = array("i", bytes(4 * self._batch)), self._spec.given
        self._call.run(
            a=a, values=results[:n], left=results[n : 2 * n], right=results[2 * n :],
            batch_step=steps[0], row_step=steps[1], column_step=steps[2], wanted=int(wanted),
            transposed=int(transposed), states=states.buffer_info()[0],
        )  # fmt: skip
        if ROTATE in states:
            self._call = self._prepared(rotating=True)
            return self(a, steps, results, wanted, transposed)
        return states
