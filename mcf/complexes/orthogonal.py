"""QR factors of complex expansions, by Householder reflections in complex arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch

from mcf.complexes.derivatives import differentiable
from mcf.complexes.matrices import leading, matrices
from mcf.complexes.tensor import implements, pair
from mcf.complexes.triangular import solve_triangular
from mcf.kernels import operations
from mcf.tensor.registry import UnsupportedError
from mcf.tensor.tensor import wrap


def _vector(x: Any) -> tuple[Any, Any, Any]:
    """v, 2 / |v|^2 and b with (I - 2 v v^H / |v|^2) x = b e of columns x, and b real for real x[0].

    v = x + e^(i arg x[0]) |x| e and b = -e^(i arg x[0]) |x|; of zeros v = 0. x is scaled by a power
    of two first, so that no square leaves the range.
    """
    exponent = torch.frexp(leading(x).amax(-1))[1].long()
    x = pair(
        *(wrap(operations.ldexp(p.components, -exponent[..., None])) for p in (x.real, x.imag))
    )
    norm: Any = (x.real * x.real + x.imag * x.imag).sum(-1).sqrt()
    first: Any = x[..., 0]
    size: Any = torch.abs(first)
    phase = torch.where(size == 0, 1.0, first / torch.where(size == 0, 1.0, size))
    v: Any = x.clone()
    v[..., 0] = first + phase * norm
    # |v|^2 = 2 |x| (|x| + |x[0]|).
    below = norm * (norm + size)
    factor = torch.where(below == 0, 0.0, 1.0 / torch.where(below == 0, 1.0, below))
    top = -phase * norm
    back = (wrap(operations.ldexp(p.components, exponent)) for p in (top.real, top.imag))
    return v, factor, pair(*back)


def _reflected(a: Any, v: Any, factor: Any) -> Any:
    """(I - factor v v^H) A."""
    rows = torch.conj(v)[..., None, :] @ a
    return a - (v * factor[..., None])[..., :, None] * rows


def decompose(a: Any, complete: bool) -> list[Any]:
    """Q and R; R has a real diagonal that is not negative."""
    m, n = a.shape[-2:]
    k = min(m, n)
    z: Any = a.clone().contiguous().reshape(math.prod(a.shape[:-2]), m, n)
    kept = []
    for j in range(k):
        v, factor, top = _vector(z[:, j:, j])
        if j + 1 < n:
            z[:, j:, j + 1 :] = _reflected(z[:, j:, j + 1 :], v, factor)
        z[:, j, j] = top
        z[:, j + 1 :, j] = 0.0
        kept.append((v, factor))
    columns = m if complete else k
    eye = torch.eye(m, columns, dtype=a.dtype, device=a.device).expand(z.shape[0], m, columns)
    zero = torch.zeros_like(z.real[:, :1, :1])
    q: Any = pair(zero + eye, zero + torch.zeros_like(eye))
    for j in reversed(range(k)):
        q[:, j:, j:] = _reflected(q[:, j:, j:], *kept[j])
    # Rows of R turned until the diagonal is |r|, and columns of Q the other way.
    diagonal: Any = torch.diagonal(z, dim1=-2, dim2=-1)
    size: Any = torch.abs(diagonal)
    phase = torch.where(size == 0, 1.0, diagonal / torch.where(size == 0, 1.0, size))
    r: Any = z[:, :columns].clone()
    r[:, :k] = torch.conj(phase)[:, :, None] * r[:, :k]
    for i in range(k):
        r[:, i, i] = size[:, i]
    q[:, :, :k] = q[:, :, :k] * phase[:, None, :]
    shape = a.shape[:-2]
    return [q.reshape(*shape, m, columns), r.reshape(*shape, columns, n)]


def _derivative(given: Any, out: Any, grads: Any) -> Any:
    """(gQ + Q S) R^-H, S = T + T^H with half of a real diagonal, T = triu(gR R^H - Q^H gQ)."""
    q, r = out
    of_q, of_r = grads
    if q.shape[-1] != r.shape[-1]:
        raise UnsupportedError(
            "linalg.qr: the derivative of complex expansions is that of mode='reduced' of at least "
            "as many rows as columns"
        )
    inner: Any = torch.zeros_like(r)
    if of_r is not None:
        inner = inner + of_r @ r.mH
    if of_q is not None:
        inner = inner - q.mH @ of_q
    inner = torch.triu(inner)
    eye = torch.eye(r.shape[-1], dtype=torch.bool, device=r.device)
    both = inner + inner.mH
    both = pair(torch.where(eye, 0.5 * both.real, both.real), torch.where(eye, 0.0, both.imag))
    found = q @ both
    if of_q is not None:
        found = found + of_q
    return [solve_triangular(r.mH, found, upper=False, left=False)]


@implements("linalg_qr", "qr")
def qr(A: Any, mode: str = "reduced") -> Any:
    """Q and R with A = Q R, as `torch.linalg.qr`; R has a real diagonal that is not negative.

    |A - Q R| <= c n u^terms |A| and |Q^H Q - I| <= c n u^terms, by Householder reflections.
    """
    matrices("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), "
            "'r', or 'complete'"
        )
    q, r = differentiable(lambda a: decompose(a, mode == "complete"), _derivative, A)
    if mode == "r":
        q = q[..., :0, :0].reshape(0)
    return torch.return_types.linalg_qr((q, r))  # type: ignore[attr-defined]
