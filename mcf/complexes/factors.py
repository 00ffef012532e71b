"""LU and Cholesky factors, linear systems, inverses and determinants of complex expansions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.derivatives import differentiable
from mcf.complexes.matrices import (
    aligned,
    complex_of,
    components,
    errors,
    matrices,
    right_side,
    summed,
)
from mcf.complexes.tensor import implements, pair
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.tensor import wrap
from mcf.linalg import cholesky_factor, lu_factors, triangular
from mcf.linalg.number_kinds import COMPLEX, halves
from mcf.linalg.parts import Components, each, identity, one_like, where


@implements("linalg_solve_triangular")
def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Return X with A X = B, or X A = B, for a triangular A, as `torch.linalg.solve_triangular`.

    (A + E) X = B with |E| <= c n u^terms |A| in each row; a zero on the diagonal gives infinities
    or NaN, as division does.
    """
    right_side("solve_triangular", a, b, left)
    a, b = aligned(a, b)
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT

    def run(a: Any, b: Any) -> list[Any]:
        given = components(a), components(b)
        options: dict[str, Any] = {"upper": upper, "unitriangular": unitriangular}
        return [complex_of(triangular.solve(*given, **options, numbers=COMPLEX))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        """Return G = A^-H gX for B, and the triangle of -G X^H for A."""
        [a, b], [x] = given, out
        of_b = solve_triangular(a.mH, grads[0], upper=not upper, unitriangular=unitriangular)
        of_a: Any = -(of_b @ x.mH)
        diagonal = int(unitriangular)
        of_a = torch.triu(of_a, diagonal) if upper else torch.tril(of_a, -diagonal)
        return [summed(of_a, a.shape), summed(of_b, b.shape)]

    return differentiable(run, derivative, a, b, widen=False)[0]


def _solved(a: Any, b: Any) -> list[Any]:
    """Return X, the factors of A, pivots and info."""
    x, (factors, pivots, info) = lu_factors.solved(components(a), components(b), COMPLEX)
    return [complex_of(x), complex_of(factors), pivots, info]


def _solve_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return A^-H gX for B, and -A^-H gX X^H for A."""
    [a, b], x = given, out[0]
    of_b = solve(a.mH, grads[0])
    return [summed(-(of_b @ x.mH), a.shape), summed(of_b, b.shape)]


@implements("linalg_solve_ex")
def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """Return X with A X = B, or X A = B, and info, int32: the first pivot that is 0, or 0.

    As `torch.linalg.solve_ex`; see `solve`.
    """
    name = "linalg.solve"
    # Distinguish vectors from matrices as PyTorch does.
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    if vector:
        matrices("solve", A, square=True)
        if B.shape[-1] != A.shape[-1]:
            raise RuntimeError(
                f"{name}: Incompatible shapes of A and B for the equation AX = B: "
                f"{list(A.shape)} and {list(B.shape)}"
            )
    else:
        right_side("solve", A, B, left)
    a, b = aligned(A, B)
    b = b[..., None] if vector else b
    if not (left or vector):
        a, b = a.mT, b.mT
    x, _, _, info = differentiable(_solved, _solve_derivative, a, b, widen=False)
    errors("solve", info, check_errors)
    found = x[..., 0] if vector else x if left else x.mT
    return torch.return_types.linalg_solve_ex((found, info))  # type: ignore[attr-defined]


@implements("linalg_solve")
def solve(A: Any, B: Any, *, left: bool = True) -> Any:
    """Return X with A X = B, or X A = B, as `torch.linalg.solve`.

    LU with partial pivoting (the largest |x| + |y|): |A X - B| <= c n u^terms |L||U||X|, as for
    real systems.

    Raises:
        LinAlgError: if a pivot is exactly 0.
        RuntimeError: for shapes that do not fit.
    """
    return solve_ex(A, B, left=left, check_errors=True)[0]


def _inverse(a: Any) -> list[Any]:
    given = components(a)
    x, (_, _, info) = lu_factors.solved(given, identity(given, a.shape[-1]), COMPLEX)
    return [complex_of(x), info]


def _inverse_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return -X^H gX X^H."""
    other = out[0].mH
    return [-(other @ grads[0] @ other)]


@implements("linalg_inv_ex")
def inv_ex(A: Any, *, check_errors: bool = False) -> Any:
    """Return the inverse and info, as `torch.linalg.inv_ex`; see `solve_ex`."""
    matrices("inv", A, square=True)
    found = differentiable(_inverse, _inverse_derivative, A, widen=False)
    errors("inv", found[1], check_errors)
    return torch.return_types.linalg_inv_ex(tuple(found))  # type: ignore[attr-defined]


@implements("linalg_inv", "inverse")
def inv(A: Any) -> Any:
    """Return the inverse, as `torch.linalg.inv`: the solution for the identity."""
    return inv_ex(A, check_errors=True)[0]


def _eliminated(a: Any, pivot: bool = True) -> tuple[Any, Tensor, Tensor]:
    """Return L below the diagonal and U in one matrix, the exchanged rows (from 1), and info."""
    factors, pivots, info = lu_factors.factor(components(a), pivot, COMPLEX)
    return complex_of(factors), pivots, info


def _permutation(pivots: Tensor, rows: int, like: Any) -> Any:
    order = lu_factors.permutation(pivots, rows)
    ones = torch.zeros(*order.shape, rows, dtype=like.dtype, device=order.device)
    ones.scatter_(-2, order[..., None, :], 1)
    real = like.real.new_zeros(ones.shape) + ones
    return pair(real, torch.zeros_like(real))


def _halves(factors: Any) -> tuple[Any, Any]:
    """Return L with ones on the diagonal, and U."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    eye = torch.eye(m, k, dtype=torch.bool, device=factors.device)
    low = torch.where(eye, 1.0, torch.tril(factors[..., :k], -1))
    return low, torch.triu(factors[..., :k, :])


def _lu_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return P L^-H (tril(L^H gL, -1) + triu(gU U^H)) U^-H for a square matrix."""
    factors, pivots, _ = out
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


@implements("linalg_lu_factor_ex")
def lu_factor_ex(A: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Return L and U in one matrix, the pivots and info, as `torch.linalg.lu_factor_ex`."""
    matrices("lu_factor", A)
    found = differentiable(lambda a: _eliminated(a, pivot), _lu_derivative, A)
    errors("lu_factor", found[2], check_errors)
    return torch.return_types.linalg_lu_factor_ex(tuple(found))  # type: ignore[attr-defined]


@implements("linalg_lu_factor")
def lu_factor(A: Any, *, pivot: bool = True) -> Any:
    """Return L and U in one matrix and the pivots, as `torch.linalg.lu_factor`.

    Pivots have the largest |x| + |y|. |A - P L U| <= c n u^terms |L||U|, as for real matrices.
    """
    factors, pivots, _ = lu_factor_ex(A, pivot=pivot)
    return torch.return_types.linalg_lu_factor((factors, pivots))  # type: ignore[attr-defined]


@implements("linalg_lu")
def lu(A: Any, *, pivot: bool = True) -> Any:
    """Return P, L and U with A = P L U, as `torch.linalg.lu`."""
    factors, pivots = lu_factor(A, pivot=pivot)
    low, up = _halves(factors)
    p = _permutation(pivots, A.shape[-2], factors)
    return torch.return_types.linalg_lu((p, low, up))  # type: ignore[attr-defined]


@implements("linalg_lu_solve")
def lu_solve(LU: Any, pivots: Tensor, B: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """Solve A X = B, X A = B, or these with A^H, from the factors of A."""
    right_side("lu_solve", LU, B, left)

    def run(factors: Any, right: Any) -> list[Any]:
        given = components(factors), pivots, components(right)
        return [complex_of(lu_factors.solve(*given, left=left, adjoint=adjoint, numbers=COMPLEX))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        """Return G = A^-H gX for B, and -G X^H mapped to the factors for A."""
        [factors, right], [x] = given, out
        g = lu_solve(factors, pivots, grads[0], left=left, adjoint=not adjoint)
        of_a: Any = -(g @ x.mH if left else x.mH @ g)
        of_a = of_a.mH if adjoint else of_a
        low, up = _halves(factors)
        inner = _permutation(pivots, factors.shape[-1], factors).mT @ of_a
        of_lu = torch.tril(inner @ up.mH, -1) + torch.triu(low.mH @ inner)
        return [summed(of_lu, factors.shape), summed(g, right.shape)]

    return differentiable(run, derivative, *aligned(LU, B), widen=False)[0]


def _det(a: Any) -> list[Any]:
    return [complex_of(lu_factors.determined(components(a), COMPLEX)[0])]


def _det_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return det A conj(g) A^-H."""
    factor: Any = grads[0] * torch.conj(out[0])
    return [factor[..., None, None] * inv(given[0]).mH]


@implements("linalg_det", "det")
def det(A: Any) -> Any:
    """Return the determinant, the product of the pivots; differentiable if A has an inverse."""
    matrices("det", A, square=True)
    return differentiable(_det, _det_derivative, A)[0]


def _modulus(x: Components) -> tuple[Components, Components]:
    """Return |x|, and a divisor of x that gives its phase: 1 where x is 0."""
    size: Components = torch.hypot(*map(wrap, halves(x))).components  # type: ignore[attr-defined]
    return size, where(size[0] == 0, one_like(size), size)


def _slogdet(a: Any) -> list[Any]:
    """Return the product of the pivots' phases, of modulus 1, and the sum of logarithms."""
    factors, pivots, _ = lu_factors.factor(components(a), True, COMPLEX)
    diagonal = each(lambda c: c.diagonal(dim1=-2, dim2=-1), factors)
    size, divisor = _modulus(diagonal)
    sign = lu_factors.signed_product(COMPLEX.over_real(diagonal, divisor), pivots, COMPLEX)
    sign = COMPLEX.over_real(sign, _modulus(sign)[1])
    return [complex_of(sign), torch.log(wrap(size)).sum(-1)]


def _slogdet_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return (g - i Im(conj(gs) s)) A^-H; gs, g are gradients of the sign s and the logarithm."""
    sign, _ = out
    of_sign, of_log = grads
    real = torch.zeros_like(sign.real) if of_log is None else of_log
    imag = torch.zeros_like(sign.real) if of_sign is None else -(torch.conj(of_sign) * sign).imag
    return [pair(real, imag)[..., None, None] * inv(given[0]).mH]


@implements("linalg_slogdet", "slogdet")
def slogdet(A: Any) -> Any:
    """Return the determinant's phase, of modulus 1 or 0, and the logarithm of its modulus."""
    matrices("slogdet", A, square=True)
    found = differentiable(_slogdet, _slogdet_derivative, A)
    return torch.return_types.linalg_slogdet(tuple(found))  # type: ignore[attr-defined]


implements("logdet")(lambda z: torch.log(det(z)))


def _factored(a: Any) -> list[Any]:
    factor, info = cholesky_factor.factor(components(a), COMPLEX)
    return [complex_of(factor), info]


def _cholesky_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return L^-H (T + T^H) L^-1 / 2; T is tril(L^H gL), its diagonal halved and real."""
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
    """Return L and info, as `torch.linalg.cholesky_ex`: the first non-positive minor, or 0."""
    matrices("cholesky", A, square=True)
    found, info = differentiable(_factored, _cholesky_derivative, A.mH if upper else A)
    errors("cholesky", info, check_errors)
    found = found.mH if upper else found
    return torch.return_types.linalg_cholesky_ex((found, info))  # type: ignore[attr-defined]


@implements("linalg_cholesky", "cholesky")
def cholesky(A: Any, *, upper: bool = False) -> Any:
    """Return L with A = L L^H (U with A = U^H U) of a Hermitian positive-definite A.

    Only that triangle of A and the real part of the diagonal are read.
    |A - L L^H| <= c n u^terms |L||L^H|.
    """
    return cholesky_ex(A, upper=upper, check_errors=True)[0]
