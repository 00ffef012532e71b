"""Cholesky factors of complex expansions."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.derivatives import differentiable
from mcf.complexes.matrices import complex_of, components, errors, matrices
from mcf.complexes.tensor import implements, pair
from mcf.complexes.triangular import solve_triangular
from mcf.linalg import cholesky_factor
from mcf.linalg.numbers import COMPLEX


def _factored(a: Any) -> list[Any]:
    factor, info = cholesky_factor.factor(components(a), COMPLEX)
    return [complex_of(factor), info]


def _derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return L^-H (T + T^H) L^-1 / 2, T the lower triangle of L^H gL with halved real diagonal."""
    low, g = out[0], grads[0]
    inner: Any = torch.tril(low.mH @ torch.tril(g))
    inner = (inner + torch.tril(inner, -1).mH) * 0.5
    n = low.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=low.device)
    inner = pair(inner.real, torch.where(eye, 0.0, inner.imag))
    inner = solve_triangular(low.mH, inner, upper=True)
    return [solve_triangular(low, inner, upper=False, left=False)]


@implements("linalg_cholesky_ex")
def cholesky_ex(A: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Return L and info as `torch.linalg.cholesky_ex`: the first non-positive minor, or 0."""
    matrices("cholesky", A, square=True)
    found, info = differentiable(_factored, _derivative, A.mH if upper else A)
    errors("cholesky", info, check_errors)
    found = found.mH if upper else found
    return torch.return_types.linalg_cholesky_ex((found, info))  # type: ignore[attr-defined]


@implements("linalg_cholesky", "cholesky")
def cholesky(A: Any, *, upper: bool = False) -> Any:
    """Return L with A = L L^H (U with A = U^H U) of a Hermitian positive-definite A.

    Only that triangle of A is read, and only the real part of its diagonal. |A - L L^H| <= c n
    u^terms |L||L^H|.
    """
    return cholesky_ex(A, upper=upper, check_errors=True)[0]
