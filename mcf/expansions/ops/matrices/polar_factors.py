"""Compute polar decompositions by SVD, and square roots of matrices by eigenvalues.

PyTorch has these functions and their derivatives since version 2.14.
"""

from __future__ import annotations

from typing import Any

import torch

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.matrices.linalg import _matrix

aten = torch.ops.aten


def tall(rows: int, columns: int) -> None:
    """Raise, like PyTorch, if a matrix has fewer rows than columns."""
    if rows < columns:
        raise RuntimeError(
            "linalg.polar: input must have at least as many rows as columns, but got "
            f"{rows} by {columns} matrices"
        )


def polar_factors(a: Any) -> tuple[Any, Any]:
    """Return U V^H and V diag(s) V^H for the singular value decomposition A = U diag(s) V^H.

    For k columns |U^H U - I|, |V^H V - I| and |A - U diag(s) V^H| / |A| are at most 160 k u^terms
    (`mcf.linalg`). With the rounding of two products, the first factor is within 350 k u^terms of
    orthonormal columns. The product of both is within 350 k u^terms |A| of A (Frobenius norms). The
    second factor is exactly Hermitian.

    Args:
        a: real or complex expansions [..., m, k], m >= k.
    """
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return u @ vh, _hermitian((vh.mH * s[..., None, :]) @ vh)


def square_root(a: Any) -> Any:
    """Return V diag(sqrt(w)) V^H for A V = V diag(w), with A Hermitian, given by one triangle.

    The result X has |X^2 - A| <= 600 n u^terms |A| (Frobenius norms), since
    |A V - V diag(w)| <= 208 n u^terms |A| and |V^H V - I| <= 160 n u^terms. Negative eigenvalues,
    which rounding may give a semidefinite matrix, count as 0, as in PyTorch. X is exactly
    Hermitian.

    Args:
        a: real or complex expansions [..., n, n].
    """
    w, v = torch.linalg.eigh(a)
    root: Any = torch.clamp(w, min=0).sqrt()
    return _hermitian((v * root[..., None, :]) @ v.mH)


def _hermitian(x: Any) -> Any:
    """Return (X + X^H) / 2, which is exactly Hermitian."""
    return (x + x.mH) * 0.5


def _polar(a: Any) -> Any:
    _matrix("polar", a)
    tall(*a.shape[-2:])
    return polar_factors(a)


def _matrix_sqrth(a: Any) -> Any:
    _matrix("matrix_sqrth", a, square=True)
    return square_root(a)


if hasattr(aten, "linalg_polar"):
    implements(aten.linalg_polar.default)(_polar)
    implements(aten.linalg_matrix_sqrth.default)(_matrix_sqrth)
