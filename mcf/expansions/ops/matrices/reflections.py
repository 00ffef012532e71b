"""Implement products of Householder reflections in LAPACK's form, LDL, and older torch names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.matrices.linalg import _matrix, _padded, _right_side
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.linalg import opaque_decompositions as operators
from mcf.linalg.parts import like

aten = torch.ops.aten


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


@implements(torch.cholesky, Tensor.cholesky)
def cholesky(input: Any, upper: bool = False) -> Any:
    """Return `torch.linalg.cholesky`, under PyTorch's older name."""
    return torch.linalg.cholesky(input, upper=upper)


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
