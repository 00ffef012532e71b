"""Eigenvalues and singular values of complex expansions, and functions computed from them."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.complexes.arithmetic import by_squaring
from mcf.complexes.eigen import decompose, scaled, unscaled
from mcf.complexes.factors import (
    aligned,
    complex_of,
    components,
    differentiable,
    inv,
    leading,
    qr,
    solve,
    solve_triangular,
    summed,
)
from mcf.complexes.products import matmul
from mcf.complexes.tensor import MCFComplexTensor, implements, pair
from mcf.expansions.dispatch import registry
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.ops.matrices.linalg import _matrix, cholesky_inverse, cholesky_solve
from mcf.expansions.ops.matrices.spectral import (
    _fits,
    kept,
    matrix_rank,
    polar_factors,
    refuse_driver,
    square_root,
    tall,
)
from mcf.expansions.tensor import wrap
from mcf.kernels.formats import format_of
from mcf.linalg import matrix_exponential
from mcf.linalg import spectral as real
from mcf.linalg.number_kinds import COMPLEX
from mcf.linalg.opaque_decompositions import converged


def _eigh(a: Any, upper: bool) -> list[Any]:
    given = components(a)
    values, vectors, done = real.eigh(given, upper, COMPLEX)
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
    in expansions) is that of real matrices (`mcf.linalg.spectral.eigh`). Its guarantees are
    |A V - V diag(w)| <= 208 n u^terms |A| and |V^H V - I| <= 104 n u^terms (Frobenius), also for
    clusters and equal eigenvalues. The rounding to the format is added. docs/numerics.md, Singular
    vectors, lists the proved ones.

    Raises:
        LinAlgError: for a matrix that is not finite, or whose rotations do not become small.
        RuntimeError: for a matrix that is not square, and for another UPLO.
    """
    _matrix("eigh", A, square=True)
    if str(UPLO).upper() not in ("L", "U"):
        raise RuntimeError(f"linalg.eigh: expected UPLO argument to be 'L' or 'U', got {UPLO!r}")
    upper = str(UPLO).upper() == "U"
    found = differentiable(lambda a: _eigh(a, upper), _eigh_derivative, A, widen=False)
    return torch.return_types.linalg_eigh(tuple(found))  # type: ignore[attr-defined]


implements("linalg_eigvalsh")(lambda A, UPLO="L": eigh(A, UPLO)[0])


def _svd(a: Any, full: bool) -> list[Any]:
    given = components(a)
    u, values, vh, done = real.svd(given, full, numbers=COMPLEX)
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

    The algorithm is that of real matrices in complex arithmetic (`mcf.linalg.spectral.svd`):
    |A V - U diag(s)| <= c k u^terms |A|, |U^H U - I| and |V^H V - I| <= c k u^terms (Frobenius).
    Here k is the lesser side, and docs/numerics.md, Singular vectors, has c. This includes equal
    singular values and deficient ranks; the rounding to the format is added.

    Raises:
        LinAlgError: for a matrix that is not finite, or whose rotations do not become small.
        RuntimeError: for a tensor that is not a matrix.
        UnsupportedError: for a driver, which is cuSOLVER's.
    """
    _matrix("svd", A)
    refuse_driver(driver)
    found = differentiable(lambda a: _svd(a, full_matrices), _svd_derivative, A, widen=False)
    return torch.return_types.linalg_svd(tuple(found))  # type: ignore[attr-defined]


implements("linalg_svdvals")(lambda A, driver=None: svd(A, full_matrices=False, driver=driver)[1])


def _eig(A: Any) -> list[Any]:
    """Decompose each matrix [..., n, n]."""
    real = not isinstance(A, MCFComplexTensor)
    a: Any = pair(A, torch.zeros_like(A)) if real else A
    n, batch = a.shape[-1], a.shape[:-2]
    if not all(bool(torch.isfinite(c).all()) for p in (a.real, a.imag) for c in p.components):
        raise LinAlgError(
            "linalg.eig: The algorithm failed to converge because the input matrix contained "
            "non-finite values."
        )
    if a.real.numel() == 0:
        return [a[..., 0, :] if n else a.reshape(*batch, 0), a]
    values, vectors = [], []
    for matrix in a.reshape(math.prod(batch), n, n):
        small, exponent = scaled(matrix)
        found = decompose(small, real)
        if found is None:
            raise LinAlgError("linalg.eig: The algorithm failed to converge: too many steps.")
        values.append(unscaled(found[0], exponent, a.real))
        vectors.append(unscaled(found[1], 0, a.real))
    whole: Any = torch.stack
    return [whole(values).reshape(*batch, n), whole(vectors).reshape(*batch, n, n)]


def _eig_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return V^-H (diag(gw) + (V^H gV - V^H V Re diag(V^H gV)) / conj(w_j - w_i)) V^H.

    This is PyTorch's formula. Vectors have norm 1, and the loss must not depend on their phase, as
    in PyTorch; equal eigenvalues have no derivative.
    """
    [w, v], [of_values, of_vectors] = out, grads
    n = w.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=w.device)
    inner = torch.zeros_like(v)
    if of_vectors is not None:
        mixed = v.mH @ of_vectors
        own = torch.diagonal(mixed, dim1=-2, dim2=-1).real
        gap = torch.conj(w[..., None, :] - w[..., :, None])
        part = mixed - (v.mH @ v) * own[..., None, :]
        inner = torch.where(eye, 0.0, part / torch.where(eye, 1.0, gap))
    if of_values is not None:
        inner = inner + torch.where(eye, of_values[..., None, :], 0.0)
    found: Any = solve(v.mH, inner @ v.mH)
    return [found if isinstance(given[0], MCFComplexTensor) else found.real]


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
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise RuntimeError(
            f"linalg.eig: A must be batches of square matrices, got shape {list(A.shape)}"
        )
    found = differentiable(_eig, _eig_derivative, A, widen=False)
    return torch.return_types.linalg_eig(tuple(found))  # type: ignore[attr-defined]


