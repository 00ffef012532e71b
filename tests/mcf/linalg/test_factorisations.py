"""Factorisations against exact arithmetic: the backward error of each, entry by entry.

The bound on |P A - L U| is c k u^n (|L||U|) for inner products of length k, and its like for the
others: each of the updates of an entry makes the rounding errors of a product and a sum, together
below 8 u^n of what is added (`mcf.kernels.bounds`), and a division or a root makes a few more;
hence c = 20. Leaving out a low component anywhere costs a factor 1/u (`test_the_bound_rejects`).
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.linalg import lu_factors, number_kinds, parts, qr_factors, triangular
from mcf.linalg.number_kinds import COMPLEX, REAL, Real
from tests.helpers.everyday import everyday
from tests.helpers.matrices import ONE, uniform
from tests.helpers.matrices import exact as exact_part

# Of values; that executors have the same bits other tests say.
pytestmark = pytest.mark.usefixtures("on_torch")

CASES = [
    (torch.float64, 2),
    (torch.float64, 4),
    (torch.float32, 3),
    (torch.float16, 2),
    (torch.bfloat16, 2),
]
# Below and above the block of 32 columns.
SHAPES = [(1, 1), (2, 2), (7, 7), (34, 34), (5, 3), (3, 5), (35, 33), (33, 35)]
SQUARE = [s[0] for s in SHAPES if s[0] == s[1]]
# A factorisation knows formats and lengths only through the arithmetic that it calls: by default
# one of two components and one of three take everything, and one of 16 bits, whose products
# underflow, a small matrix.
BY_DEFAULT = [(torch.float64, 2), (torch.float32, 3)]


def _every(what: list[Any], small: Any) -> list[Any]:
    """Every case with each of some shapes, sizes or flags; what is not run by default is `slow`.

    Of complex numbers the small one, with any number of components.
    """
    return everyday(
        [
            *((*case, x, REAL) for case in CASES for x in what),
            *((torch.float64, k, small, COMPLEX) for k in (2, 1, 3, 4)),
        ],
        lambda *case: case[:2] in BY_DEFAULT or case[:3] == (torch.bfloat16, 2, small),
    )


C = 20


def random(dtype: torch.dtype, terms: int, *shape: int, of: Real = REAL) -> parts.Components:
    """Uniform in (-1, 1), with all components in use."""
    both = (uniform(dtype, terms, *shape, seed=terms + 100 * k) for k in range(of.parts))
    return tuple(c for p in both for c in p)


def exact(x: parts.Components, of: Real = REAL) -> np.ndarray:
    """The matrix in units of 1 / ONE; [[X, -Y], [Y, X]] for X + iY."""
    if of is REAL:
        return exact_part(x)
    real, imag = map(exact_part, number_kinds.halves(x))
    return np.block([[real, -imag], [imag, real]])


def assert_close(
    product: np.ndarray,
    wanted: np.ndarray,
    scale: np.ndarray,
    length: int,
    x: parts.Components,
    of: Real = REAL,
) -> None:
    """Entries of products are equal within C length u^n of the scale, or its underflow."""
    fmt = format_of(x[0].dtype)
    relative = C * length * fmt.u ** (len(x) // of.parts)
    absolute = int(C * length * fmt.min_subnormal * ONE * ONE)
    error = np.abs(product - wanted)
    limit = scale * relative.numerator // relative.denominator + absolute
    assert (error <= limit).all(), f"{float(max((error / (limit + 1)).flat))} times the bound"


def lu_error(
    a: parts.Components, factors: parts.Components, pivots: torch.Tensor, of: Real = REAL
) -> None:
    low, up = exact(lu_factors.lower(factors), of), exact(lu_factors.upper(factors), of)
    order = lu_factors.permutation(pivots, a[0].shape[0])
    rows = exact(parts.each(lambda c: c[order], a), of)
    assert_close(low @ up, rows * ONE, np.abs(low) @ np.abs(up), low.shape[1], a, of)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("dtype", "terms", "shape", "of"), _every(SHAPES, (7, 7)))
def test_lu(dtype: torch.dtype, terms: int, shape: tuple[int, int], of: Real) -> None:
    a = random(dtype, terms, *shape, of=of)
    factors, pivots, info = lu_factors.factor(a, numbers=of)
    lu_error(a, factors, pivots, of)
    assert info == 0
    limit = of.parts**0.5 * (1 + 2.0**-20)
    assert (lu_factors.lower(factors)[0].abs() <= limit).all(), "partial pivoting keeps |L| small"


def test_lu_without_pivoting() -> None:
    """Which torch does on GPUs only; safe here because the diagonal dominates."""
    a = operations.add(random(torch.float64, 2, 34, 34), torch.eye(34, dtype=torch.float64) * 40)
    factors, pivots, _ = lu_factors.factor(a, pivot=False)
    assert torch.equal(pivots, torch.arange(1, 35, dtype=torch.int32))
    lu_error(a, factors, pivots)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("dtype", "terms", "size", "of"), _every(SQUARE, 7))
def test_cholesky(dtype: torch.dtype, terms: int, size: int, of: Real) -> None:
    a = random(dtype, terms, size, size, of=of)
    real = operations.add(of.real(a), torch.eye(size, dtype=dtype) * 2 * size)
    a = (*real, *a[terms:])
    factor, info = triangular.cholesky(a, of)
    assert info == 0
    assert all((c.triu(1) == 0).all() for c in factor)
    low, wanted = exact(factor, of), exact(of.of_triangle(a, upper=False), of)
    assert_close(low @ low.T, wanted * ONE, np.abs(low) @ np.abs(low.T), size, a, of)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(("dtype", "terms", "shape", "of"), _every(SHAPES, (7, 7)))
def test_qr(dtype: torch.dtype, terms: int, shape: tuple[int, int], of: Real) -> None:
    """Householder's bounds are in the norm of columns; the length is that of all reflections."""
    a = random(dtype, terms, *shape, of=of)
    m, n = shape
    k = min(shape)
    for mode, width in (("reduced", k), ("complete", m)):
        q, r = qr_factors.factor(a, mode, of)
        assert q is not None
        assert q[0].shape == (m, width)
        assert r[0].shape == (width, n)
        left, whole = exact(q, of), exact(a, of)
        columns = np.abs(whole).sum(0)[None, :] * ONE + 0 * whole
        assert_close(left @ exact(r, of), whole * ONE, columns, m * k, a, of)
        eye = np.eye(left.shape[1], dtype=object) * ONE * ONE
        assert_close(left.T @ left, eye, eye.max() + 0 * eye, m * k, a, of)
    nothing, upper = qr_factors.factor(a, "r", of)
    assert nothing is None
    again = qr_factors.factor(a, numbers=of)[1]
    assert all(torch.equal(x, y) for x, y in zip(upper, again, strict=True))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("dtype", "terms", "flags", "of"), _every(list(range(8)), 0))
