"""LU factors and determinants of complex expansions, by elimination in complex arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.complexes.derivatives import differentiable
from mcf.complexes.linear import inv
from mcf.complexes.tensor import MCFComplexTensor, implements, pair
from mcf.complexes.triangular import aligned, solve_triangular
from mcf.tensor.registry import UnsupportedError

# Columns that are eliminated one by one before the rest is a matrix product.
PANEL = 16


def matrices(name: str, a: Any, square: bool = False) -> None:
    """Refuse what is no matrix, or no square one."""
    if a.ndim < 2:
        raise RuntimeError(
            f"linalg.{name}: The input tensor A must have at least 2 dimensions, got shape "
            f"{list(a.shape)}"
        )
    if square and a.shape[-1] != a.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {a.shape[-2]} by "
            f"{a.shape[-1]} matrices"
        )


def components(z: MCFComplexTensor) -> list[Tensor]:
    """All of both parts."""
    return [*z.real.components, *z.imag.components]


def leading(z: MCFComplexTensor) -> Tensor:
    """|x| + |y| of the leading components, as LAPACK has it where it looks for pivots."""
    size: Tensor = z.real.components[0].abs() + z.imag.components[0].abs()
    return size


def _eliminated(a: Any) -> tuple[Any, Tensor]:
    """L below the diagonal and U, and the rows that were exchanged, counted from 1."""
    a = a.detach().clone().contiguous()
    batch, (m, n) = a.shape[:-2], a.shape[-2:]
    k = min(m, n)
    z = a.reshape(math.prod(batch), m, n)
    place = torch.arange(z.shape[0], device=a.device)
    pivots = torch.zeros(z.shape[0], k, dtype=torch.int32, device=a.device)
    for start in range(0, k, PANEL):
        stop = min(start + PANEL, k)
        for j in range(start, stop):
            row = leading(z[:, j:, j]).argmax(-1) + j
            pivots[:, j] = row + 1
            for c in components(z):
                c[place, row], c[:, j] = c[:, j].clone(), c[place, row]
            pivot = z[:, j, j]
            zero = (pivot.real == 0) & (pivot.imag == 0)
            z[:, j + 1 :, j] = z[:, j + 1 :, j] / torch.where(zero, 1.0, pivot)[:, None]
            if j + 1 < stop:
                update = z[:, j + 1 :, j, None] * z[:, j, None, j + 1 : stop]
                z[:, j + 1 :, j + 1 : stop] = z[:, j + 1 :, j + 1 : stop] - update
        if stop < n:
            low = z[:, start:stop, start:stop]
            rows = solve_triangular(low, z[:, start:stop, stop:], upper=False, unitriangular=True)
            z[:, start:stop, stop:] = rows
            if stop < m:
                z[:, stop:, stop:] = z[:, stop:, stop:] - z[:, stop:, start:stop] @ rows
    return z.reshape(a.shape), pivots.reshape(*batch, k)


def _order(pivots: Tensor, rows: int) -> Tensor:
    """The row of A that stands in each row of P^T A."""
    order = torch.arange(rows, device=pivots.device).expand(*pivots.shape[:-1], rows).clone()
    for j in range(pivots.shape[-1]):
        at = (pivots[..., j : j + 1] - 1).long()
        first, second = order[..., j : j + 1].clone(), order.gather(-1, at)
        order[..., j : j + 1] = second
        order.scatter_(-1, at, first)
    return order


def _permutation(pivots: Tensor, rows: int, like: Any) -> Any:
    order = _order(pivots, rows)
    ones = torch.zeros(*order.shape, rows, dtype=like.dtype, device=order.device)
    ones.scatter_(-2, order[..., None, :], 1)
    zero = torch.zeros_like(like.real[..., :1, :1])
    return pair(zero + ones, (zero + torch.zeros_like(ones)))


def _halves(factors: Any) -> tuple[Any, Any]:
    """L with ones on the diagonal, and U."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    eye = torch.eye(m, k, dtype=torch.bool, device=factors.device)
    low = torch.where(eye, 1.0, torch.tril(factors[..., :k], -1))
    return low, torch.triu(factors[..., :k, :])


