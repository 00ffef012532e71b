"""Functions of matrices that torch has not for every format, or not differentiable twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.tensor.registry import implements
from mcf.tensor.torch_functions import forward


class _Det(torch.autograd.Function):
    """The determinant; its derivative is det(A) A^-T.

    torch's is 0 where the determinant is exactly 0, and stays so. Where it is differentiable itself
    torch asks for singular values, which expansions do not have: there a matrix must have an
    inverse.
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
        with torch.enable_grad():
            leaf = a.detach().requires_grad_()
            result = forward(torch.linalg.det, (leaf,), {})
        return torch.autograd.grad(result, leaf, grad)[0]


@implements(torch.det, torch.linalg.det, Tensor.det)
def det(A: Any) -> Tensor:
    """The determinant of each matrix."""
    return _Det.apply(A)  # type: ignore[no-any-return, no-untyped-call]


@implements(torch.logdet, Tensor.logdet)
def logdet(input: Any) -> Any:
    """The logarithm of the determinant, NaN where that is negative."""
    sign, size = torch.linalg.slogdet(input)
    return torch.where(sign < 0, torch.nan, size)


@implements(torch.linalg.vander)
def vander(x: Any, *, N: int | None = None) -> Any:
    """1, x, x^2, ..., x^(N-1) along a new last dimension."""
    x = x.reshape(1) if x.dim() == 0 else x
    count = x.shape[-1] if N is None else N
    if count < 2:
        raise RuntimeError(f"linalg.vander: N must be at least 2, got {count}")
    powers = x[..., None].expand(*x.shape, count - 1).cumprod(-1)
    return torch.cat([torch.ones_like(x)[..., None], powers], -1)


def _of_singular_values(A: Any, ord: Any, matrix: bool) -> bool:
    """Whether torch would refuse such a norm in the format of A, which has 16 bits."""
    narrow = A.dtype in (torch.bfloat16, torch.float16)
    return narrow and matrix and ord in (2, -2, "nuc")


@implements(torch.linalg.matrix_norm)
def matrix_norm(A: Any, ord: Any = "fro", *args: Any, **kwargs: Any) -> Any:
    """The norm of each matrix: "fro", "nuc", 1, 2, inf and their negatives."""
    if _of_singular_values(A, ord, True):
        return forward(torch.linalg.matrix_norm, (A.float(), ord, *args), kwargs).to(A.dtype)
    return forward(torch.linalg.matrix_norm, (A, ord, *args), kwargs)


@implements(torch.linalg.norm)
def norm(A: Any, ord: Any = None, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The norm of vectors or matrices."""
    matrix = A.dim() == 2 if dim is None else not isinstance(dim, int) and len(dim) == 2
    if _of_singular_values(A, ord, matrix):
        return forward(torch.linalg.norm, (A.float(), ord, dim, *args), kwargs).to(A.dtype)
    return forward(torch.linalg.norm, (A, ord, dim, *args), kwargs)


@implements(torch.norm)
def norm_of_one_format(input: Any, p: Any = "fro", *args: Any, **kwargs: Any) -> Any:
    """torch's older function, which has "nuc" for matrices, too."""
    if _of_singular_values(input, p, p == "nuc"):
        return forward(torch.norm, (input.float(), p, *args), kwargs).to(input.dtype)
    return forward(torch.norm, (input, p, *args), kwargs)


@implements(torch.vander)
def vander_(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """`torch.linalg.vander`, by default from the highest power down."""
    found = torch.linalg.vander(x, N=N)
    return found if increasing else found.flip(-1)


@implements(torch.cholesky_solve, Tensor.cholesky_solve)
def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Any:
    """X with A X = B for A = L L^H, or U^H U for `upper`."""
    low = L.mH if upper else L
    half = torch.linalg.solve_triangular(low, B, upper=False)
    return torch.linalg.solve_triangular(low.mH, half, upper=True)


@implements(torch.cholesky_inverse, Tensor.cholesky_inverse)
def cholesky_inverse(L: Any, upper: bool = False) -> Any:
    """The inverse of A from its Cholesky factor."""
    one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return cholesky_solve(one.expand(L.shape), L, upper)
