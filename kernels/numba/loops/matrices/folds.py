"""Sums of products over rows, and copies of rows, that loops over matrices share."""

from __future__ import annotations


def matrix_of(item, lane, batch):
    """Return the matrix of a lane; lanes after the last matrix repeat it."""
    return min(item * LANES + lane, batch - 1)


def read_number(c, target, at, stride, lane, source, start, step):
    """Copy a number to a lane of the workspace."""
    target[at + c * stride, lane] = source[start + c * step]


def write_number(c, target, start, step, source, at, stride, lane):
    """Copy a number from a lane of the workspace."""
    target[start + c * step] = source[at + c * stride, lane]


def some_of(operand, at, step):
    """Return as many numbers as a tree adds."""
    if COUNT == 2:
        return operand[at], operand[at + step]
    return operand[at], operand[at + step], operand[at + 2 * step], operand[at + 3 * step]


def some_turned(operand, at, step, way):
    """Return as many numbers as a tree adds, conjugated where `way` is -1."""
    if COUNT == 2:
        return conjugate_by(operand[at], way), conjugate_by(operand[at + step], way)
    return some_of(operand, at, step)


def first_tree(c, rows, sums, row, stride, factors):
    """Begin the partial sums of a column with a tree."""
    sums[c] = tree(factors, some_of(rows, row + c, stride))


def next_tree(c, rows, sums, row, stride, factors):
    """Add a tree to the partial sums of a column."""
    sums[c] = combine(sums[c], tree(factors, some_of(rows, row + c, stride)))


def first_product(c, rows, sums, row, factor):
    """Begin the partial sums of a column with a product."""
    sums[c] = alone(factor, rows[row + c])


def next_product(c, rows, sums, row, factor):
    """Add a product to the partial sums of a column."""
    sums[c] = joined(sums[c], factor, rows[row + c])


def fold_rows(left, at, step, way, rows, row, stride, sums, n, first, last):
    """Sum n numbers, conjugated where `way` is -1, times rows of numbers, for each column."""
    prefer_wide_vectors()
    i = 0
    while i + COUNT <= n:
        factors = some_turned(left, at + i * step, step, way)
        if i == 0:
            over_padded(first, last, first_tree, (rows, sums, row, stride, factors))
        else:
            over_padded(first, last, next_tree, (rows, sums, row + i * stride, stride, factors))
        i += COUNT
    while i < n:
        factor = conjugate_by(left[at + i * step], way)
        if i == 0:
            over_padded(first, last, first_product, (rows, sums, row, factor))
        else:
            over_padded(first, last, next_product, (rows, sums, row + i * stride, factor))
        i += 1


def keep_total(c, sums, target, at):
    """Store the number of the partial sums of a column."""
    target[at + c] = total(sums[c])
