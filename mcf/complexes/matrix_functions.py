"""Powers, exponentials and norms of matrices of complex expansions."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from mcf.complexes.derivatives import differentiable
from mcf.complexes.factors import inv, solve
from mcf.complexes.hermitian import svd
from mcf.complexes.matrices import complex_of, components, matrices
from mcf.complexes.products import matmul
from mcf.complexes.tensor import implements, pair
from mcf.expansions.ops.matrices.linalg import cholesky_inverse, cholesky_solve
from mcf.linalg import matrix_exponential
from mcf.linalg.number_kinds import COMPLEX

implements("cholesky_solve")(cholesky_solve)
implements("cholesky_inverse")(cholesky_inverse)


@implements("linalg_matrix_power", "matrix_power")
def matrix_power(A: Any, n: int) -> Any:
    """Return A^n by repeated squaring, of the inverse for n < 0, as `torch.linalg.matrix_power`.

    Each product has the error of `matmul`.
    """
    matrices("matrix_power", A, square=True)
    if not isinstance(n, int):
        raise TypeError(f"linalg.matrix_power: n must be an int, got {n!r}")
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 1:
        return A.clone()
    found: Any = None
    while n:
        if n & 1:
            found = A if found is None else found @ A
        n >>= 1
        A = A @ A if n else A
    if found is None:
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand(A.shape)
        # The identity is independent of A's values; its derivative is 0.
        real: Any = torch.where(eye > 0, torch.ones_like(A.real), torch.zeros_like(A.real))
        return pair(real, torch.zeros_like(real))
    return found


def _block(a: Any, g: Any) -> Any:
    """Return [[A, G], [0, A]]."""
    zero: Any = torch.zeros_like(a)
    return torch.cat((torch.cat((a, g), -1), torch.cat((zero, a), -1)), -2)


@implements("linalg_matrix_exp", "matrix_exp")
def matrix_exp(A: Any) -> Any:
    """Return the exponential of each matrix, by scaling and squaring of a Taylor polynomial.

    The error in the 1-norm is at most c n (1 + |A|) u^terms e^|A|, as for real matrices. The
    derivative is a block of the exponential of [[A^H, G], [0, A^H]].
    """
    matrices("matrix_exp", A, square=True)

    def run(a: Any) -> list[Any]:
        return [complex_of(matrix_exponential.exponential(components(a), COMPLEX))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        n = given[0].shape[-1]
        return [matrix_exp(_block(given[0].mH, grads[0]))[..., :n, n:]]

    return differentiable(run, derivative, A)[0]


@implements("linalg_multi_dot", "chain_matmul")
def multi_dot(tensors: Any, *more: Any) -> Any:
    """Return the product of matrices, from left to right; the first and the last may be vectors."""
    given = [tensors, *more] if more else list(tensors)
    if len(given) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(given)}")
    return functools.reduce(matmul, given)


def _singular(ord: Any) -> bool:
    return ord in (2, -2, "nuc")


@implements("linalg_matrix_norm")
def matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Any:
    """Return the norm of each matrix, real: "fro", "nuc", 1, 2, inf and their negatives.

    2, -2 and "nuc" use singular values, the others are norms of the moduli.
    """
    matrices("matrix_norm", A)
    if not _singular(ord):
        return torch.linalg.matrix_norm(torch.abs(A), ord, dim, keepdim)
    rows, columns = (d % A.ndim for d in dim)
    values: Any = svd(A.movedim((rows, columns), (-2, -1)), full_matrices=False)[1]
    found = values.sum(-1) if ord == "nuc" else values[..., 0 if ord == 2 else -1]
    if not keepdim:
        return found
    for d in sorted((rows, columns)):
        found = found.unsqueeze(d)
    return found


@implements("linalg_norm")
def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the norm of vectors or matrices, as `torch.linalg.norm`; real."""
    both = A.ndim == 2 if dim is None else not isinstance(dim, int) and len(dim) == 2
    if both and _singular(ord):
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim)
    return torch.linalg.norm(torch.abs(A), ord, dim, keepdim)


@implements("linalg_cond")
def cond(A: Any, p: Any = None) -> Any:
    """Return |A| |A^-1| in the norm p; by default the largest over the smallest singular value.

    It is infinite if A has no inverse, as in PyTorch.
    """
    matrices("cond", A, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values: Any = svd(A, full_matrices=False)[1]
        high, low = values[..., 0], values[..., -1]
        return low / high if p == -2 else high / low
    try:
        return matrix_norm(A, p) * matrix_norm(inv(A), p)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if A.ndim > 2:
            raise
        return torch.zeros_like(A.real[0, 0]) + math.inf


@implements("linalg_tensorsolve")
def tensorsolve(A: Any, B: Any, dims: Any = None) -> Any:
    """Return X with tensordot(A, X, X.ndim) = B, as `torch.linalg.tensorsolve`."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    shape = A.shape[B.ndim :]
    size = math.prod(shape)
    if math.prod(B.shape) != size:
        raise RuntimeError(
            "linalg.tensorsolve: Expected self to satisfy the requirement prod(self.shape[other."
            f"ndim:]) == prod(self.shape[:other.ndim]), got shapes {list(A.shape)} and "
            f"{list(B.shape)}"
        )
    return solve(A.reshape(size, size), B.reshape(size)).reshape(shape)


@implements("linalg_tensorinv")
def tensorinv(A: Any, ind: int = 2) -> Any:
    """Return the inverse of A as a map of tensors, as `torch.linalg.tensorinv`."""
    first, rest = A.shape[:ind], A.shape[ind:]
    size = math.prod(first)
    if ind <= 0 or size != math.prod(rest):
        raise RuntimeError(
            "linalg.tensorinv: Expected self to satisfy the requirement prod(self.shape[ind:]) == "
            f"prod(self.shape[:ind]) with ind > 0, got shape {list(A.shape)} and ind {ind}"
        )
    return inv(A.reshape(size, size)).reshape(*rest, *first)