def test_triangular(dtype: torch.dtype, terms: int, flags: int, of: Real) -> None:
    """Residuals of both sides, both triangles, with and without the unit diagonal."""
    upper, left, unit = bool(flags & 1), bool(flags & 2), bool(flags & 4)
    size = 34 if of is REAL else 6
    small = torch.full((), 1 / 32, dtype=dtype)
    a = of.by_parts(lambda p: operations.mul(p, small), random(dtype, terms, size, size, of=of))
    a = (*operations.add(of.real(a), torch.eye(size, dtype=dtype)), *a[terms:])
    b = random(dtype, terms, size, size, of=of)
    x = triangular.solve(a, b, upper=upper, left=left, unitriangular=unit, numbers=of)
    read = parts.each(torch.triu if upper else torch.tril, a)
    if unit:
        for k, c in enumerate(read):
            c.diagonal().fill_(k == 0)
    triangle, solution = exact(read, of), exact(x, of)
    one, two = (triangle, solution) if left else (solution, triangle)
    scale = np.abs(one) @ np.abs(two)
    assert_close(one @ two, exact(b, of) * ONE, scale, size * of.parts, a, of)


@pytest.mark.parametrize(("of", "n"), [(REAL, 34), (COMPLEX, 6)])
def test_solve_forms_agree_with_the_residual(of: Real, n: int) -> None:
    a, b = random(torch.float64, 2, n, n, of=of), random(torch.float64, 2, n, 4, of=of)
    factors, pivots, _ = lu_factors.factor(a, numbers=of)
    low, up = (np.abs(exact(f(factors), of)) for f in (lu_factors.lower, lu_factors.upper))
    order = lu_factors.permutation(pivots, n).argsort().numpy()
    rows = np.concatenate([order + n * k for k in range(of.parts)])
    turned = parts.transpose(b)
    for adjoint in (False, True):
        solve = functools.partial(lu_factors.solve, factors, pivots, adjoint=adjoint, numbers=of)
        x, y = exact(solve(b), of), exact(solve(turned, left=False), of)
        # |L||U| >= |A|, and (|L||U|) |x| bounds the residual of Gaussian elimination.
        matrix, scale = exact(a, of), ((low @ up) // ONE)[rows]
        matrix, scale = (matrix.T, scale.T) if adjoint else (matrix, scale)
        length = 3 * n * of.parts
        assert_close(matrix @ x, exact(b, of) * ONE, scale @ np.abs(x), length, a, of)
        assert_close(y @ matrix, exact(turned, of) * ONE, np.abs(y) @ scale, length, a, of)


def test_batches_have_the_bits_of_each_matrix() -> None:
    a = random(torch.float32, 2, 3, 2, 9, 9)
    factors, pivots, info = lu_factors.factor(a)
    assert info.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            one, pivot, _ = lu_factors.factor(parts.each(lambda c, i=i, j=j: c[i, j], a))
            assert torch.equal(pivot, pivots[i, j])
            assert all(torch.equal(x[i, j], y) for x, y in zip(factors, one, strict=True))


def test_determinant_of_an_integer_matrix_is_exact_where_it_fits() -> None:
    """A product of triangular integer matrices, whose determinant is known."""
    g = torch.Generator().manual_seed(0)
    low = torch.randint(-3, 4, (9, 9), generator=g).tril(-1) + torch.eye(9, dtype=torch.int64)
    up = torch.randint(-3, 4, (9, 9), generator=g).triu(1) + torch.diag(torch.arange(1, 10))
    a = (low @ up).double()
    factors, pivots, _ = lu_factors.factor((a, torch.zeros_like(a)))
    result = lu_factors.determinant(factors, pivots)
    value = sum(Fraction(float(c)) for c in result)
    truth = Fraction(362880)
    # The condition number of this matrix is below 2^20.
    assert abs(value / truth - 1) <= Fraction(2) ** (20 - 106) * C * 9


def test_pivots_are_those_of_torch() -> None:
    a = random(torch.float64, 2, 34, 34)
    assert torch.equal(lu_factors.factor(a)[1], torch.linalg.lu_factor(a[0]).pivots)


def test_a_singular_matrix_is_reported_and_not_divided_by() -> None:
    a = torch.ones(3, 3, dtype=torch.float64)
    factors, _, info = lu_factors.factor((a, torch.zeros_like(a)))
    assert info == 2
    assert all(torch.isfinite(c).all() for c in factors)


def test_what_is_not_positive_definite_is_reported() -> None:
    a = torch.diag(torch.tensor([2.0, 1.0, -1.0, 3.0]))
    assert triangular.cholesky((a, torch.zeros_like(a)))[1] == 3


@pytest.mark.parametrize("scale", [2.0**-900, 2.0**900])
def test_qr_of_extreme_columns_neither_overflows_nor_vanishes(scale: float) -> None:
    a = random(torch.float64, 2, 6, 4)
    big = parts.each(lambda c: c * scale, a)
    q, r = qr_factors.factor(a)
    q_big, r_big = qr_factors.factor(big)
    assert q is not None
    assert q_big is not None
    assert all(torch.equal(x, y) for x, y in zip(q, q_big, strict=True))
    assert all(torch.equal(x * scale, y) for x, y in zip(r, r_big, strict=True))


@pytest.mark.parametrize("of", [REAL, COMPLEX])
def test_the_bound_rejects(of: Real) -> None:
    """Mutants: a factor cut to its leading component, a permutation that was not done."""
    a = random(torch.float64, 2, 7, 7, of=of)
    factors, pivots, _ = lu_factors.factor(a, numbers=of)
    cut = of.by_parts(lambda p: (p[0], torch.zeros_like(p[1])), factors)
    with pytest.raises(AssertionError, match="times the bound"):
        lu_error(a, cut, pivots, of)
    with pytest.raises(AssertionError, match="times the bound"):
        lu_error(a, factors, torch.arange(1, 8, dtype=torch.int32), of)


def test_mutants_of_complex_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that forgets the conjugate, and pivots by the real part alone, are found out."""
    a = random(torch.float64, 2, 4, 4, of=COMPLEX)
    square = COMPLEX.matmul(a, COMPLEX.adjoint(a))
    monkeypatch.setattr(number_kinds.Complex, "less_conjugate", number_kinds.Complex.less_product)
    low = exact(triangular.cholesky(square, COMPLEX)[0], COMPLEX)
    wanted = exact(COMPLEX.hermitian(square), COMPLEX) * ONE
    with pytest.raises(AssertionError, match="times the bound"):
        assert_close(low @ low.T, wanted, np.abs(low) @ np.abs(low.T), 4, square, COMPLEX)
    # Of no real part the largest imaginary one is the pivot, as of i A that of A.
    real, zero = a[:2], parts.each(torch.zeros_like, a[:2])
    _, pivots, _ = lu_factors.factor((*zero, *real), numbers=COMPLEX)
    assert torch.equal(pivots, lu_factors.factor(real)[1])
    monkeypatch.setattr(number_kinds.Complex, "magnitude", number_kinds.Real.magnitude)
    assert lu_factors.factor((*zero, *real), numbers=COMPLEX)[2] == 1
