"""Implement factorisations, solvers and determinants of matrices.

PyTorch differentiates most of them in our arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.elementary.logarithm import log
from mcf.expansions.dispatch.recorded import unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.constants import row_scale
from mcf.expansions.promotion import operands, result_format
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.linalg import lu_factors
from mcf.linalg import opaque_decompositions as operators
from mcf.linalg.parts import Components, each, identity, like, padded, transpose
from mcf.reductions import sum as total

aten = torch.ops.aten


def _matrix(name: str, a: Any, square: bool = False) -> None:
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


def _right_side(name: str, a: Any, b: Any, left: bool = True) -> None:
    _matrix(name, a, square=True)
    if b.ndim < 2 or a.shape[-1] != b.shape[-2 if left else -1]:
        order = "AX = B" if left else "XA = B"
        raise RuntimeError(
            f"linalg.{name}: Incompatible shapes of A and B for the equation {order}: "
            f"{list(a.shape)} and {list(b.shape)}"
        )


def _is_vector(a: Any, b: Any) -> bool:
    """Return whether B is a vector or a batch of vectors, as PyTorch decides it."""
    return bool(b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1]))


def _sides(a: Any, b: Any, left: bool) -> bool:
    """Return whether B is a vector, after refusing systems whose shapes do not fit."""
    if not _is_vector(a, b):
        _right_side("solve", a, b, left)
        return False
    _matrix("solve", a, square=True)
    if b.shape[-1] != a.shape[-1]:
        raise RuntimeError(
            f"linalg.solve: Incompatible shapes of A and B for the equation AX = B: "
            f"{list(a.shape)} and {list(b.shape)}"
        )
    return True


def _qr_mode(mode: str) -> None:
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), "
            "'r', or 'complete'"
        )


def _padded(a: Any, b: Any) -> tuple[Components, ...]:
    """Return the components of both, padded to the result's number of components."""
    terms = result_format(a, b)[1]
    return tuple(padded(x, terms) for x in operands(a, b))


def _raise(name: str, info: Tensor, wanted: bool) -> None:
    """Raise PyTorch's error if a factorisation failed."""
    if wanted:
        torch._linalg_check_errors(info, f"linalg.{name}", is_matrix=info.dim() == 0)


