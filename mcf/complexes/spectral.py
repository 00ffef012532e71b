"""`torch.linalg.eig` and `eigvals` of expansion tensors, real and complex."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.complexes.eigen import decompose, scaled, unscaled
from mcf.complexes.factors import solve
from mcf.complexes.tensor import MCFComplexTensor, gradient, implements
from mcf.expansions.dispatch import registry
from mcf.expansions.tensor import MCFTensor


def _all(a: MCFComplexTensor, real: bool) -> tuple[MCFComplexTensor, MCFComplexTensor]:
    """Decompose each matrix [..., n, n]."""
    n, batch = a.shape[-1], a.shape[:-2]
    if not all(bool(torch.isfinite(c).all()) for p in (a.real, a.imag) for c in p.components):
        raise LinAlgError(
            "linalg.eig: The algorithm failed to converge because the input matrix contained "
            "non-finite values."
        )
    if a.real.numel() == 0:
        return a[..., 0, :] if n else a.reshape(*batch, 0), a
    values, vectors = [], []
    for matrix in a.reshape(math.prod(batch), n, n):
        small, exponent = scaled(matrix)
        found = decompose(small, real)
        if found is None:
            raise LinAlgError("linalg.eig: The algorithm failed to converge: too many steps.")
        values.append(unscaled(found[0], exponent, a.real))
        vectors.append(unscaled(found[1], 0, a.real))
    whole: Any = torch.stack
    return whole(values).reshape(*batch, n), whole(vectors).reshape(*batch, n, n)


class _Eig(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.real = y is None
        ctx.set_materialize_grads(False)
        x = x.detach()
        a = MCFComplexTensor(x, torch.zeros_like(x) if y is None else y.detach())  # type: ignore[arg-type]
        w, v = _all(a, real=y is None)
        out = (w.real, w.imag, v.real, v.imag)
        ctx.save_for_backward(*out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        a, b, c, d = ctx.saved_tensors
        g = _derivative(MCFComplexTensor(a, b), MCFComplexTensor(c, d), grads[:2], grads[2:])
        return g.real, None if ctx.real else g.imag


def _derivative(w: Any, v: Any, of_values: Any, of_vectors: Any) -> Any:
    """Return V^-H (diag(gw) + (V^H gV - V^H V Re diag(V^H gV)) / conj(w_j - w_i)) V^H.

    This is PyTorch's formula. Vectors have norm 1, and the loss must not depend on their phase, as
    in PyTorch; equal eigenvalues have no derivative.
    """
    n = w.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=w.device)
    inner = torch.zeros_like(v)
    if any(g is not None for g in of_vectors):
        mixed = v.mH @ gradient(of_vectors)
        own = torch.diagonal(mixed, dim1=-2, dim2=-1).real
        gap = torch.conj(w[..., None, :] - w[..., :, None])
        part = mixed - (v.mH @ v) * own[..., None, :]
        inner = torch.where(eye, 0.0, part / torch.where(eye, 1.0, gap))
    if any(g is not None for g in of_values):
        inner = inner + torch.where(eye, gradient(of_values)[..., None, :], 0.0)
    return solve(v.mH, inner @ v.mH)


def _checked(a: Any) -> None:
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise RuntimeError(
            f"linalg.eig: A must be batches of square matrices, got shape {list(a.shape)}"
        )


@registry.implements(torch.linalg.eig)
@implements("linalg_eig")
def eig(A: Any) -> Any:
    """Return w and V as `torch.linalg.eig`, |A v - w v| <= 16 n u^terms |A| and |v| = 1.

    The rounding to the format adds to that. Eigenvalues have no particular order; the largest
    element of each vector is positive. The simple eigenvalues of a real matrix are real with real
    vectors, or conjugate pairs. The bits are the same on every executor: LAPACK is not used.

    Raises:
        LinAlgError: for a matrix that is not finite, or whose iteration does not end.
        RuntimeError: for a matrix that is not square.
    """
    _checked(A)
    real = isinstance(A, MCFTensor)
    a, b, c, d = _Eig.apply(*((A, None) if real else (A.real, A.imag)))  # type: ignore[no-untyped-call]
    return torch.return_types.linalg_eig((MCFComplexTensor(a, b), MCFComplexTensor(c, d)))  # type: ignore[attr-defined]


@registry.implements(torch.linalg.eigvals)
@implements("linalg_eigvals")
def eigvals(A: Any) -> Any:
    """Return the eigenvalues of `eig`."""
    return eig(A)[0]