def _lu_derivative(given: Any, out: Any, grads: Any) -> Any:
    """P L^-H (tril(L^H gL, -1) + triu(gU U^H)) U^-H of a square matrix."""
    factors, pivots = out
    n = factors.shape[-1]
    if factors.shape[-2] != n:
        raise UnsupportedError(
            "linalg.lu: the derivative of complex expansions is that of square matrices"
        )
    low, up = _halves(factors)
    g = grads[0]
    inner: Any = torch.tril(low.mH @ torch.tril(g, -1), -1) + torch.triu(torch.triu(g) @ up.mH)
    inner = solve_triangular(low.mH, inner, upper=True, unitriangular=True)
    inner = solve_triangular(up.mH, inner, upper=False, left=False)
    return [_permutation(pivots, n, factors) @ inner]


@implements("linalg_lu_factor")
def lu_factor(A: Any, *, pivot: bool = True) -> Any:
    """L and U in one matrix and the pivots, as `torch.linalg.lu_factor`, by partial pivoting.

    Pivots are the largest |x| + |y|. |A - P L U| <= c n u^terms |L||U|, as of real matrices.
    """
    matrices("lu_factor", A)
    if not pivot:
        raise UnsupportedError("linalg.lu_factor(pivot=False) of complex expansions")
    found = differentiable(lambda a: _eliminated(a), _lu_derivative, A)
    return torch.return_types.linalg_lu_factor(tuple(found))  # type: ignore[attr-defined]


@implements("linalg_lu")
def lu(A: Any, *, pivot: bool = True) -> Any:
    """P, L and U with A = P L U, as `torch.linalg.lu`."""
    factors, pivots = lu_factor(A, pivot=pivot)
    low, up = _halves(factors)
    p = _permutation(pivots, A.shape[-2], factors)
    return torch.return_types.linalg_lu((p, low, up))  # type: ignore[attr-defined]


