"""Cholesky factorisation of symmetric positive definite matrices of expansions."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg import triangular
from mcf.linalg.parts import Components, assign, each, one_like, part, transpose, where
from mcf.reductions.products import matmul


def factor(a: Components) -> tuple[Components, Tensor]:
    """L with A = L L^T, right-looking and blocked; reads the lower triangle of A [..., n, n].

    Returns:
        L, and `info`, int32: the order of the first leading minor that is not positive definite,
        or 0.

    L L^T = A + E with |E| <= c n u^terms |L| |L^T| (Higham 2002, theorem 10.3,
    doi:10.1137/1.9780898718027).
    """
    a = each(lambda c: c.clone(memory_format=torch.contiguous_format), a)
    n = a[0].shape[-1]
    info = torch.zeros(a[0].shape[:-2], dtype=torch.int32, device=a[0].device)
    for start in range(0, n, triangular.BLOCK):
        block = slice(start, min(start + triangular.BLOCK, n))
        for j in range(block.start, block.stop):
            _eliminate(a, j, block.stop, info)
        if block.stop < n:
            below = slice(block.stop, n)
            rows = triangular.solve(
                transpose(part(a, block, block)), part(a, below, block), upper=True, left=False
            )
            assign(a, (below, block), rows)
            product = matmul(rows, transpose(rows))
            assign(a, (below, below), operations.sub(part(a, below, below), product))
    return each(lambda c: c.tril(), a), info


def _eliminate(a: Components, j: int, stop: int, info: Tensor) -> None:
    """Column j of L down to row `stop`, and its square taken off the columns up to there."""
    row, rest = slice(j, j + 1), slice(j + 1, stop)
    diagonal = part(a, row, row)
    positive = diagonal[0] > 0
    info.copy_(torch.where((info == 0) & ~positive[..., 0, 0], j + 1, info))
    root = operations.sqrt(where(positive, diagonal, one_like(diagonal)))
    assign(a, (row, row), root)
    if j + 1 < stop:
        column = operations.div(part(a, rest, row), root)
        assign(a, (rest, row), column)
        update = operations.fma(operations.neg(column), transpose(column), part(a, rest, rest))
        assign(a, (rest, rest), update)
