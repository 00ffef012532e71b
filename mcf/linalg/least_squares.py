"""Least squares by QR factorisation, or by singular values for rank-deficient matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg import qr_factors, triangular
from mcf.linalg.parts import Components, each, one_like, transpose, where
from mcf.reductions.products import matmul


def solve(a: Components, b: Components) -> tuple[Components, Tensor]:
    """Return X of least norm that minimises |A X - B|, for A [..., m, n] of full rank.

    R X = Q^T B with A = Q R, and X = Q R^-T B with A^T = Q R for m < n (Higham 2002, theorems 20.3
    and
    21.4, doi:10.1137/1.9780898718027: X is exact for an A within c m n u^terms of the given one).

    Returns:
        X [..., n, k], and the smallest |r_ii| over the largest, which is 0 or about u^terms for a
        rank-deficient matrix.
    """
    wide = a[0].shape[-2] < a[0].shape[-1]
    q, r = qr_factors.factor(transpose(a) if wide else a)
    assert q is not None
    size = r[0].diagonal(dim1=-2, dim2=-1).abs()
    if size.shape[-1]:
        top = size.amax(-1)
        ratio = torch.where(top > 0, size.amin(-1) / torch.where(top > 0, top, 1.0), 0.0)
    else:
        ratio = size.new_ones(size.shape[:-1])
    if wide:
        return matmul(q, triangular.solve(transpose(r), b, upper=False)), ratio
    return triangular.solve(r, matmul(transpose(q), b), upper=True), ratio


def from_singular_values(
    u: Components, s: Components, vt: Components, kept: Tensor, b: Components
) -> Components:
    """Return V diag(1 / s) U^T B over the retained singular values."""
    y = matmul(transpose(u), b)
    safe = where(kept, s, one_like(s))
    y = operations.div(y, each(lambda c: c[..., None], safe))
    y = each(lambda c: torch.where(kept[..., None], c, 0.0), y)
    return matmul(transpose(vt), y)
