"""Cholesky factorisation of symmetric positive definite matrices of expansions."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.linalg import triangular
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import Components, assign, each, one_like, part, transpose, where


def factor(a: Components, numbers: Real = REAL) -> tuple[Components, Tensor]:
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
        _factor(triangular.flat(a), info.view(-1), numbers)
    return each(lambda c: c.tril(), a), info


def _factor(a: Components, info: Tensor, numbers: Real) -> None:
    """Overwrite the lower triangles of A [batch, n, n] with L."""
    n = a[0].shape[-1]
    spec = numbers.elimination("cholesky", a)
    executor = registry.on(a[0].device)
    for start in range(0, n, triangular.BLOCK):
        block = slice(start, min(start + triangular.BLOCK, n))
        if not executor.eliminate(spec, a, start, block.stop - start, info):
            for j in range(block.start, block.stop):
                _eliminate(a, j, block.stop, info, numbers)
        if block.stop < n:
            below = slice(block.stop, n)
            # X L^H = A for the rows below, solved as conj(L) X^T = A^T.
            rows, low = transpose(part(a, below, block)), numbers.conj(part(a, block, block))
            triangular.substitute(low, rows, upper=False, unitriangular=False, numbers=numbers)
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
