"""Factors of complex expansions, linear systems, inverses and determinants, with derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.complexes.each_part import halves
from mcf.complexes.tensor import (
    MCFComplexTensor,
    formatted,
    gradient,
    implements,
    made,
    pair,
    parts,
)
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.ops.matrices.linalg import _matrix, _qr_mode, _raise, _right_side, _sides
from mcf.expansions.ops.matrices.linalg import _permutation as real_permutation
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.formats import format_of
from mcf.kernels.register_choice import refuse_float32
from mcf.linalg import lu_factors, qr_factors, triangular
from mcf.linalg.number_kinds import COMPLEX
from mcf.linalg.parts import ALL, Components, each, identity, one_like, where


def components(z: MCFComplexTensor) -> Components:
    """Return the components of both parts, real ones first; without derivatives."""
    return (*z.real.detach().components, *z.imag.detach().components)  # type: ignore[attr-defined]


def complex_of(x: Components) -> MCFComplexTensor:
    """Return the complex tensor of the components of both parts."""
    return made(*halves(x))


def leading(z: MCFComplexTensor) -> Tensor:
    """Return |x| + |y| of the leading components, which LAPACK uses to choose pivots."""
    size: Tensor = z.real.components[0].abs() + z.imag.components[0].abs()
    return size


def aligned(*values: Any) -> list[Any]:
    """Return real and complex operands as complex expansion tensors of one format."""
    flat = [p for v in values for p in parts(v)]  # type: ignore[union-attr]
    found = formatted(*(0.0 if p is None else p for p in flat))
    return [
        pair(found[k], found[k + 1].expand(found[k].shape).clone())
        if flat[k + 1] is None
        else pair(found[k], found[k + 1])
        for k in range(0, len(flat), 2)
    ]


def summed(g: Any, shape: Any) -> Any:
    """Return the gradient of a broadcast operand of this shape."""
    if g.shape == shape:
        return g
    more = g.ndim - len(shape)
    for _ in range(more):
        g = g.sum(0)
    for k, n in enumerate(shape):
        if n == 1 and g.shape[k] != 1:
            g = g.sum(k, keepdim=True)
    return g


# A function from the arguments, the results and their gradients (None for 0) to the gradients of
# the arguments.
Derivative = Callable[[Any, Any, Any], Sequence[Any]]


def _flat(values: Sequence[Any]) -> list[Any]:
    return [p for v in values for p in ((v.real, v.imag) if _is_complex(v) else (v,))]


def _is_complex(v: Any) -> bool:
    return isinstance(v, MCFComplexTensor)


def _joined(
    flat: Sequence[Any], kinds: Sequence[bool], make: Callable[..., Any] = MCFComplexTensor
) -> list[Any]:
    """Rebuild values, some of them complex, from a list of parts."""
    rest = list(flat)
    return [make(rest.pop(0), rest.pop(0)) if k else rest.pop(0) for k in kinds]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, function: Any, derivative: Any, given: Any, results: list[bool], *flat: Any
    ) -> Any:
        """Compute the results, and list in `results` which of them are complex."""
        ctx.set_materialize_grads(False)
        out = function(*_joined([v.detach() for v in flat], given))
        results += map(_is_complex, out)
        found = _flat(out)
        ctx.mark_non_differentiable(*(v for v in found if not isinstance(v, MCFTensor)))
        ctx.derivative, ctx.given, ctx.results, ctx.count = derivative, given, results, len(flat)
        ctx.save_for_backward(*flat, *found)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        given = _joined(saved[: ctx.count], ctx.given)
        out = _joined(saved[ctx.count :], ctx.results)
        found = ctx.derivative(given, out, _joined(grads, ctx.results, lambda *g: gradient(g)))
        return (None, None, None, None, *_flat(found))


def differentiable(
    function: Callable[..., Sequence[Any]],
    derivative: Derivative,
    *given: Any,
    widen: bool = True,
) -> list[Any]:
    """Compute a function in float64 components, rounded once, with a derivative.

    Args:
        function: takes complex expansion tensors of float64 components (at least two for narrower
            formats) and returns complex, real and plain tensors.
        derivative: see `Derivative`.
        given: expansion tensors of one format, complex or real.
        widen: False to compute in the format itself.
    """
    first = given[0]
    run: Callable[..., Sequence[Any]] = function
    if widen:
        refuse_float32("a complex factorisation", format_of(first.dtype), first.device)
        run = functools.partial(_widened, function)
    if not (torch.is_grad_enabled() and any(z.requires_grad for z in given)):
        return list(run(*given))
    results: list[bool] = []
    apply: Any = _Node.apply
    flat = apply(run, derivative, [*map(_is_complex, given)], results, *_flat(given))
    return _joined(flat, results)


def _widened(function: Callable[..., Sequence[Any]], *given: Any) -> Sequence[Any]:
    first = given[0]
    if first.dtype is torch.float64:
        return function(*given)
    terms = max(2, first.terms)
    found = function(*(z.to(torch.float64, terms=terms) for z in given))
    return [v if type(v) is Tensor else v.to(first.dtype, terms=first.terms) for v in found]


@implements("linalg_solve_triangular")
def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Return X with A X = B, or X A = B, for a triangular A, as `torch.linalg.solve_triangular`.

    (A + E) X = B with |E| <= c n u^terms |A| in each row; a zero on the diagonal gives infinities
    or NaN, as division does.
    """
    _right_side("solve_triangular", a, b, left)
    a, b = aligned(a, b)
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT

    def run(a: Any, b: Any) -> list[Any]:
        given = components(a), components(b)
        options: dict[str, Any] = {"upper": upper, "unitriangular": unitriangular}
        return [complex_of(triangular.solve(*given, **options, numbers=COMPLEX))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        """Return G = A^-H gX for B, and the triangle of -G X^H for A."""
        [a, b], [x] = given, out
        of_b = solve_triangular(a.mH, grads[0], upper=not upper, unitriangular=unitriangular)
        of_a: Any = -(of_b @ x.mH)
        diagonal = int(unitriangular)
        of_a = torch.triu(of_a, diagonal) if upper else torch.tril(of_a, -diagonal)
        return [summed(of_a, a.shape), summed(of_b, b.shape)]

    return differentiable(run, derivative, a, b, widen=False)[0]


def _solved(a: Any, b: Any) -> list[Any]:
    """Return X, the factors of A, pivots and info."""
    x, (factors, pivots, info) = lu_factors.solved(components(a), components(b), COMPLEX)
    return [complex_of(x), complex_of(factors), pivots, info]


def _solve_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return A^-H gX for B, and -A^-H gX X^H for A."""
    [a, b], x = given, out[0]
    of_b = solve(a.mH, grads[0])
    return [summed(-(of_b @ x.mH), a.shape), summed(of_b, b.shape)]


@implements("linalg_solve_ex")
def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """Return X with A X = B, or X A = B, and info, int32: the first pivot that is 0, or 0.

    As `torch.linalg.solve_ex`; see `solve`.
    """
    vector = _sides(A, B, left)
    a, b = aligned(A, B)
    b = b[..., None] if vector else b
    if not (left or vector):
        a, b = a.mT, b.mT
    x, _, _, info = differentiable(_solved, _solve_derivative, a, b, widen=False)
    _raise("solve", info, check_errors)
    found = x[..., 0] if vector else x if left else x.mT
    return torch.return_types.linalg_solve_ex((found, info))  # type: ignore[attr-defined]


@implements("linalg_solve")
def solve(A: Any, B: Any, *, left: bool = True) -> Any:
    """Return X with A X = B, or X A = B, as `torch.linalg.solve`.

    LU with partial pivoting (the largest |x| + |y|): |A X - B| <= c n u^terms |L||U||X|, as for
    real systems.

    Raises:
        LinAlgError: if a pivot is exactly 0.
        RuntimeError: for shapes that do not fit.
    """
    return solve_ex(A, B, left=left, check_errors=True)[0]


def _inverse(a: Any) -> list[Any]:
    given = components(a)
    x, (_, _, info) = lu_factors.solved(given, identity(given, a.shape[-1]), COMPLEX)
    return [complex_of(x), info]


def _inverse_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return -X^H gX X^H."""
    other = out[0].mH
    return [-(other @ grads[0] @ other)]


@implements("linalg_inv_ex")
def inv_ex(A: Any, *, check_errors: bool = False) -> Any:
    """Return the inverse and info, as `torch.linalg.inv_ex`; see `solve_ex`."""
    _matrix("inv", A, square=True)
    found = differentiable(_inverse, _inverse_derivative, A, widen=False)
    _raise("inv", found[1], check_errors)
    return torch.return_types.linalg_inv_ex(tuple(found))  # type: ignore[attr-defined]


@implements("linalg_inv", "inverse")
def inv(A: Any) -> Any:
    """Return the inverse, as `torch.linalg.inv`: the solution for the identity."""
    return inv_ex(A, check_errors=True)[0]


def _eliminated(a: Any, pivot: bool = True) -> tuple[Any, Tensor, Tensor]:
    """Return L below the diagonal and U in one matrix, the exchanged rows (from 1), and info."""
    factors, pivots, info = lu_factors.factor(components(a), pivot, COMPLEX)
    return complex_of(factors), pivots, info


def _permutation(pivots: Tensor, factors: Any) -> Any:
    real = real_permutation(factors.real.components, pivots)
    return pair(real, torch.zeros_like(real))


def _halves(factors: Any) -> tuple[Any, Any]:
    """Return L with ones on the diagonal, and U."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    eye = torch.eye(m, k, dtype=torch.bool, device=factors.device)
    low = torch.where(eye, 1.0, torch.tril(factors[..., :k], -1))
    return low, torch.triu(factors[..., :k, :])


def _lu_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return P L^-H (tril(L^H gL, -1) + triu(gU U^H)) U^-H for a square matrix."""
    factors, pivots, _ = out
    n = factors.shape[-1]
    if factors.shape[-2] != n:
        raise UnsupportedError(
            "linalg.lu: the derivative of complex expansions is that of square matrices"
        )
    low, up = _halves(factors)
    g = grads[0]
    inner: Any = torch.tril(low.mH @ torch.tril(g, -1), -1) + torch.triu(torch.triu(g) @ up.mH)
    inner = solve_triangular(low.mH, inner, upper=True, unitriangular=True)
    inner = solve_triangular(up.mH, inner, upper=False, left=False)
    return [_permutation(pivots, factors) @ inner]


@implements("linalg_lu_factor_ex")
def lu_factor_ex(A: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Return L and U in one matrix, the pivots and info, as `torch.linalg.lu_factor_ex`."""
    _matrix("lu_factor", A)
    found = differentiable(lambda a: _eliminated(a, pivot), _lu_derivative, A)
    _raise("lu_factor", found[2], check_errors)
    return torch.return_types.linalg_lu_factor_ex(tuple(found))  # type: ignore[attr-defined]


@implements("linalg_lu_factor")
def lu_factor(A: Any, *, pivot: bool = True) -> Any:
    """Return L and U in one matrix and the pivots, as `torch.linalg.lu_factor`.

    Pivots have the largest |x| + |y|. |A - P L U| <= c n u^terms |L||U|, as for real matrices.
    """
    factors, pivots, _ = lu_factor_ex(A, pivot=pivot)
    return torch.return_types.linalg_lu_factor((factors, pivots))  # type: ignore[attr-defined]


@implements("linalg_lu")
def lu(A: Any, *, pivot: bool = True) -> Any:
    """Return P, L and U with A = P L U, as `torch.linalg.lu`."""
    factors, pivots = lu_factor(A, pivot=pivot)
    low, up = _halves(factors)
    p = _permutation(pivots, factors)
    return torch.return_types.linalg_lu((p, low, up))  # type: ignore[attr-defined]


@implements("linalg_lu_solve")
def lu_solve(LU: Any, pivots: Tensor, B: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """Solve A X = B, X A = B, or these with A^H, from the factors of A."""
    _right_side("lu_solve", LU, B, left)

    def run(factors: Any, right: Any) -> list[Any]:
        given = components(factors), pivots, components(right)
        return [complex_of(lu_factors.solve(*given, left=left, adjoint=adjoint, numbers=COMPLEX))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        """Return G = A^-H gX for B, and -G X^H mapped to the factors for A."""
        [factors, right], [x] = given, out
        g = lu_solve(factors, pivots, grads[0], left=left, adjoint=not adjoint)
        of_a: Any = -(g @ x.mH if left else x.mH @ g)
        of_a = of_a.mH if adjoint else of_a
        low, up = _halves(factors)
        inner = _permutation(pivots, factors).mT @ of_a
        of_lu = torch.tril(inner @ up.mH, -1) + torch.triu(low.mH @ inner)
        return [summed(of_lu, factors.shape), summed(g, right.shape)]

    return differentiable(run, derivative, *aligned(LU, B), widen=False)[0]


def _det(a: Any) -> list[Any]:
    return [complex_of(lu_factors.determined(components(a), COMPLEX)[0])]


def _det_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return det A conj(g) A^-H."""
    factor: Any = grads[0] * torch.conj(out[0])
    return [factor[..., None, None] * inv(given[0]).mH]


@implements("linalg_det", "det")
def det(A: Any) -> Any:
    """Return the determinant, the product of the pivots; differentiable if A has an inverse."""
    _matrix("det", A, square=True)
    return differentiable(_det, _det_derivative, A)[0]


def _modulus(x: Components) -> tuple[Components, Components]:
    """Return |x|, and a divisor of x that gives its phase: 1 where x is 0."""
    size: Components = torch.hypot(*halves(x)).components  # type: ignore[attr-defined]
    return size, where(size[0] == 0, one_like(size), size)


def _slogdet(a: Any) -> list[Any]:
    """Return the product of the pivots' phases, of modulus 1, and the sum of logarithms."""
    factors, pivots, _ = lu_factors.factor(components(a), True, COMPLEX)
    diagonal = each(lambda c: c.diagonal(dim1=-2, dim2=-1), factors)
    size, divisor = _modulus(diagonal)
    sign = lu_factors.signed_product(COMPLEX.over_real(diagonal, divisor), pivots, COMPLEX)
    sign = COMPLEX.over_real(sign, _modulus(sign)[1])
    return [complex_of(sign), torch.log(wrap(size)).sum(-1)]


def _slogdet_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return (g - i Im(conj(gs) s)) A^-H; gs, g are gradients of the sign s and the logarithm."""
    sign, _ = out
    of_sign, of_log = grads
    real = torch.zeros_like(sign.real) if of_log is None else of_log
    imag = torch.zeros_like(sign.real) if of_sign is None else -(torch.conj(of_sign) * sign).imag
    return [pair(real, imag)[..., None, None] * inv(given[0]).mH]


@implements("linalg_slogdet", "slogdet")
def slogdet(A: Any) -> Any:
    """Return the determinant's phase, of modulus 1 or 0, and the logarithm of its modulus."""
    _matrix("slogdet", A, square=True)
    found = differentiable(_slogdet, _slogdet_derivative, A)
    return torch.return_types.linalg_slogdet(tuple(found))  # type: ignore[attr-defined]


implements("logdet")(lambda z: torch.log(det(z)))


def _factored(a: Any) -> list[Any]:
    factor, info = triangular.cholesky(components(a), COMPLEX)
    return [complex_of(factor), info]


def _cholesky_derivative(given: Any, out: Any, grads: Any) -> Any:
    """Return L^-H (T + T^H) L^-1 / 2; T is tril(L^H gL), its diagonal halved and real."""
    low, g = out[0], grads[0]
    inner: Any = torch.tril(low.mH @ torch.tril(g))
    inner = (inner + torch.tril(inner, -1).mH) * 0.5
    n = low.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=low.device)
    inner = pair(inner.real, torch.where(eye, 0.0, inner.imag))
    inner = solve_triangular(low.mH, inner, upper=True)
    return [solve_triangular(low, inner, upper=False, left=False)]


@implements("linalg_cholesky_ex")
def cholesky_ex(A: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Return L and info, as `torch.linalg.cholesky_ex`: the first non-positive minor, or 0."""
    _matrix("cholesky", A, square=True)
    found, info = differentiable(_factored, _cholesky_derivative, A.mH if upper else A)
    _raise("cholesky", info, check_errors)
    found = found.mH if upper else found
    return torch.return_types.linalg_cholesky_ex((found, info))  # type: ignore[attr-defined]


@implements("linalg_cholesky", "cholesky")
def cholesky(A: Any, *, upper: bool = False) -> Any:
    """Return L with A = L L^H (U with A = U^H U) of a Hermitian positive-definite A.

    Only that triangle of A and the real part of the diagonal are read.
    |A - L L^H| <= c n u^terms |L||L^H|.
    """
    return cholesky_ex(A, upper=upper, check_errors=True)[0]


def _orthogonal(a: Any, complete: bool) -> list[Any]:
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


def _qr_derivative(given: Any, out: Any, grads: Any) -> Any:
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
    _matrix("qr", A)
    _qr_mode(mode)
    q, r = differentiable(lambda a: _orthogonal(a, mode == "complete"), _qr_derivative, A)
    if mode == "r":
        q = q[..., :0, :0].reshape(0)
    return torch.return_types.linalg_qr((q, r))  # type: ignore[attr-defined]
