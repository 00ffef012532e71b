"""Cholesky factorisation of symmetric positive definite matrices of expansions."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.linalg import triangular
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import Components, assign, each, one_like, part, transpose, where


def factor(a: Components, numbers: Real = REAL) -> tuple[Components, Tensor]:
    """L with A = L L^T, right-looking and blocked; reads the lower triangle of A [..., n, n].

    Of complex numbers L^H; of the diagonal the real part is read.

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
    """L takes the place of the lower triangles of A [batch, n, n]."""
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
            # X L^H = A of the rows below, as conj(L) X^T = A^T.
            rows, low = transpose(part(a, below, block)), numbers.conj(part(a, block, block))
            triangular.substitute(low, rows, upper=False, unitriangular=False, numbers=numbers)
            product = numbers.matmul(transpose(rows), numbers.conj(rows))
            assign(a, (below, below), numbers.minus(part(a, below, below), product))


def _eliminate(a: Components, j: int, stop: int, info: Tensor, numbers: Real) -> None:
    """Column j of L down to row `stop`, and its square taken off the columns up to there."""
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
