"""QR factors of complex expansions, by Householder reflections in complex arithmetic."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.derivatives import differentiable
from mcf.complexes.factors import solve_triangular
from mcf.complexes.matrices import complex_of, components, matrices
from mcf.complexes.tensor import implements, pair
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.linalg import qr_factors
from mcf.linalg.number_kinds import COMPLEX
from mcf.linalg.parts import ALL


def decompose(a: Any, complete: bool) -> list[Any]:
    """Return Q and R; R has a real diagonal that is not negative."""
    q, r = qr_factors.factor(components(a), "complete" if complete else "reduced", COMPLEX)
    assert q is not None
    k = min(a.shape[-2:])
    # This is exact. The diagonal is real up to a rounding error, which is dropped from R.
    sign = torch.where(r[0].diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    for x, place, by in (
        (q, (..., slice(k)), sign[..., None, :]),
        (r, (..., slice(k), ALL), sign[..., None]),
    ):
        for c in x:
            c[place] *= by
    for c in r[len(r) // 2 :]:
        c.diagonal(dim1=-2, dim2=-1).zero_()
    return [complex_of(q), complex_of(r)]


def _derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return (gQ + Q S) R^-H; S = T + T^H, real diagonal halved, T = triu(gR R^H - Q^H gQ)."""
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
    """Return Q and R with A = Q R, as `torch.linalg.qr`; R's diagonal is real and not negative.

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
