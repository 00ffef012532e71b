"""Substitution with triangular matrices of expansions."""

from __future__ import annotations

import torch

from mcf.kernels import operations
from mcf.linalg.parts import Components, assign, each, part, transpose
from mcf.reductions.products import matmul

# Columns that are eliminated one at a time; beyond them a matrix product does the rest.
BLOCK = 32


def solve(
    a: Components, b: Components, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Components:
    """X with A X = B, or X A = B for `left=False`, by blocked substitution.

    Shapes: A [..., n, n], of which only one triangle is read; B [..., n, k]; batches broadcast. A
    zero on the diagonal gives infinities or NaN, as division does. Row by row the computed X solves
    (A + E) X = B with |E| <= c n u^terms |A| (Higham 2002, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., theorem 8.5, doi:10.1137/1.9780898718027).
    """
    if not left:
        return transpose(
            solve(transpose(a), transpose(b), upper=not upper, unitriangular=unitriangular)
        )
    n, k = b[0].shape[-2:]
    batch = broadcast(a, b)
    a = each(lambda c: c.expand(*batch, n, n), a)
    x = each(lambda c: c.expand(*batch, n, k).clone(), b)
    blocks = [slice(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]
    for block in reversed(blocks) if upper else blocks:
        _substitute(a, x, block, upper, unitriangular)
        rest = slice(0, block.start) if upper else slice(block.stop, n)
        if rest.start < rest.stop:
            product = matmul(part(a, rest, block), part(x, block, slice(None)))
            left_over = operations.sub(part(x, rest, slice(None)), product)
            assign(x, (rest, slice(None)), left_over)
    return x


def broadcast(a: Components, b: Components) -> tuple[int, ...]:
    """The shape of the batch of both."""
    shape = torch.broadcast_shapes(a[0].shape[:-2], b[0].shape[:-2])  # type: ignore[no-untyped-call]
    return tuple(shape)


def _substitute(
    a: Components, x: Components, block: slice, upper: bool, unitriangular: bool
) -> None:
    """Solve within a diagonal block, a row of X at a time."""
    indices = range(block.start, block.stop)
    for j in reversed(indices) if upper else indices:
        row = slice(j, j + 1)
        if not unitriangular:
            solved = operations.div(part(x, row, slice(None)), part(a, row, row))
            assign(x, (row, slice(None)), solved)
        rest = slice(block.start, j) if upper else slice(j + 1, block.stop)
        if rest.start < rest.stop:
            factor = operations.neg(part(a, rest, row))
            target = part(x, rest, slice(None))
            assign(
                x,
                (rest, slice(None)),
                operations.fma(factor, part(x, row, slice(None)), target),
            )
