"""Eigenvalues of Hermitian matrices and singular values, from real ones of twice the size.

The real matrix [[X, -Y], [Y, X]] has every eigenvalue, or singular value, twice, and a real vector
(u, v) of it is the complex u + iv. Of two that belong to a simple value either one will do. In a
cluster they are linear combinations of fewer complex vectors, of which a basis is taken.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.complexes.derivatives import differentiable
from mcf.complexes.eigen import scaled
from mcf.complexes.linear import embedded
from mcf.complexes.matrices import leading, matrices
from mcf.complexes.orthogonal import decompose
from mcf.complexes.tensor import implements, pair
from mcf.kernels import operations
from mcf.tensor.registry import UnsupportedError
from mcf.tensor.tensor import wrap

# Residuals and what vectors lack of orthonormal ones are at most so many n u^terms.
PROMISED = 64
# Singular values below this many n u^terms of the largest one have vectors of their own.
NOISE = 4


def _halves(x: Any) -> Any:
    """Columns u + iv of a real matrix of columns (u, v)."""
    half = x.shape[-2] // 2
    return pair(x[..., :half, :].clone(), x[..., half:, :].clone())


def _gram(v: Any) -> Any:
    """I - V^H V."""
    return torch.eye(v.shape[-1], dtype=v.dtype, device=v.device) - v.mH @ v


def _orthonormal(v: Any) -> Any:
    """The nearest matrix of orthonormal columns to nearly such ones, by Newton and Schulz.

    Columns change by about half of their products. Those of two eigenvectors are the rounding error
    over the distance of the eigenvalues, which the residual is multiplied by: it stays as small.
    """
    unit = 2.0 ** (-53 * v.terms)
    for _ in range(8):
        off = _gram(v)
        worst = float(leading(off).max())
        v = v + v @ (off * 0.5)
        if worst * worst * v.shape[-1] <= unit:
            break
    return v


def _independent(z: Any, count: int) -> tuple[Any, list[int]]:
    """An orthonormal basis by as many columns of one length, and which these are.

    The first column half of which at least is no combination of those before, else the one with the
    most: of the 2m columns of a cluster of m vectors that has 1 / m of its square.
    """
    rest, kept, chosen = z, None, list[int]()
    enough = 0.0
    for _ in range(count):
        size = (rest.real * rest.real + rest.imag * rest.imag).sum(0).components[0]
        enough = enough or 0.5 * float(size.max())
        size[chosen] = -1.0
        good = (size >= enough).nonzero()
        k = int(good[0]) if len(good) else int(size.argmax())
        chosen.append(k)
        q = rest[:, k : k + 1]
        for _ in range(2):
            if kept is not None:
                q = q - kept @ (kept.mH @ q)
            q = q / (q.real * q.real + q.imag * q.imag).sum(0).sqrt()
        kept = q if kept is None else torch.cat((kept, q), -1)
        rest = rest - q @ (q.mH @ rest)
    order = sorted(range(count), key=chosen.__getitem__)
    return kept[:, order], [chosen[k] for k in order]  # type: ignore[index]


def _chosen(z: Any, count: int) -> tuple[Any, list[int]]:
    """The even columns where these are nearly orthonormal, else a basis."""
    even = [*range(0, 2 * count, 2)]
    found = z[:, even]
    if float(leading(_gram(found)).max()) <= 1 / (16 * count):
        return found, even
    return _independent(z, count)


def _raised(x: Any, exponent: Tensor) -> Any:
    """x 2^k."""
    return wrap(operations.ldexp(x.components, exponent))


def _size(z: Any) -> float:
    """The Frobenius norm."""
    return float((z.real * z.real + z.imag * z.imag).sum().sqrt())


def _checked(name: str, a: Any, residual: Any, *vectors: Any) -> None:
    """Refuse what is not as near as is promised."""
    limit = PROMISED * max(a.shape) * 2.0 ** (-53 * a.terms)
    if _size(residual) > limit * _size(a) or any(_size(_gram(v)) > limit for v in vectors):
        raise LinAlgError(f"linalg.{name}: The algorithm failed to converge.")


def _finite(name: str, a: Any) -> None:
    if not bool(torch.isfinite(a).all()):
        raise LinAlgError(
            f"linalg.{name}: The algorithm failed to converge because the input matrix contained "
            "non-finite values."
        )


def _each(function: Any, a: Any) -> list[Any]:
    """A function's results for each matrix of a batch."""
    batch = a.shape[:-2]
    found = [function(m) for m in a.reshape(math.prod(batch), *a.shape[-2:])]
    whole: Any = torch.stack
    return [whole(v).reshape(*batch, *v[0].shape) for v in map(list, zip(*found, strict=True))]


def _hermitian(a: Any) -> Any:
    """The Hermitian matrix of a lower triangle."""
    low = torch.tril(a, -1)
    found = low + low.mH
    diagonal = torch.diag_embed(torch.diagonal(a.real, dim1=-2, dim2=-1))
    return pair(found.real + diagonal, found.imag)


