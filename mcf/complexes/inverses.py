"""Pseudoinverses, least squares and ranks of complex expansions."""

from __future__ import annotations

from typing import Any

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.complexes.derivatives import differentiable
from mcf.complexes.factors import solve_triangular
from mcf.complexes.hermitian import eigh, svd
from mcf.complexes.matrices import aligned, leading, matrices, summed
from mcf.complexes.orthogonal import qr
from mcf.complexes.tensor import implements
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.ops.matrices.spectral import kept, matrix_rank
from mcf.kernels.formats import format_of

implements("linalg_matrix_rank")(matrix_rank)


def _inverted(u: Any, s: Any, vh: Any, large: Any) -> Any:
    """Return V diag(1 / s) U^H over some singular values."""
    inverse = torch.where(large, 1.0 / torch.where(large, s, 1.0), 0.0)
    return (vh.mH * inverse[..., None, :]) @ u.mH


def _gradient(a: Any, p: Any, g: Any) -> Any:
    """Return the gradient of A from that of its pseudoinverse P, for constant rank.

    It is -P^H G P^H + (I - A P) G^H P P^H + P^H P G^H (I - P A) (Golub, Pereyra 1973).
    """
    ph, gh = p.mH, g.mH
    first, second = gh @ p, p @ gh
    found = first @ ph - a @ (p @ first) @ ph
    found = found + ph @ second - ph @ ((second @ p) @ a)
    return found - ph @ g @ ph


@implements("linalg_pinv", "pinverse")
def pinv(
    A: Any, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Any:
    """Return V diag(1 / s) U^H over singular values above max(atol, rtol max s).

    As `torch.linalg.pinv`. The default `rtol` is max(m, n) times 2 u^terms. The derivative assumes
    that the rank is constant.
    """
    matrices("pinv", A, square=hermitian)
    rtol = rcond if rtol is None else rtol

    def run(a: Any) -> list[Any]:
        if hermitian:
            s, u = eigh(a)
            vh = u.mH
        else:
            u, s, vh = svd(a, full_matrices=False)
        return [_inverted(u, s, vh, kept(A, s.components[0], atol, rtol))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        return [_gradient(given[0], out[0], grads[0])]

    return differentiable(run, derivative, A)[0]


def _full_rank(a: Any, b: Any) -> tuple[Any, bool]:
    """Return the solution by QR of A or A^H, and whether R's diagonal shows full rank."""
    wide = a.shape[-2] < a.shape[-1]
    q, r = qr(a.mH if wide else a)
    diagonal: Any = torch.diagonal(r, dim1=-2, dim2=-1)
    size = leading(diagonal)
    least = max(a.shape[-2:]) * 2 * float(format_of(a.dtype).u ** a.terms)
    full = bool((size.amin(-1) > least * size.amax(-1)).all())
    if not full:
        return None, False
    if wide:
        return q @ solve_triangular(r.mH, b, upper=False), True
    return solve_triangular(r, q.mH @ b, upper=True), True


@implements("linalg_lstsq")
def lstsq(A: Any, B: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """Return X of least norm that minimises |A X - B|, as `torch.linalg.lstsq`.

    It uses QR if R's diagonal shows full rank, else singular values; with `driver="gels"` QR alone.
    The residuals are empty except for "gels" with more rows than columns, and the singular values
    are always empty; the rank is determined by `rcond`, or full. The derivative is that of A^+ B.

    Raises:
        LinAlgError: with "gels", if A does not have full rank.
        UnsupportedError: for the drivers "gelsy", "gelsd", "gelss" (use `torch.linalg.pinv` and
            `svd` instead).
        RuntimeError: for shapes that do not fit.
    """
    matrices("lstsq", A)
    if driver not in (None, "gels"):
        raise UnsupportedError(
            f"linalg.lstsq(driver={driver!r}) is unsupported for complex expansions; use None or "
            "'gels', or torch.linalg.pinv(A) @ B for least norms by singular values"
        )
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    rows = None if not B.ndim else B.shape[-1] if vector else B.shape[-2]
    if rows != A.shape[-2]:
        raise RuntimeError(
            "torch.linalg.lstsq: input.size(-2) should match other.size(-2), got shapes "
            f"{list(A.shape)} and {list(B.shape)}"
        )
    a, b = aligned(A, B)
    b = b[..., None] if vector else b
    ranks = torch.full(A.shape[:-2], min(A.shape[-2:]), device=A.device)

    def run(a: Any, b: Any) -> list[Any]:
        if 0 in a.shape:
            raise UnsupportedError("linalg.lstsq of complex expansions without elements")
        x, full = _full_rank(a, b)
        if not full and driver == "gels":
            raise LinAlgError(
                "torch.linalg.lstsq: The least squares solution could not be computed because the "
                "input matrix does not have full rank; driver=None gives the one of least norm"
            )
        if not full:
            u, s, vh = svd(a, full_matrices=False)
            large = kept(A, s.components[0], None, rcond)
            ranks.copy_(large.sum(-1))
            x = _inverted(u, s, vh, large) @ b
        return [x]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        [a, b], [g] = given, grads
        p = pinv(a, rtol=rcond)
        of_a = _gradient(a, p, g @ b.mH)
        return [summed(of_a, a.shape), summed(p.mH @ g, b.shape)]

    x = differentiable(run, derivative, a, b)[0]
    nothing = a.real.detach().reshape(-1)[:0]
    residuals = nothing
    if driver == "gels" and A.shape[-2] > A.shape[-1]:
        rest = a @ x - b
        residuals = (rest.real * rest.real + rest.imag * rest.imag).sum(-2)
        residuals = residuals[..., 0] if vector else residuals
    rank = ranks.reshape(-1)[:0] if driver == "gels" else ranks
    found = (x[..., 0] if vector else x, residuals, rank, nothing)
    return torch.return_types.linalg_lstsq(found)  # type: ignore[attr-defined]
