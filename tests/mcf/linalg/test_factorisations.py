"""Factorisations against exact arithmetic: the backward error of each, entry by entry.

The bound on |P A - L U| is c k u^n (|L||U|) for inner products of length k, and its like for the
others: each of the updates of an entry makes the rounding errors of a product and a sum, together
below 8 u^n of what is added (`mcf.kernels.bounds`), and a division or a root makes a few more;
hence c = 20. Leaving out a low component anywhere costs a factor 1/u (`test_the_bound_rejects`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.linalg import lu_factors, parts, qr_factors, triangular
from tests.helpers import integers
from tests.helpers.everyday import everyday

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
    """Every case with each of some shapes, sizes or flags; what is not run by default is `slow`."""
    return everyday(
        [(*case, x) for case in CASES for x in what],
        lambda *case: case[:2] in BY_DEFAULT or case == (torch.bfloat16, 2, small),
    )


C = 20
# Exact numbers are integers in units of 2**-474, products in units of its square.
ONE = 1 << 474


def random(dtype: torch.dtype, terms: int, *shape: int) -> parts.Components:
    """Uniform in (-1, 1), with all components in use."""
    g = torch.Generator().manual_seed(sum(shape) + terms)
    u = float(format_of(dtype).u)
    c = [(torch.rand(*shape, generator=g, dtype=torch.float64) * 2 - 1).to(dtype)]
    for _ in range(1, terms):
        factor = (torch.rand(*shape, generator=g, dtype=torch.float64) * 2 - 1) * u
        c.append((factor * c[-1].double()).to(dtype))
    return operations.renormalize(tuple(c))


def exact(x: parts.Components) -> np.ndarray:
    whole = sum(integers(c) for c in x).reshape(x[0].shape)
    assert not (whole & ((1 << 600) - 1)).any(), "a number below the unit"
    return whole >> 600


def assert_close(
    product: np.ndarray, wanted: np.ndarray, scale: np.ndarray, length: int, x: parts.Components
) -> None:
    """Entries of products are equal within C length u^n of the scale, or its underflow."""
    fmt = format_of(x[0].dtype)
    relative = C * length * fmt.u ** len(x)
    absolute = int(C * length * fmt.min_subnormal * ONE * ONE)
    error = np.abs(product - wanted)
    limit = scale * relative.numerator // relative.denominator + absolute
    assert (error <= limit).all(), f"{float(max((error / (limit + 1)).flat))} times the bound"


def lu_error(a: parts.Components, factors: parts.Components, pivots: torch.Tensor) -> None:
    low, up = exact(lu_factors.lower(factors)), exact(lu_factors.upper(factors))
    rows = exact(a)[lu_factors.permutation(pivots, a[0].shape[0]).numpy()]
    assert_close(low @ up, rows * ONE, np.abs(low) @ np.abs(up), low.shape[1], a)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("dtype", "terms", "shape"), _every(SHAPES, (7, 7)))
def test_lu(dtype: torch.dtype, terms: int, shape: tuple[int, int]) -> None:
    a = random(dtype, terms, *shape)
    factors, pivots, info = lu_factors.factor(a)
    lu_error(a, factors, pivots)
    assert info == 0
    assert (lu_factors.lower(factors)[0].abs() <= 1).all(), "partial pivoting keeps |L| <= 1"


def test_lu_without_pivoting() -> None:
    """Which torch does on GPUs only; safe here because the diagonal dominates."""
    a = operations.add(random(torch.float64, 2, 34, 34), torch.eye(34, dtype=torch.float64) * 40)
    factors, pivots, _ = lu_factors.factor(a, pivot=False)
    assert torch.equal(pivots, torch.arange(1, 35, dtype=torch.int32))
    lu_error(a, factors, pivots)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("dtype", "terms", "size"), _every(SQUARE, 7))
def test_cholesky(dtype: torch.dtype, terms: int, size: int) -> None:
    a = random(dtype, terms, size, size)
    a = operations.add(a, torch.eye(size, dtype=dtype) * 2 * size)
    factor, info = triangular.cholesky(a)
    assert info == 0
    assert all((c.triu(1) == 0).all() for c in factor)
    low = exact(factor)
    wanted = exact(parts.each(torch.tril, a))
    scale = np.tril(np.abs(low) @ np.abs(low.T))
    assert_close(np.tril(low @ low.T), wanted * ONE, scale, size, a)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(("dtype", "terms", "shape"), _every(SHAPES, (7, 7)))
def test_qr(dtype: torch.dtype, terms: int, shape: tuple[int, int]) -> None:
    """Householder's bounds are in the norm of columns; the length is that of all reflections."""
    a = random(dtype, terms, *shape)
    m, n = shape
    k = min(shape)
    for mode, width in (("reduced", k), ("complete", m)):
        q, r = qr_factors.factor(a, mode)
        assert q is not None
        assert q[0].shape == (m, width)
        assert r[0].shape == (width, n)
        columns = np.abs(exact(a)).sum(0)[None, :] * ONE + np.zeros((m, 1), dtype=object)
        assert_close(exact(q) @ exact(r), exact(a) * ONE, columns, m * k, a)
        eye = np.array([[ONE * ONE * (i == j) for j in range(width)] for i in range(width)], object)
        assert_close(exact(q).T @ exact(q), eye, eye.max() + 0 * eye, m * k, a)
    nothing, upper = qr_factors.factor(a, "r")
    assert nothing is None
    assert all(torch.equal(x, y) for x, y in zip(upper, qr_factors.factor(a)[1], strict=True))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("dtype", "terms", "flags"), _every(list(range(8)), 0))
