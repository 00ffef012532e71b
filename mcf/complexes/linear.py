"""Linear systems and inverses of complex expansions, by LU in complex arithmetic."""

from __future__ import annotations

from typing import Any

import torch

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
from mcf.complexes.tensor import implements
from mcf.linalg import lu_factors
from mcf.linalg.number_kinds import COMPLEX
from mcf.linalg.parts import identity


def _solved(a: Any, b: Any) -> list[Any]:
    """Return X, the factors of A, pivots and info."""
    x, (factors, pivots, info) = lu_factors.solved(components(a), components(b), COMPLEX)
    return [complex_of(x), complex_of(factors), pivots, info]


def _derivative(given: Any, out: Any, grads: Any) -> Any:
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
    x, _, _, info = differentiable(_solved, _derivative, a, b, widen=False)
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
