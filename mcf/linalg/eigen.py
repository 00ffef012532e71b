"""Eigenvalues and eigenvectors of symmetric matrices of expansions."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg import whole
from mcf.linalg.orthogonal_rows import orthogonal_rows
from mcf.linalg.parts import Components, each, identity, transpose
from mcf.linalg.working import closed, descending, opened, rows_in
from mcf.reductions.products import matmul


def decompose(a: Components, upper: bool = False) -> tuple[Components, Components, Tensor]:
    """A = V diag(w) V^T with ascending w; reads one triangle of A [..., n, n].

    The rows of W (A + s I) are made orthogonal by an orthogonal W. A power of two above the norm
    makes all eigenvalues of A + s I positive, and the rows, divided by their norms, are the
    eigenvectors. Eigenvalues are v^T A v.

    Returns:
        w [..., n], V [..., n, n] and whether each matrix converged (false where one is not finite).

    With u^terms of the working format, |A V - V diag(w)| <= c n u^terms |A| in the 2-norm and
    |V^T V - I| <= c n u^terms, for clusters and for equal eigenvalues too.
    """
    found = whole.decomposed(True, a, lambda some: _decompose(some, upper), upper)
    return _decompose(a, upper) if found is None else found


def _decompose(a: Components, upper: bool) -> tuple[Components, Components, Tensor]:
    """The same by operations on tensors."""
    triangle = each(lambda c: c.triu() if upper else c.tril(), a)
    a = each(lambda c: c + (c.mT.tril(-1) if upper else c.mT.triu(1)), triangle)
    flat, exponent = opened(a)
    n = flat[0].shape[-1]
    finite = torch.isfinite(flat[0]).all(2).all(1)
    flat = each(lambda c: torch.where(finite[:, None, None], c, 0.0), flat)
    shift = _shift(flat[0])
    eye = identity(flat, n)
    moved = operations.add(flat, each(lambda c: c * shift[:, None, None], eye))
    _, rows, squares, done = orthogonal_rows(moved, positive=True)
    norms = operations.sqrt(squares)
    rows = operations.div(rows, each(lambda c: c[..., None], norms))
    values = each(
        lambda c: c.diagonal(dim1=-2, dim2=-1), matmul(rows, matmul(flat, transpose(rows)))
    )
    order = descending(values).flip(-1)
    values = each(lambda c: c.gather(-1, order), values)
    vectors = transpose(rows_in(order, rows))
    return closed(values, a, exponent), closed(vectors, a), (done & finite).reshape(a[0].shape[:-2])


def _shift(a: Tensor) -> Tensor:
    """A power of two above 1.4 times the Frobenius norm of matrices [batch, n, n], all |a| < 1.

    Of elements rounded up to a few bits, so that their squares' sum has no order.
    """
    n = a.shape[-1]
    # Squares are multiples of 2^-32 and at most 1: a sum of 2^21 is exact.
    up = (a.abs() * 2.0**16).ceil() * 2.0**-16
    total = (up * up).sum((1, 2)) if n else a.new_zeros(a.shape[0])
    # total < 2^exponent <= 4^half / 2.
    exponent = torch.frexp(total)[1]
    half = torch.div(exponent + 2, 2, rounding_mode="floor")
    return torch.ldexp(torch.ones_like(total), half)