def test_triangular(dtype: torch.dtype, terms: int, flags: int) -> None:
    """Residuals of both sides, both triangles, with and without the unit diagonal."""
    upper, left, unit = bool(flags & 1), bool(flags & 2), bool(flags & 4)
    size = 34
    a = operations.mul(random(dtype, terms, size, size), torch.full((), 1 / 32, dtype=dtype))
    a = operations.add(a, torch.eye(size, dtype=dtype))
    b = random(dtype, terms, size, size)
    x = triangular.solve(a, b, upper=upper, left=left, unitriangular=unit)
    triangle = exact(parts.each(torch.triu if upper else torch.tril, a))
    if unit:
        np.fill_diagonal(triangle, ONE)
    one, two = (triangle, exact(x)) if left else (exact(x), triangle)
    assert_close(one @ two, exact(b) * ONE, np.abs(one) @ np.abs(two), size, a)


def test_solve_forms_agree_with_the_residual() -> None:
    a, b = random(torch.float64, 2, 34, 34), random(torch.float64, 2, 34, 4)
    factors, pivots, _ = lu_factors.factor(a)
    for adjoint in (False, True):
        matrix = exact(a).T if adjoint else exact(a)
        low, up = (np.abs(exact(f(factors))) for f in (lu_factors.lower, lu_factors.upper))
        x = exact(lu_factors.solve(factors, pivots, b, adjoint=adjoint))
        y = exact(
            lu_factors.solve(factors, pivots, parts.transpose(b), adjoint=adjoint, left=False)
        )
        # |L||U| >= |A|, and (|L||U|) |x| bounds the residual of Gaussian elimination.
        scale = (low @ up) // ONE
        order = lu_factors.permutation(pivots, 34).argsort().numpy()
        scale = scale[order]
        scale = scale.T if adjoint else scale
        assert_close(matrix @ x, exact(b) * ONE, scale @ np.abs(x), 3 * 34, a)
        assert_close(y @ matrix, exact(b).T * ONE, np.abs(y) @ scale, 3 * 34, a)


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


def test_the_bound_rejects() -> None:
    """Mutants: a factor cut to its leading component, a reflection in plain arithmetic."""
    a = random(torch.float64, 2, 7, 7)
    factors, pivots, _ = lu_factors.factor(a)
    cut = (factors[0], torch.zeros_like(factors[1]))
    with pytest.raises(AssertionError, match="times the bound"):
        lu_error(a, cut, pivots)
    with pytest.raises(AssertionError, match="times the bound"):
        lu_error(a, factors, torch.arange(1, 8, dtype=torch.int32))
