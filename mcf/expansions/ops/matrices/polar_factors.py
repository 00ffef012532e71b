"""Polar decompositions and square roots of matrices, of singular values and eigenvalues.

torch has their names from version 2.14 on, and derivatives of them.
"""

from __future__ import annotations

from typing import Any

import torch

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.matrices.linalg import _matrix

aten = torch.ops.aten


def tall(rows: int, columns: int) -> None:
    """Refuse a matrix with fewer rows than columns, as torch does."""
    if rows < columns:
        raise RuntimeError(
            "linalg.polar: input must have at least as many rows as columns, but got "
            f"{rows} by {columns} matrices"
        )


def polar_factors(a: Any) -> tuple[Any, Any]:
    """U V^H and V diag(s) V^H of the singular value decomposition A = U diag(s) V^H.

    With |U^H U - I|, |V^H V - I| and |A - U diag(s) V^H| / |A| of at most 160 k u^terms each
    (`mcf.linalg`, k columns), and the rounding of two products, the first is within 350 k u^terms
    of orthonormal columns and the product of both that times |A| from A (Frobenius norms). The
    second is Hermitian to the bit.

    Args:
        a: real or complex expansions [..., m, k], m >= k.
    """
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return u @ vh, _hermitian((vh.mH * s[..., None, :]) @ vh)


def square_root(a: Any) -> Any:
    """V diag(sqrt(w)) V^H of the eigenvalues A V = V diag(w) of one triangle of a Hermitian A.

    X^2 - A is, with |A V - V diag(w)| <= 208 n u^terms |A| and |V^H V - I| <= 160 n u^terms, at
    most 600 n u^terms |A| (Frobenius norms). Eigenvalues below 0, of which a semidefinite matrix
    may have some by rounding, count as 0, as in torch. X is Hermitian to the bit.

    Args:
        a: real or complex expansions [..., n, n].
    """
    w, v = torch.linalg.eigh(a)
    root: Any = torch.clamp(w, min=0).sqrt()
    return _hermitian((v * root[..., None, :]) @ v.mH)


def _hermitian(x: Any) -> Any:
    """(X + X^H) / 2: the halves of a sum that is the same for both."""
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
