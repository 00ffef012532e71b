"""Implement `det`, `logdet`, `vander` and Cholesky solvers, twice differentiable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.powers_of_two import row_scale


class _Det(torch.autograd.Function):
    """Determinant whose derivative is the matrix of cofactors, det(A) A^-T.

    PyTorch's derivative is 0 if the determinant is exactly 0, and 16-bit formats have none. For a
    second derivative the matrix must be invertible.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        result: Tensor = forward(torch.linalg.det, (a,), {})
        ctx.save_for_backward(a)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (a,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            scale = (grad * det(a))[..., None, None]
            return scale * torch.linalg.inv(a).mT
        return fitted(_cofactors(roomy(a), roomy(grad)[..., None, None]), a)


def _cofactors(a: Any, factor: Any) -> Any:
    """Return a factor times the cofactors of matrices, which may be singular."""
    if not a.numel():
        return torch.zeros_like(a)
    scale = row_scale(a, (-2, -1))
    x = a if scale is None else a * scale
    factors, pivots, _ = torch.linalg.lu_factor_ex(x)
    diagonal = factors.diagonal(0, -2, -1)
    singular = (diagonal == 0).any(-1)
    found = _cofactors_of_factors(factors, pivots)
    if unseen(singular) or bool(singular.any()):
        found = torch.where(singular[..., None, None], _cofactors_of_singular(x), found)
    if scale is None:
        return factor * found
    exponent = torch.frexp(scale)[1].long() - 1
    return torch.ldexp(factor * found, exponent * (1 - a.shape[-1]))


def _cofactors_of_factors(factors: Any, pivots: Tensor) -> Any:
    """Return the cofactors of L U, det(L U) (L U)^-T; NaN if U has a zero on its diagonal.

    Determinant and inverse are of the same L U, so the condition of A does not matter. Cofactors
    are polynomials of the entries, and L U has nearly the entries of A.
    """
    swaps = (pivots != torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)).sum(-1) % 2
    size = factors.diagonal(0, -2, -1).prod(-1) * (1 - 2 * swaps)
    unit = torch.diag_embed(size[..., None].expand(*size.shape, factors.shape[-1]))
    return torch.linalg.lu_solve(factors, pivots, unit, adjoint=True)


def _cofactors_of_singular(a: Any) -> Any:
    """Return det(U) det(V) U S' V^T for A = U S V^T; S'_i is the product of all S_j, j != i."""
    u, s, v = torch.linalg.svd(a)
    one = torch.ones_like(s[..., :1])
    before = torch.cat([one, s[..., :-1].cumprod(-1)], -1)
    after = torch.cat([s[..., 1:].flip(-1).cumprod(-1).flip(-1), one], -1)
    sign = torch.sgn(torch.linalg.det(u) * torch.linalg.det(v))
    return (u * (before * after * sign[..., None])[..., None, :]) @ v


@implements(torch.det, torch.linalg.det, Tensor.det)
def det(A: Any) -> Tensor:
    """Return the determinant of each matrix."""
    return _Det.apply(A)  # type: ignore[no-any-return, no-untyped-call]


@implements(torch.logdet, Tensor.logdet)
def logdet(input: Any) -> Any:
    """Return the logarithm of the determinant; NaN if it is negative."""
    sign, size = torch.linalg.slogdet(input)
    return torch.where(sign < 0, torch.nan, size)


@implements(torch.linalg.vander)
def vander(x: Any, *, N: int | None = None) -> Any:
    """Return 1, x, x^2, ..., x^(N-1) along a new last dimension."""
    x = x.reshape(1) if x.dim() == 0 else x
    count = x.shape[-1] if N is None else N
    if count < 2:
        raise RuntimeError(f"linalg.vander: N must be at least 2, got {count}")
    powers = x[..., None].expand(*x.shape, count - 1).cumprod(-1)
    return torch.cat([torch.ones_like(x)[..., None], powers], -1)


@implements(torch.vander)
def vander_(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """Return `torch.linalg.vander`, by default from the highest power down."""
    found = torch.linalg.vander(x, N=N)
    return found if increasing else found.flip(-1)


@implements(torch.cholesky_solve, Tensor.cholesky_solve)
def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Any:
    """Return X with A X = B for A = L L^H, or U^H U for `upper`."""
    low = L.mH if upper else L
    half = torch.linalg.solve_triangular(low, B, upper=False)
    return torch.linalg.solve_triangular(low.mH, half, upper=True)


@implements(torch.cholesky_inverse, Tensor.cholesky_inverse)
def cholesky_inverse(L: Any, upper: bool = False) -> Any:
    """Return the inverse of A from its Cholesky factor."""
    one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return cholesky_solve(one.expand(L.shape), L, upper)
