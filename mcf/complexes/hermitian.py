"""Eigenvalues of Hermitian matrices and singular values of complex expansions."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.derivatives import differentiable
from mcf.complexes.matrices import complex_of, components, matrices
from mcf.complexes.tensor import implements
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.ops.matrices.spectral import refuse_driver
from mcf.expansions.tensor import wrap
from mcf.linalg import eigen, singular
from mcf.linalg.number_kinds import COMPLEX
from mcf.linalg.opaque_decompositions import converged


def _eigh(a: Any, upper: bool) -> list[Any]:
    given = components(a)
    values, vectors, done = eigen.decompose(given, upper, COMPLEX)
    converged("eigh", given, done)
    return [wrap(values), complex_of(vectors)]


def _eigh_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return V (diag(gw) + V^H gV / (w_j - w_i)) V^H; undefined for equal eigenvalues."""
    w, v = out
    of_values, of_vectors = grads
    n = w.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=w.device)
    inner: Any = torch.zeros_like(v)
    if of_vectors is not None:
        gap = torch.where(eye, 1.0, w[..., None, :] - w[..., :, None])
        inner = torch.where(eye, 0.0, (v.mH @ of_vectors) / gap)
    if of_values is not None:
        inner = inner + torch.diag_embed(of_values)
    return [v @ inner @ v.mH]


@implements("linalg_eigh")
def eigh(A: Any, UPLO: str = "L") -> Any:
    """Return w, ascending, and V with A V = V diag(w), as `torch.linalg.eigh` from one triangle.

    Only the real part of the diagonal is read. The algorithm (complex rotations, then corrections
    in expansions) is that of real matrices (`mcf.linalg.eigen.decompose`). Its guarantees are
    |A V - V diag(w)| <= 208 n u^terms |A| and |V^H V - I| <= 104 n u^terms (Frobenius), also for
    clusters and equal eigenvalues. The rounding to the format is added. docs/numerics.md, Singular
    vectors, lists the proved ones.

    Raises:
        LinAlgError: for a matrix that is not finite, or whose rotations do not become small.
        RuntimeError: for a matrix that is not square, and for another UPLO.
    """
    matrices("eigh", A, square=True)
    if str(UPLO).upper() not in ("L", "U"):
        raise RuntimeError(f"linalg.eigh: expected UPLO argument to be 'L' or 'U', got {UPLO!r}")
    upper = str(UPLO).upper() == "U"
    found = differentiable(lambda a: _eigh(a, upper), _eigh_derivative, A, widen=False)
    return torch.return_types.linalg_eigh(tuple(found))  # type: ignore[attr-defined]


implements("linalg_eigvalsh")(lambda A, UPLO="L": eigh(A, UPLO)[0])


def _svd(a: Any, full: bool) -> list[Any]:
    given = components(a)
    u, values, vh, done = singular.decompose(given, full, numbers=COMPLEX)
    converged("svd", given, done)
    assert u is not None
    assert vh is not None
    return [complex_of(u), wrap(values), complex_of(vh)]


def _skew(x: Any) -> Any:
    return x - x.mH


def _svd_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Apply PyTorch's formula (Townsend 2016, Differentiating the singular value decomposition)."""
    u, s, vh = out
    of_u, of_s, of_vh = grads
    k = s.shape[-1]
    if u.shape[-1] != k or vh.shape[-2] != k:
        raise UnsupportedError(
            "linalg.svd: the derivative of complex expansions is that of full_matrices=False"
        )
    eye = torch.eye(k, dtype=torch.bool, device=s.device)
    square = s * s
    gap = torch.where(eye, 1.0, square[..., None, :] - square[..., :, None])
    inner: Any = torch.zeros_like(u[..., :k, :])
    if of_s is not None:
        inner = inner + torch.diag_embed(of_s)
    beyond: Any = None
    if of_u is not None:
        turned = _skew(u.mH @ of_u)
        inner = inner + torch.where(eye, 0.0, turned / gap) * s[..., None, :]
        own = torch.diagonal(turned, dim1=-2, dim2=-1) / (2 * s)
        inner = inner + torch.diag_embed(own)
        beyond = ((of_u - u @ (u.mH @ of_u)) / s[..., None, :]) @ vh
    if of_vh is not None:
        turned = torch.where(eye, 0.0, _skew(vh @ of_vh.mH) / gap)
        inner = inner + s[..., :, None] * turned
        other = of_vh - (of_vh @ vh.mH) @ vh
        side = u @ (other / s[..., :, None])
        beyond = side if beyond is None else beyond + side
    found = u @ inner @ vh
    return [found if beyond is None else found + beyond]


@implements("linalg_svd")
def svd(A: Any, full_matrices: bool = True, *, driver: Any = None) -> Any:
    """Return U, s (descending) and V^H with A = U diag(s) V^H, as `torch.linalg.svd`.

    The algorithm is that of real matrices in complex arithmetic (`mcf.linalg.singular.decompose`):
    |A V - U diag(s)| <= c k u^terms |A|, |U^H U - I| and |V^H V - I| <= c k u^terms (Frobenius).
    Here k is the lesser side, and docs/numerics.md, Singular vectors, has c. This includes equal
    singular values and deficient ranks; the rounding to the format is added.

    Raises:
        LinAlgError: for a matrix that is not finite, or whose rotations do not become small.
        RuntimeError: for a tensor that is not a matrix.
        UnsupportedError: for a driver, which is cuSOLVER's.
    """
    matrices("svd", A)
    refuse_driver(driver)
    found = differentiable(lambda a: _svd(a, full_matrices), _svd_derivative, A, widen=False)
    return torch.return_types.linalg_svd(tuple(found))  # type: ignore[attr-defined]


implements("linalg_svdvals")(lambda A, driver=None: svd(A, full_matrices=False, driver=driver)[1])