@implements(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(a: MCFTensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Return L and U in one matrix, pivots and info."""
    _matrix("lu_factor_ex", a)
    factors, pivots, info = operators.lu_factor(a.components, pivot)
    _raise("lu_factor_ex", info, check_errors)
    return wrap(factors), pivots, info


@implements(aten.linalg_lu.default)
def lu_(a: MCFTensor, *, pivot: bool = True) -> Any:
    """Return P, L and U; P is an expansion too, so that P @ L @ U is A."""
    _matrix("lu", a)
    factors, pivots, _ = operators.lu_factor(a.components, pivot)
    low, up = wrap(lu_factors.lower(factors)), wrap(lu_factors.upper(factors))
    return _permutation(factors, pivots), low, up


def _permutation(factors: Components, pivots: Tensor) -> MCFTensor:
    rows = factors[0].shape[-2]
    order = operators.permutation(pivots, rows)
    matrix = torch.zeros(*order.shape, rows, dtype=factors[0].dtype, device=order.device)
    return wrap(like(factors, matrix.scatter_(-2, order[..., None, :], 1)))


@implements(aten.lu_unpack.default)
def lu_unpack(
    factors: MCFTensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    """Return P, L and U; empty tensors for parts that are not requested."""
    parts, nothing = factors.components, wrap(each(lambda c: c.new_empty(0), factors.components))
    p = _permutation(parts, pivots) if unpack_pivots else nothing
    if not unpack_data:
        return p, nothing, nothing
    return p, wrap(lu_factors.lower(parts)), wrap(lu_factors.upper(parts))


@implements(aten.linalg_lu_solve.default)
def lu_solve(
    factors: Any, pivots: Tensor, b: Any, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """Return X with A X = B from the factors of A."""
    _right_side("lu_solve", factors, b, left)
    a, right = _padded(factors, b)
    [x] = operators.lu_solve(a, pivots, right, left, adjoint)
    return wrap(x)


@implements(aten._linalg_solve_ex.default)
def solve_ex(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """Return X with A X = B, the factors of A, pivots and info."""
    vector = _sides(a, b, left)
    x, y = _padded(a, b)
    y = each(lambda c: c.unsqueeze(-1), y) if vector else y
    if left or vector:
        solution, factors, pivots, info = operators.solve(x, y)
    else:
        factors, pivots, info = operators.lu_factor(x, True)
        [solution] = operators.lu_solve(factors, pivots, y, False, False)
    _raise("solve_ex", info, check_errors)
    solution = each(lambda c: c.squeeze(-1), solution) if vector else solution
    return wrap(solution), wrap(factors), pivots, info


@implements(aten.linalg_inv_ex.default)
def inv_ex(a: MCFTensor, *, check_errors: bool = False) -> Any:
    """Return the inverse and info."""
    _matrix("inv", a, square=True)
    eye = identity(a.components, a.shape[-1])
    inverse, _, _, info = operators.solve(a.components, eye)
    _raise("inv_ex", info, check_errors)
    return wrap(inverse), info


def _determinant_matrix(name: str, a: MCFTensor) -> Components:
    """Return A^T if A is contiguous: PyTorch's derivative expects the factors of A^T then."""
    _matrix(name, a, square=True)
    return transpose(a.components) if a.is_contiguous() else a.components


@implements(aten._linalg_det.default)
def linalg_det(a: MCFTensor) -> Any:
    """Return the determinant, and the LU factors and pivots."""
    found, factors, pivots, _ = operators.det(_determinant_matrix("det", a))
    return wrap(found), wrap(factors), pivots


@implements(aten._linalg_slogdet.default)
def slogdet(a: MCFTensor) -> Any:
    """Return the determinant's sign and log of its absolute value, the LU factors and pivots."""
    factors, pivots, _ = operators.lu_factor(_determinant_matrix("slogdet", a), True)
    diagonal = each(lambda c: c.diagonal(dim1=-2, dim2=-1), factors)
    negative = torch.signbit(diagonal[0])
    size = each(lambda c: torch.where(negative, -c, c), diagonal)
    sign = (torch.sign(diagonal[0]).prod(-1) * lu_factors.parity(pivots)).to(diagonal[0].dtype)
    return wrap(like(factors, sign)), wrap(total(log(size), -1)), wrap(factors), pivots


@implements(aten.linalg_cholesky_ex.default)
def cholesky_ex(a: MCFTensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Return L (U for `upper`) and info; only that triangle of A is read."""
    _matrix("cholesky", a, square=True)
    factor, info = operators.cholesky(transpose(a.components) if upper else a.components)
    _raise("cholesky_ex", info, check_errors)
    factor = each(torch.Tensor.contiguous, transpose(factor)) if upper else factor
    return wrap(factor), info


@implements(aten.linalg_qr.default)
def qr_(a: MCFTensor, mode: str = "reduced") -> Any:
    """Return Q and R; an empty Q for mode "r"."""
    _matrix("qr", a)
    _qr_mode(mode)
    q, r = operators.qr(a.components, mode)
    return wrap(each(lambda c: c.new_empty(0), r) if q is None else q), wrap(r)


@implements(aten.linalg_solve_triangular.default)
def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Return X with A X = B (X A = B unless `left`) for a triangular A."""
    _right_side("solve_triangular", a, b, left)
    x, y = _padded(a, b)
    return wrap(
        operators.solve_triangular(x, y, upper=upper, left=left, unitriangular=unitriangular)
    )


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


def _columns(name: str, a: Any, tau: Any) -> list[tuple[Any, Any]]:
    """Return v [..., m, 1] and tau [..., 1, 1] of each reflection I - tau v v^T.

    v is 0 above the diagonal, 1 on it and a column of A below it.
    """
    if a.dim() < 2 or tau.dim() != a.dim() - 1 or a.shape[:-2] != tau.shape[:-1]:
        raise RuntimeError(
            f"{name}: tau must have the batch of input and one dimension, got input "
            f"{list(a.shape)} and tau {list(tau.shape)}"
        )
    m, n = a.shape[-2:]
    count = tau.shape[-1]
    if count > min(m, n):
        raise RuntimeError(
            f"{name}: tau has {count} elements, more than the rows or columns of input, {m} and {n}"
        )
    low = a.tril(-1) + torch.eye(m, n, dtype=a.dtype, device=a.device)
    return [(low[..., k : k + 1], tau[..., k, None, None]) for k in range(count)]


def _applied(pairs: list[tuple[Any, Any]], x: Any) -> Any:
    """Apply the reflections to x, the last one first."""
    for v, tau in reversed(pairs):
        x = x - (tau * v) @ (v.mT @ x)
    return x


@implements(torch.linalg.householder_product, torch.orgqr, Tensor.orgqr)
def householder_product(A: Any, tau: Any) -> Any:
    """Return the first n columns of Q, the product of the reflections of `geqrf`."""
    pairs = _columns("linalg.householder_product", A, tau)
    m, n = A.shape[-2:]
    if m < n:
        raise RuntimeError(
            "linalg.householder_product: input must have at least as many rows as columns, got "
            f"{m} and {n}"
        )
    eye = torch.eye(m, n, dtype=A.dtype, device=A.device).expand(*A.shape[:-2], m, n)
    given = A if isinstance(A, MCFTensor) else tau
    start: Any = wrap(like(given.components, eye.contiguous()))
    if not pairs:
        # Without reflections the result is constant, but autograd records it as in PyTorch.
        never = torch.zeros(eye.shape, dtype=torch.bool, device=A.device)
        return torch.where(never, A, start + tau.sum(-1)[..., None, None])
    return _applied(pairs, start)


@implements(torch.ormqr, Tensor.ormqr)
def ormqr(input: Any, tau: Any, other: Any, left: bool = True, transpose: bool = False) -> Any:
    """Return Q C, Q^T C, C Q or C Q^T for the square Q of `geqrf`."""
    pairs = _columns("ormqr", input, tau)
    if not pairs:
        # Q is the identity, and the result must not alias `other`.
        return other + torch.zeros_like(other) * tau.sum()
    if left:
        return _applied(pairs[::-1] if transpose else pairs, other)
    return _applied(pairs if transpose else pairs[::-1], other.mT).mT


@implements(aten.geqrf.default)
def geqrf(a: MCFTensor) -> Any:
    """Return R with the reflections' v below its diagonal, and tau."""
    _matrix("geqrf", a)
    both, tau = operators.reflections(a.components)
    return wrap(both), wrap(tau)


implements(torch.cholesky, Tensor.cholesky)(
    lambda input, upper=False: torch.linalg.cholesky(input, upper=upper)
)


@implements(torch.triangular_solve, Tensor.triangular_solve)
def triangular_solve(
    b: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """Return the solution, as the deprecated `torch.triangular_solve`, and a copy of A."""
    matrix = A.mT if transpose else A
    found = torch.linalg.solve_triangular(
        matrix, b, upper=upper != transpose, unitriangular=unitriangular
    )
    return torch.return_types.triangular_solve((found, A.clone()))


@implements(aten.linalg_ldl_factor_ex.default)
def ldl_factor_ex(
    a: MCFTensor, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[MCFTensor, Tensor, Tensor]:
    """Return L and D in one matrix, pivots and info."""
    _matrix("ldl_factor_ex", a, square=True)
    factors, pivots, info = operators.ldl_factor(a.components)
    if check_errors and bool(info.any()):
        first = int(info.flatten()[info.flatten().nonzero()[0]])
        raise LinAlgError(f"linalg.ldl_factor_ex: block {first} of D is 0, so that A is singular")
    return wrap(factors), pivots, info


@implements(aten.linalg_ldl_solve.default)
def ldl_solve(factors: Any, pivots: Tensor, b: Any, *, hermitian: bool = False) -> MCFTensor:
    """Return X with A X = B from the LDL factors of A."""
    _right_side("ldl_solve", factors, b, left=True)
    x, y = _padded(factors, b)
    [found] = operators.ldl_solve(x, pivots, y)
    return wrap(found)
