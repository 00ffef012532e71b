"""Substitution with triangular matrices of expansions, and Cholesky factors."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import ALL, Components, assign, each, one_like, part, transpose, where

# Columns eliminated one at a time; a matrix product updates the columns beyond.
BLOCK = 32


def solve(
    a: Components,
    b: Components,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    numbers: Real = REAL,
) -> Components:
    """Solve A X = B, or X A = B for `left=False`, by blocked substitution.

    Shapes: A [..., n, n], of which only one triangle is read; B [..., n, k]; batches broadcast. A
    zero on the diagonal gives infinities or NaN, as division does. Row by row the computed X solves
    (A + E) X = B with |E| <= c n u^terms |A| (Higham 2002, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., theorem 8.5, doi:10.1137/1.9780898718027).
    """
    if not left:
        given = transpose(a), transpose(b)
        return transpose(
            solve(*given, upper=not upper, unitriangular=unitriangular, numbers=numbers)
        )
    n, k = b[0].shape[-2:]
    batch = broadcast(a, b)
    a = each(lambda c: c.expand(*batch, n, n), a)
    x = each(lambda c: c.expand(*batch, n, k).clone(memory_format=torch.contiguous_format), b)
    if x[0].numel():
        _solve(flat(a), flat(x), upper, unitriangular, numbers)
    return x


def flat(x: Components) -> Components:
    """Return x [..., m, n] with its batches as one dimension, as views if possible."""
    return each(lambda c: c.reshape(-1, *c.shape[-2:]), x)


def _solve(a: Components, x: Components, upper: bool, unitriangular: bool, numbers: Real) -> None:
    """Solve A Y = X in place, for [batch, n, n] and [batch, n, k]."""
    n = a[0].shape[-1]
    blocks = [slice(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]
    for block in reversed(blocks) if upper else blocks:
        substitute(part(a, block, block), part(x, block, ALL), upper, unitriangular, numbers)
        rest = slice(0, block.start) if upper else slice(block.stop, n)
        if rest.start < rest.stop:
            product = numbers.matmul(part(a, rest, block), part(x, block, ALL))
            assign(x, (rest, ALL), numbers.minus(part(x, rest, ALL), product))


def substitute(
    a: Components, x: Components, upper: bool, unitriangular: bool, numbers: Real = REAL
) -> None:
    """Solve A Y = X in place within a block, for [batch, w, w] and [batch, w, k]."""
    spec = numbers.elimination("substitution", a)
    if registry.on(x[0].device).substitute(spec, alike(a), x, upper, unitriangular):
        return
    count = a[0].shape[-1]
    for j in reversed(range(count)) if upper else range(count):
        row = slice(j, j + 1)
        if not unitriangular:
            solved = numbers.over(part(x, row, ALL), part(a, row, row))
            assign(x, (row, ALL), solved)
        rest = slice(0, j) if upper else slice(j + 1, count)
        if rest.start < rest.stop:
            given = part(x, rest, ALL), part(a, rest, row), part(x, row, ALL)
            assign(x, (rest, ALL), numbers.less_product(*given))


def alike(x: Components) -> Components:
    """Return x with equal strides for all components."""
    if len({c.stride() for c in x}) == 1:
        return x
    return each(torch.Tensor.contiguous, x)


def broadcast(a: Components, b: Components) -> tuple[int, ...]:
    """Return the broadcast batch shape of both."""
    if a[0].shape[:-2] == b[0].shape[:-2]:
        return tuple(a[0].shape[:-2])
    shape = torch.broadcast_shapes(a[0].shape[:-2], b[0].shape[:-2])  # type: ignore[no-untyped-call]
    return tuple(shape)


def cholesky(a: Components, numbers: Real = REAL) -> tuple[Components, Tensor]:
    """Return L with A = L L^T, blocked; reads the lower triangle of A [..., n, n].

    For complex numbers A = L L^H, and only the real part of the diagonal is read.

    Returns:
        L, and `info`, int32: the order of the first leading minor that is not positive definite,
        or 0.

    L L^T = A + E with |E| <= c n u^terms |L| |L^T| (Higham 2002, theorem 10.3,
    doi:10.1137/1.9780898718027).
    """
    a = each(lambda c: c.clone(memory_format=torch.contiguous_format), a)
    info = torch.zeros(a[0].shape[:-2], dtype=torch.int32, device=a[0].device)
    if a[0].numel():
        _cholesky(flat(a), info.view(-1), numbers)
    return each(lambda c: c.tril(), a), info


def _cholesky(a: Components, info: Tensor, numbers: Real) -> None:
    """Overwrite the lower triangles of A [batch, n, n] with L."""
    n = a[0].shape[-1]
    spec = numbers.elimination("cholesky", a)
    executor = registry.on(a[0].device)
    for start in range(0, n, BLOCK):
        block = slice(start, min(start + BLOCK, n))
        if not executor.eliminate(spec, a, start, block.stop - start, info):
            for j in range(block.start, block.stop):
                _eliminate(a, j, block.stop, info, numbers)
        if block.stop < n:
            below = slice(block.stop, n)
            # X L^H = A for the rows below, solved as conj(L) X^T = A^T.
            rows, low = transpose(part(a, below, block)), numbers.conj(part(a, block, block))
            substitute(low, rows, upper=False, unitriangular=False, numbers=numbers)
            product = numbers.matmul(transpose(rows), numbers.conj(rows))
            assign(a, (below, below), numbers.minus(part(a, below, below), product))


def _eliminate(a: Components, j: int, stop: int, info: Tensor, numbers: Real) -> None:
    """Compute column j of L up to row `stop`, and update the columns up to there."""
    row, rest = slice(j, j + 1), slice(j + 1, stop)
    diagonal = part(a, row, row)
    positive = diagonal[0] > 0
    info.copy_(torch.where((info == 0) & ~positive[..., 0, 0], j + 1, info))
    root = numbers.root(where(positive, diagonal, one_like(diagonal)))
    assign(a, (row, row), numbers.of_real(root))
    if j + 1 < stop:
        column = numbers.over_real(part(a, rest, row), root)
        assign(a, (rest, row), column)
        update = numbers.less_conjugate(part(a, rest, rest), transpose(column), column)
        assign(a, (rest, rest), update)
