"""Implement eigenvalues, singular values and functions computed from them.

PyTorch has polar decompositions and square roots of matrices since version 2.14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.launch.matrices import exponential
from mcf.expansions.ops.matrices.linalg import _is_vector, _matrix, _padded
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.linalg import opaque_decompositions as operators
from mcf.linalg import qr_factors, triangular
from mcf.linalg.parts import Components, each, identity, transpose, where
from mcf.reductions import sum as total
from mcf.reductions.products import matmul

aten = torch.ops.aten


def _nothing(a: Components) -> MCFTensor:
    return wrap(each(lambda c: c.new_empty(0), a))


@implements(aten._linalg_eigh.default)
def eigh(a: MCFTensor, UPLO: str = "L", compute_v: bool = True) -> Any:
    """Return ascending eigenvalues and the eigenvectors of a symmetric A, given by one triangle."""
    _matrix("eigh", a, square=True)
    if UPLO not in ("L", "l", "U", "u"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    values, vectors = operators.eigh(a.components, UPLO in ("U", "u"))
    return wrap(values), wrap(vectors) if compute_v else _nothing(values)


def refuse_driver(driver: Any) -> None:
    """Raise if `driver` of `svd` is not None; drivers are algorithms of cuSOLVER."""
    if driver is not None:
        raise UnsupportedError(
            f"torch.linalg.svd: driver={driver!r} is an algorithm of cuSOLVER; expansions have one "
            "of their own, driver=None"
        )


@implements(aten._linalg_svd.default)
def svd(
    a: MCFTensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> Any:
    """Return U, descending singular values, and V^T."""
    _matrix("svd", a)
    refuse_driver(driver)
    values, *vectors = operators.svd(a.components, full_matrices, compute_uv)
    u, vt = map(wrap, vectors) if vectors else (_nothing(values), _nothing(values))
    return u, wrap(values), vt


def _threshold(a: Any, largest: Tensor, atol: Any, rtol: Any) -> Tensor:
    """Return max(atol, rtol s) in float64, with the largest singular value s [...].

    rtol defaults to max(m, n) times the expansion's epsilon, or to 0 if atol > 0.
    """
    epsilon = 2 * float(format_of(a.dtype).u ** a.terms)
    given, relative, default = (
        torch.as_tensor(_plain(v), dtype=torch.float64, device=a.device)
        for v in (
            0.0 if atol is None else atol,
            0.0 if rtol is None else rtol,
            max(a.shape[-2:]) * epsilon,
        )
    )
    if rtol is None:
        relative = torch.where(given > 0, 0.0, default)
    return torch.maximum(given.to(largest.device), relative.to(largest.device) * largest)


def _plain(x: Any) -> Any:
    return x.to_plain(torch.float64) if isinstance(x, MCFTensor) else x


def kept(a: Any, values: Tensor, atol: Any, rtol: Any) -> Tensor:
    """Return whether |values| [..., k], leading components only, exceed the threshold."""
    size = values.double().abs()
    if size.shape[-1] == 0:
        return size > 0
    return size > _threshold(a, size.amax(-1), atol, rtol)[..., None]


@implements(torch.linalg.matrix_rank)
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, **tolerances: Any) -> Tensor:
    """Return the number of singular values above max(atol, rtol s), as int64.

    By default rtol is max(m, n) times the expansion's epsilon 2 u^terms, so a matrix may have full
    rank even if its leading components alone do not.
    """
    hermitian = tolerances.pop("hermitian", hermitian)
    atol, rtol = tolerances.pop("atol", None), tolerances.pop("rtol", None)
    if tolerances:
        raise TypeError(
            f"linalg.matrix_rank: expected tol, hermitian, atol or rtol, got {sorted(tolerances)}"
        )
    if tol is not None:
        # PyTorch's old form: an absolute tolerance alone.
        atol, rtol = tol, 0.0
    x = A.detach()
    _matrix("matrix_rank", x, square=hermitian)
    found = torch.linalg.eigvalsh(x) if hermitian else torch.linalg.svdvals(x)
    return kept(x, found.components[0], atol, rtol).sum(-1)


@implements(aten.linalg_pinv.atol_rtol_tensor)
def pinv(a: MCFTensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> MCFTensor:
    """Return V diag(1 / s) U^T over the singular values above max(atol, rtol s)."""
    _matrix("pinv", a, square=hermitian)
    if hermitian:
        values, vectors = (x.components for x in eigh(a))
        left, right = vectors, transpose(vectors)
    else:
        left, values, right = (x.components for x in svd(a))
    large = kept(a, values[0], atol, rtol)
    eye = identity(a.components, a.shape[-2])
    return wrap(qr_factors.from_singular_values(left, values, right, large, eye))


@implements(aten.linalg_matrix_exp.default)
def matrix_exp(a: MCFTensor) -> MCFTensor:
    """Return the exponential of each matrix."""
    _matrix("matrix_exp", a, square=True)
    # PyTorch's derivative also calls this operator, with a block matrix.
    found = None if watched() else exponential(a)
    return wrap(operators.matrix_exp(a.components)[0]) if found is None else found


_DRIVERS = (None, "gels", "gelsy", "gelsd", "gelss")


def _fits(a: Any, b: Any) -> bool:
    """Return whether B is a vector, after refusing shapes that do not fit in `lstsq`."""
    vector = _is_vector(a, b)
    rows = b.shape[-1] if vector else b.shape[-2] if b.ndim > 1 else -1
    if rows != a.shape[-2]:
        raise RuntimeError(
            "torch.linalg.lstsq: input.size(-2) should match other.size(-2), got shapes "
            f"{list(a.shape)} and {list(b.shape)}"
        )
    return vector


@implements(aten.linalg_lstsq.default)
def lstsq(a: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Return the solution, squared residuals, rank and singular values; see `mcf.linalg`."""
    _matrix("lstsq", a)
    if driver not in _DRIVERS:
        raise RuntimeError(
            "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss) "
            f"or None, got {driver}"
        )
    vector = _fits(a, b)
    x, y = _padded(a, b)
    y = each(lambda c: c.unsqueeze(-1), y) if vector else y
    m, n = a.shape[-2:]
    solution, values, rank = _lstsq(x, y, rcond, driver)
    residuals = each(lambda c: c.new_empty(0), x)
    full = driver == "gels" or (driver in ("gelsd", "gelss") and bool((rank == n).all()))
    if m > n and full:
        rest = operations.sub(matmul(x, solution), y)
        residuals = total(operations.square(rest), -2)
    solution = each(lambda c: c.squeeze(-1), solution) if vector else solution
    if vector and residuals[0].dim() and residuals[0].numel():
        residuals = each(lambda c: c.squeeze(-1), residuals)
    return wrap(solution), wrap(residuals), rank, wrap(values)