@implements("linalg_lu_solve")
def lu_solve(LU: Any, pivots: Tensor, B: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """X with A X = B, X A = B, or that of A^H, from the factors of A."""
    matrices("lu_solve", LU, square=True)
    if adjoint:
        return lu_solve(LU, pivots, B.mH, left=not left).mH
    factors, right = aligned(LU, B)
    taken: Any = torch.take_along_dim
    order = _order(pivots, LU.shape[-1])
    low, up = _halves(factors)
    if left:
        rows = order[..., None].expand(*order.shape, right.shape[-1])
        right = taken(right, rows, -2)
        right = solve_triangular(low, right, upper=False, unitriangular=True)
        return solve_triangular(up, right, upper=True)
    right = solve_triangular(up, right, upper=True, left=False)
    right = solve_triangular(low, right, upper=False, left=False, unitriangular=True)
    columns = torch.argsort(order, -1)[..., None, :].expand(*right.shape)
    return taken(right, columns, -1)


def _parity(pivots: Tensor) -> Tensor:
    moved = pivots != torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    return 1.0 - 2.0 * (moved.sum(-1) % 2).double()


def _det(a: Any) -> list[Any]:
    factors, pivots = _eliminated(a)
    diagonal: Any = torch.diagonal(factors, dim1=-2, dim2=-1)
    return [torch.prod(diagonal, -1) * _parity(pivots)]


def _det_derivative(given: Any, out: Any, grads: Any) -> Any:
    """det A conj(g) A^-H."""
    factor: Any = grads[0] * torch.conj(out[0])
    return [factor[..., None, None] * inv(given[0]).mH]


@implements("linalg_det", "det")
def det(A: Any) -> Any:
    """The determinant, the product of the pivots; a derivative where A has an inverse."""
    matrices("det", A, square=True)
    return differentiable(_det, _det_derivative, A)[0]


def _slogdet(a: Any) -> list[Any]:
    factors, pivots = _eliminated(a)
    diagonal: Any = torch.diagonal(factors, dim1=-2, dim2=-1)
    size: Any = torch.abs(diagonal)
    phases = diagonal / torch.where(size == 0, 1.0, size)
    sign = torch.prod(phases, -1) * _parity(pivots)
    norm: Any = torch.abs(sign)
    return [sign / torch.where(norm == 0, 1.0, norm), torch.log(size).sum(-1)]


def _slogdet_derivative(given: Any, out: Any, grads: Any) -> Any:
    """(g - i Im(conj(gs) s)) A^-H, for the gradients gs of the sign s and g of the logarithm."""
    sign, _ = out
    of_sign, of_log = grads
    real = torch.zeros_like(sign.real) if of_log is None else of_log
    imag = torch.zeros_like(sign.real) if of_sign is None else -(torch.conj(of_sign) * sign).imag
    return [pair(real, imag)[..., None, None] * inv(given[0]).mH]


@implements("linalg_slogdet", "slogdet")
def slogdet(A: Any) -> Any:
    """The determinant's phase, of modulus 1 or 0, and the logarithm of its modulus."""
    matrices("slogdet", A, square=True)
    found = differentiable(_slogdet, _slogdet_derivative, A)
    return torch.return_types.linalg_slogdet(tuple(found))  # type: ignore[attr-defined]


implements("logdet")(lambda z: torch.log(det(z)))


def _positive(a: Any) -> Any:
    """L of a Hermitian matrix of whose lower triangle it is made, by halves."""
    n = a.shape[-1]
    if n <= PANEL:
        return _columns(a)
    half = n // 2
    first = _positive(a[..., :half, :half])
    below: Any = solve_triangular(first.mH, a[..., half:, :half], upper=True, left=False)
    last = _positive(a[..., half:, half:] - below @ below.mH)
    zero: Any = torch.zeros_like(below.mT)
    top, bottom = torch.cat((first, zero), -1), torch.cat((below, last), -1)
    return torch.cat((top, bottom), -2)


def _columns(a: Any) -> Any:
    """The same of a few columns, one after the other."""
    a, found = a.clone(), torch.zeros_like(a)
    for j in range(a.shape[-1]):
        size = a.real[..., j, j]
        if not bool((size > 0).all()):
            raise LinAlgError(
                "linalg.cholesky: The factorization could not be completed because the input is "
                "not positive-definite."
            )
        root: Any = torch.sqrt(size)
        column: Any = a[..., j + 1 :, j] / root[..., None]
        found.real[..., j, j] = root
        found[..., j + 1 :, j] = column
        update = column[..., :, None] * torch.conj(column)[..., None, :]
        a[..., j + 1 :, j + 1 :] = a[..., j + 1 :, j + 1 :] - update
    return found


def _cholesky_derivative(given: Any, out: Any, grads: Any) -> Any:
    """L^-H (T + T^H) L^-1 / 2 with T the lower triangle of L^H gL, its diagonal halved and real."""
    [low], [g] = out, grads
    inner: Any = torch.tril(low.mH @ torch.tril(g))
    inner = (inner + torch.tril(inner, -1).mH) * 0.5
    n = low.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=low.device)
    inner = pair(inner.real, torch.where(eye, 0.0, inner.imag))
    inner = solve_triangular(low.mH, inner, upper=True)
    return [solve_triangular(low, inner, upper=False, left=False)]


@implements("linalg_cholesky")
def cholesky(A: Any, *, upper: bool = False) -> Any:
    """L with A = L L^H (U with A = U^H U), of a Hermitian positive-definite A.

    Only that triangle of A is read, and of the diagonal the real part.
    |A - L L^H| <= c n u^terms |L||L^H|.
    """
    matrices("cholesky", A, square=True)
    if A.real.numel() == 0:
        return torch.zeros_like(A)
    found = differentiable(lambda a: [_positive(a)], _cholesky_derivative, A.mH if upper else A)[0]
    return found.mH if upper else found
