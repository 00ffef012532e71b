"""Implement matrix factorisations and solvers; PyTorch differentiates them in our arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.elementary.logarithm import log
from mcf.expansions.dispatch.registry import implements
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
def det(a: MCFTensor) -> Any:
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
