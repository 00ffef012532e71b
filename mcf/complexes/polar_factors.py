"""Polar decompositions and square roots of matrices of complex expansions."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.derivatives import differentiable
from mcf.complexes.matrices import matrices
from mcf.complexes.tensor import implements
from mcf.expansions.ops.matrices.spectral import polar_factors, square_root, tall


def _shared(x: Any, v: Any, sizes: Any) -> Any:
    """Return L with L S + S L = X, where S = V diag(sizes) V^H."""
    pairs = sizes[..., :, None] + sizes[..., None, :]
    return v @ ((v.mH @ x @ v) / pairs) @ v.mH


def _polar_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return U (L(M - M^H) + gH) + (I - U U^H) gU H^-1, M = U^H gU - gH H.

    L(X) solves L(X) H + H L(X) = X. It follows from dU = U W + (I - U U^H) dA H^-1 and dH = U^H dA
    - W H with W = L(U^H dA - dA^H U).
    """
    u, h = out
    of_u, of_h = grads
    sizes, v = torch.linalg.eigh(h)
    inner: Any = torch.zeros_like(h)
    beyond: Any = None
    if of_u is not None:
        inner = u.mH @ of_u
        outside = of_u - u @ inner
        beyond = ((outside @ v) / sizes[..., None, :]) @ v.mH
    if of_h is not None:
        inner = inner - of_h @ h
    turned = _shared(inner - inner.mH, v, sizes)
    found = u @ (turned if of_h is None else turned + of_h)
    return [found if beyond is None else found + beyond]


def polar(A: Any) -> Any:
    """Return U with orthonormal columns and Hermitian H with A = U H, as `torch.linalg.polar`.

    Bounds and algorithm are those of real matrices (`mcf.expansions.ops.matrices.spectral`).
    The derivative assumes full column rank, as PyTorch's does.

    Raises:
        LinAlgError: for a matrix that is not finite.
        RuntimeError: for a tensor that is not a matrix, or has fewer rows than columns.
    """
    matrices("polar", A)
    tall(*A.shape[-2:])
    found = differentiable(lambda a: [*polar_factors(a)], _polar_derivative, A, widen=False)
    return torch.return_types.linalg_polar(tuple(found))  # type: ignore[attr-defined]


def _root_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return L with L X + X L = (G + G^H) / 2."""
    sizes, v = torch.linalg.eigh(out[0])
    return [_shared((grads[0] + grads[0].mH) * 0.5, v, sizes)]


def matrix_sqrth(A: Any) -> Any:
    """Return the Hermitian square root of one triangle of A, as `torch.linalg.matrix_sqrth`.

    Raises:
        LinAlgError: for a matrix that is not finite.
        RuntimeError: for a matrix that is not square.
    """
    matrices("matrix_sqrth", A, square=True)
    return differentiable(lambda a: [square_root(a)], _root_derivative, A, widen=False)[0]


# These names exist from torch 2.14 on.
if hasattr(torch.linalg, "polar"):
    implements("linalg_polar")(polar)
    implements("linalg_matrix_sqrth")(matrix_sqrth)