def _solved(
    a: MCFTensor, b: Components, rcond: float | None, driver: str | None
) -> tuple[Components, Components, Tensor]:
    """Return solution, singular values and rank; the last two are empty where PyTorch's are."""
    none = torch.empty(0, dtype=torch.int64, device=a.device)
    nothing = each(lambda c: c.new_empty(0), a.components)
    least = max(a.shape[-2:]) * 2 * float(format_of(a.dtype).u ** a.terms)
    if driver in (None, "gels"):
        solution, ratio = qr_factors.least_squares(a.components, b)
        short = ratio.double() <= (least if driver is None else 0.0)
        if not bool(short.any()):
            if driver == "gels":
                return solution, nothing, none
            rank = torch.full(a.shape[:-2], min(a.shape[-2:]), device=a.device)
            return solution, nothing, rank
        if driver == "gels":
            raise LinAlgError(
                "torch.linalg.lstsq: The least squares solution could not be computed because the "
                "input matrix does not have full rank; driver=None or 'gelsd' gives the one of "
                "least norm"
            )
    left, values, right = (x.components for x in svd(a))
    large = kept(a, values[0], None, rcond)
    found = qr_factors.from_singular_values(left, values, right, large, b)
    rank = large.sum(-1)
    if driver is None:
        found = where(short[..., None, None], found, solution)
        rank = torch.where(short, rank, min(a.shape[-2:]))
    return found, values if driver in ("gelsd", "gelss") else nothing, rank


def _lstsq_shapes(
    a: list[Tensor], b: list[Tensor], rcond: float | None, driver: str | None
) -> list[Sequence[int]]:
    *own, m, n = a[0].shape
    batch = triangular.broadcast(tuple(a), tuple(b))
    values = [*own, min(m, n)] if driver in ("gelsd", "gelss") else [0]
    return [(*batch, n, b[0].shape[-1]), values, [0] if driver == "gels" else own]


_lstsq = operators.decomposition(
    "lstsq(Tensor[] a, Tensor[] b, float? rcond, str? driver)",
    lambda a, b, rcond, driver: _solved(wrap(tuple(a)), tuple(b), rcond, driver),
    _lstsq_shapes,
    integers=1,
    dtype=torch.int64,
)


def tall(rows: int, columns: int) -> None:
    """Raise, like PyTorch, if a matrix has fewer rows than columns."""
    if rows < columns:
        raise RuntimeError(
            "linalg.polar: input must have at least as many rows as columns, but got "
            f"{rows} by {columns} matrices"
        )


def polar_factors(a: Any) -> tuple[Any, Any]:
    """Return U V^H and V diag(s) V^H for the singular value decomposition A = U diag(s) V^H.

    For k columns |U^H U - I|, |V^H V - I| and |A - U diag(s) V^H| / |A| are at most 160 k u^terms
    (`mcf.linalg`). With the rounding of two products, the first factor is within 350 k u^terms of
    orthonormal columns. The product of both is within 350 k u^terms |A| of A (Frobenius norms). The
    second factor is exactly Hermitian.

    Args:
        a: real or complex expansions [..., m, k], m >= k.
    """
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return u @ vh, _hermitian((vh.mH * s[..., None, :]) @ vh)


def square_root(a: Any) -> Any:
    """Return V diag(sqrt(w)) V^H for A V = V diag(w), with A Hermitian, given by one triangle.

    The result X has |X^2 - A| <= 600 n u^terms |A| (Frobenius norms), since
    |A V - V diag(w)| <= 208 n u^terms |A| and |V^H V - I| <= 160 n u^terms. Negative eigenvalues,
    which rounding may give a semidefinite matrix, count as 0, as in PyTorch. X is exactly
    Hermitian.

    Args:
        a: real or complex expansions [..., n, n].
    """
    w, v = torch.linalg.eigh(a)
    root: Any = torch.clamp(w, min=0).sqrt()
    return _hermitian((v * root[..., None, :]) @ v.mH)


def _hermitian(x: Any) -> Any:
    """Return (X + X^H) / 2, which is exactly Hermitian."""
    return (x + x.mH) * 0.5


def _polar(a: Any) -> Any:
    _matrix("polar", a)
    tall(*a.shape[-2:])
    return polar_factors(a)


def _matrix_sqrth(a: Any) -> Any:
    _matrix("matrix_sqrth", a, square=True)
    return square_root(a)


if hasattr(aten, "linalg_polar"):
    implements(aten.linalg_polar.default)(_polar)
    implements(aten.linalg_matrix_sqrth.default)(_matrix_sqrth)