@registry.implements(torch.linalg.eigvals)
@implements("linalg_eigvals")
def eigvals(A: Any) -> Any:
    """Return the eigenvalues of `eig`."""
    return eig(A)[0]


implements("cholesky_solve")(cholesky_solve)
implements("cholesky_inverse")(cholesky_inverse)
implements("linalg_matrix_rank")(matrix_rank)


def _inverted(u: Any, s: Any, vh: Any, large: Any) -> Any:
    """Return V diag(1 / s) U^H over some singular values."""
    inverse = torch.where(large, 1.0 / torch.where(large, s, 1.0), 0.0)
    return (vh.mH * inverse[..., None, :]) @ u.mH


def _pinv_derivative(a: Any, p: Any, g: Any) -> Any:
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
    _matrix("pinv", A, square=hermitian)
    rtol = rcond if rtol is None else rtol

    def run(a: Any) -> list[Any]:
        if hermitian:
            s, u = eigh(a)
            vh = u.mH
        else:
            u, s, vh = svd(a, full_matrices=False)
        return [_inverted(u, s, vh, kept(A, s.components[0], atol, rtol))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        return [_pinv_derivative(given[0], out[0], grads[0])]

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
    _matrix("lstsq", A)
    if driver not in (None, "gels"):
        raise UnsupportedError(
            f"linalg.lstsq(driver={driver!r}) is unsupported for complex expansions; use None or "
            "'gels', or torch.linalg.pinv(A) @ B for least norms by singular values"
        )
    vector = _fits(A, B)
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
        of_a = _pinv_derivative(a, p, g @ b.mH)
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


def _shared(x: Any, v: Any, sizes: Any) -> Any:
    """Return L with L S + S L = X, where S = V diag(sizes) V^H."""
    pairs = sizes[..., :, None] + sizes[..., None, :]
    return v @ ((v.mH @ x @ v) / pairs) @ v.mH


def _polar_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return U (L(M - M^H) + gH) + (I - U U^H) gU H^-1, M = U^H gU - gH H.

    L(X) solves L(X) H + H L(X) = X. It follows from dU = U W + (I - U U^H) dA H^-1 and dH = U^H dA
    - W H with W = L(U^H dA - dA^H U).
    """
    u, h = out
    of_u, of_h = grads
    sizes, v = torch.linalg.eigh(h)
    inner: Any = torch.zeros_like(h)
    beyond: Any = None
    if of_u is not None:
        inner = u.mH @ of_u
        outside = of_u - u @ inner
        beyond = ((outside @ v) / sizes[..., None, :]) @ v.mH
    if of_h is not None:
        inner = inner - of_h @ h
    turned = _shared(inner - inner.mH, v, sizes)
    found = u @ (turned if of_h is None else turned + of_h)
    return [found if beyond is None else found + beyond]


def polar(A: Any) -> Any:
    """Return U with orthonormal columns and Hermitian H with A = U H, as `torch.linalg.polar`.

    Bounds and algorithm are those of real matrices (`mcf.expansions.ops.matrices.spectral`).
    The derivative assumes full column rank, as PyTorch's does.

    Raises:
        LinAlgError: for a matrix that is not finite.
        RuntimeError: for a tensor that is not a matrix, or has fewer rows than columns.
    """
    _matrix("polar", A)
    tall(*A.shape[-2:])
    found = differentiable(lambda a: [*polar_factors(a)], _polar_derivative, A, widen=False)
    return torch.return_types.linalg_polar(tuple(found))  # type: ignore[attr-defined]


def _root_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return L with L X + X L = (G + G^H) / 2."""
    sizes, v = torch.linalg.eigh(out[0])
    return [_shared((grads[0] + grads[0].mH) * 0.5, v, sizes)]


def matrix_sqrth(A: Any) -> Any:
    """Return the Hermitian square root of one triangle of A, as `torch.linalg.matrix_sqrth`.

    Raises:
        LinAlgError: for a matrix that is not finite.
        RuntimeError: for a matrix that is not square.
    """
    _matrix("matrix_sqrth", A, square=True)
    return differentiable(lambda a: [square_root(a)], _root_derivative, A, widen=False)[0]


# torch has these names from 2.14 on.
if hasattr(torch.linalg, "polar"):
    implements("linalg_polar")(polar)
    implements("linalg_matrix_sqrth")(matrix_sqrth)


@implements("linalg_matrix_power", "matrix_power")
def matrix_power(A: Any, n: int) -> Any:
    """Return A^n by repeated squaring, of the inverse for n < 0, as `torch.linalg.matrix_power`.

    Each product has the error of `matmul`.
    """
    _matrix("matrix_power", A, square=True)
    if not isinstance(n, int):
        raise TypeError(f"linalg.matrix_power: n must be an int, got {n!r}")
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 1:
        return A.clone()
    if n > 1:
        return by_squaring(A, n, matmul)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand(A.shape)
    # The identity is independent of A's values; its derivative is 0.
    real: Any = torch.where(eye > 0, torch.ones_like(A.real), torch.zeros_like(A.real))
    return pair(real, torch.zeros_like(real))


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
    _matrix("matrix_exp", A, square=True)

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
    _matrix("matrix_norm", A)
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
    _matrix("cond", A, square=p not in (None, 2, -2))
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