def _eigh(a: Any) -> list[Any]:
    def one(matrix: Any) -> list[Any]:
        m, exponent = scaled(matrix)
        values, vectors = torch.linalg.eigh(embedded(m))
        found, places = _chosen(_halves(vectors), m.shape[-1])
        found = _orthonormal(found)
        w = values[places]
        _checked("eigh", m, m @ found - found * w, found)
        return [_raised(w, exponent), found]

    return _each(one, _hermitian(a))


def _eigh_derivative(given: Any, out: Any, grads: Any) -> Any:
    """V (diag(gw) + V^H gV / (w_j - w_i)) V^H; equal eigenvalues have none."""
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
    """w, ascending, and V with A V = V diag(w), as `torch.linalg.eigh`; one triangle is read.

    |A V - V diag(w)| <= 64 n u^terms |A| and |V^H V - I| <= 64 n u^terms (Frobenius), for clusters
    and equal eigenvalues too; it is checked. Rounded to the format besides.

    Raises:
        LinAlgError: for a matrix that is not finite, or whose vectors are not as near as that.
        RuntimeError: for what is no square matrix, another UPLO.
    """
    matrices("eigh", A, square=True)
    if str(UPLO).upper() not in ("L", "U"):
        raise RuntimeError(f"linalg.eigh: expected UPLO argument to be 'L' or 'U', got {UPLO!r}")
    _finite("eigh", A)
    if A.real.numel() == 0:
        return torch.return_types.linalg_eigh((A.real[..., 0], A))  # type: ignore[attr-defined]
    found = differentiable(_eigh, _eigh_derivative, A if str(UPLO).upper() == "L" else A.mH)
    return torch.return_types.linalg_eigh(tuple(found))  # type: ignore[attr-defined]


implements("linalg_eigvalsh")(lambda A, UPLO="L": eigh(A, UPLO)[0])


def _completed(v: Any, columns: int) -> Any:
    """Orthonormal columns, and as many more as are wanted."""
    have = v.shape[-1]
    if have == columns:
        return v
    return torch.cat((v, decompose(v, complete=True)[0][:, have:columns]), -1)


def _svd(a: Any, full: bool) -> list[Any]:
    def one(matrix: Any) -> list[Any]:
        m, exponent = scaled(matrix)
        rows, columns = m.shape
        k = min(rows, columns)
        left, values, right = torch.linalg.svd(embedded(m), full_matrices=False)
        u, v = _halves(left), _halves(right.mT)
        size: Tensor = values.components[0]
        noise = NOISE * max(rows, columns) * 2.0 ** (-53 * m.terms) * float(size[0])
        rank = (int((size > noise).sum()) + 1) // 2
        both: Any = torch.cat((u, v), -2)
        places = [*range(0, 2 * rank, 2)]
        if rank and max(float(leading(_gram(z[:, places])).max()) for z in (u, v)) > 1 / (16 * k):
            basis, places = _independent(both[:, : 2 * rank], rank)
            u, v = (z * math.sqrt(2) for z in (basis[:rows], basis[rows:]))
        else:
            u, v = u[:, places], v[:, places]
        if rank:
            u, v = _orthonormal(u), _orthonormal(v)
        else:
            u, v = _first(m[:, :1]), _first(m.mT[:, :1])
        s = values[[*places, *range(2 * rank, 2 * k, 2)]]
        u, v = _completed(u, rows if full else k), _completed(v, columns if full else k)
        _checked("svd", m, m @ v[:, :k] - u[:, :k] * s, u, v)
        return [u, _raised(s, exponent), v.mH]

    return _each(one, a)


def _first(like: Any) -> Any:
    """The first unit vector."""
    eye = torch.zeros_like(like.real)
    eye[0] = 1.0
    return pair(eye, torch.zeros_like(eye))


def _skew(x: Any) -> Any:
    return x - x.mH


def _svd_derivative(given: Any, out: Any, grads: Any) -> Any:
    """torch's formula (Townsend 2016, Differentiating the singular value decomposition)."""
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
    """U, s (descending) and V^H with A = U diag(s) V^H, as `torch.linalg.svd`.

    |A V - U diag(s)| <= 64 n u^terms |A|, |U^H U - I| and |V^H V - I| <= 64 n u^terms (Frobenius)
    with n the larger side, for equal singular values and deficient ranks too; it is checked.
    Rounded to the format besides.

    Raises:
        LinAlgError: for a matrix that is not finite, or whose vectors are not as near as that.
        RuntimeError: for what is no matrix.
    """
    matrices("svd", A)
    _finite("svd", A)
    if A.real.numel() == 0:
        raise UnsupportedError("linalg.svd of complex expansions without elements")
    found = differentiable(lambda a: _svd(a, full_matrices), _svd_derivative, A)
    return torch.return_types.linalg_svd(tuple(found))  # type: ignore[attr-defined]


implements("linalg_svdvals")(lambda A, driver=None: svd(A, full_matrices=False)[1])
