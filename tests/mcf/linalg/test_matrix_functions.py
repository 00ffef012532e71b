"""Functions of `torch.linalg` on expansion tensors: exact values, shapes, errors and derivatives.

Least squares, pseudoinverses, ranks, exponentials and determinants. Caught mutants: a polynomial of
fewer terms for the exponential; `slogdet` of A in place of A^T.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import flint
import pytest
import torch

import mcf
from mcf.kernels import operations
from mcf.linalg import matrix_exponential
from mcf.linalg.parts import Components
from tests.helpers.everyday import everyday
from tests.helpers.matrices import exact, plain, uniform

pytestmark = pytest.mark.usefixtures("on_torch")

linalg = torch.linalg
F64 = torch.float64


def wrapped(x: Components) -> mcf.MCFTensor:
    return mcf.from_components(x)


def balls(x: Components) -> Any:
    """The matrix in FLINT, whose results are enclosures."""
    unit = flint.arb(2) ** -1074
    return flint.arb_mat([[flint.arb(int(v)) * unit for v in row] for row in exact(x)])


def norm(x: Any) -> Any:
    """The largest column sum of absolute values: its upper bound."""
    columns = range(x.ncols())
    return max(sum((abs(x[i, j]) for i in range(x.nrows())), flint.arb(0)).upper() for j in columns)


def exp_error(a: Components, terms: int) -> float:
    """The error in units of the bound n (1 + |A|) u^terms e^|A|."""
    with flint.ctx.workprec(700):
        given = balls(a)
        error, size = norm(balls(matrix_exponential.exponential(a)) - given.exp()), norm(given)
        unit = flint.arb(2) ** (-53 * terms)
        return float((error / (len(a[0]) * (1 + size) * unit * size.exp())).upper())


@pytest.mark.parametrize(
    ("terms", "exponent"),
    everyday(
        [(2, 0), (4, -2), *itertools.product((1, 2, 3, 4), (-60, -1, 1, 3, 6))], [(2, 0), (4, -2)]
    ),
)
def test_the_exponential_is_within_its_bound(terms: int, exponent: int) -> None:
    a = tuple(c * 2.0**exponent for c in uniform(F64, terms, 4, 4))
    assert exp_error(a, terms) <= 4


def test_a_polynomial_of_fewer_terms_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_exponential, "degree", lambda terms: (6, 4))
    a = plain(torch.eye(3, dtype=F64) * 0.875, 2)
    assert exp_error(a, 2) > 100


def test_exponentials_known_in_closed_form() -> None:
    """Of nilpotent matrices exactly; of each matrix of a batch by its own number of squarings."""
    x = mcf.tensor([[0, 3, 5], [0, 0, 7], [0, 0, 0]], 2, F64)
    found = linalg.matrix_exp(torch.stack([x, x * 64, x * 0]))
    for k, factor in enumerate((1, 64, 0)):
        square = Fraction(21, 2) * factor**2 + 5 * factor
        want = [[1, 3 * factor, square], [0, 1, 7 * factor], [0, 0, 1]]
        assert (found[k] - mcf.tensor(want, 2, F64)).abs().max().item() <= 2.0**-90
    assert linalg.matrix_exp(mcf.full((2, 2), float("nan"))).isnan().all()


def test_least_squares_of_an_integer_matrix() -> None:
    """Of full rank, with more rows and with fewer; against FLINT's rational solution.

    The condition numbers are below 2^4, so the errors are some tens of n u^2.
    """
    rows = [[2, -1, 0], [1, 3, 1], [0, 1, -2], [4, 0, 1], [1, 1, 1]]
    right = [[1], [2], [-1], [3], [5]]
    a, b = (
        flint.fmpq_mat([[flint.fmpq(v) for v in r] for r in rows]),
        flint.fmpq_mat([[flint.fmpq(v) for v in r] for r in right]),
    )
    t = a.transpose()
    tall = (t * a).inv() * t * b
    wide = a * (t * a).inv() * flint.fmpq_mat([[flint.fmpq(v)] for v in (1, 2, 3)])
    ours, ends = mcf.tensor(rows, 2, F64), mcf.tensor(right, 2, F64)
    for driver in (None, "gels", "gelsy", "gelsd"):
        near(linalg.lstsq(ours, ends, driver=driver)[0], tall)
        x = linalg.lstsq(ours.mT, mcf.tensor([[1], [2], [3]], 2, F64), driver=driver)[0]
        near(x, wide)
    near(linalg.pinv(ours), (t * a).inv() * t)


def near(x: Any, wanted: Any) -> None:
    for i, row in enumerate(x.detach().to_fractions()):
        for j, found in enumerate(row):
            want = Fraction(int(wanted[i, j].p), int(wanted[i, j].q))
            assert abs(found - want) <= Fraction(1, 2**94)


def test_what_lstsq_returns_beside_the_solution() -> None:
    """As torch: residuals, rank and singular values by driver."""
    a, b = wrapped(uniform(F64, 2, 4, 2)), wrapped(uniform(F64, 2, 4, 3))
    for driver in ("gels", "gelsy", "gelsd", "gelss"):
        ours, theirs = (
            linalg.lstsq(x, y, driver=driver)
            for x, y in ((a, b), (a.to_plain(F64), b.to_plain(F64)))
        )
        assert type(ours) is type(theirs)
        for x, y in zip(ours, theirs, strict=True):
            assert x.shape == y.shape, driver
            assert (x - y).abs().max().item() < 1e-12 if y.numel() else True
    vector = linalg.lstsq(a, b[:, 0])
    assert vector.solution.shape == (2,)
    assert vector.rank == 2


def test_least_squares_of_least_norm_where_the_rank_is_deficient() -> None:
    """One matrix of a batch has rank 1; A = 1 1^T of 2 by 2, so that x = (s / 4, s / 4)."""
    a = mcf.tensor([[[1, 1], [1, 1]], [[2, 0], [0, 1]]], 2, F64)
    b = mcf.tensor([[[3], [5]], [[3], [5]]], 2, F64)
    found = linalg.lstsq(a, b)
    want = mcf.tensor([[[2], [2]], [["1.5"], [5]]], 2, F64)
    assert (found.solution - want).abs().max().item() <= 2.0**-100
    assert found.rank.tolist() == [1, 2]
    with pytest.raises(mcf.linalg.LinAlgError, match="does not have full rank"):
        linalg.lstsq(mcf.tensor([[1, 0], [1, 0]], 2), mcf.ones(2, 1, terms=2), driver="gels")


def test_the_rank_is_that_of_all_components() -> None:
    """A second component alone makes the rank 2; the default tolerance is the expansion's."""
    x = mcf.tensor([[1, 1], [1, Fraction(2**80 + 1, 2**80)]], 2, F64)
    assert linalg.matrix_rank(x) == 2
    assert linalg.matrix_rank(x, hermitian=True) == 2
    assert linalg.matrix_rank(x, rtol=1e-16) == 1
    assert linalg.matrix_rank(x, atol=1e-16) == 1
    assert linalg.matrix_rank(x, 1e-16) == 1
    inverse = [[2**80 + 1, -(2**80)], [-(2**80), 2**80]]
    near_inverse = linalg.pinv(x) - mcf.tensor(inverse, 2, F64)
    assert near_inverse.abs().max().item() <= 2.0**80 * 2.0**-20
    assert linalg.pinv(x, rtol=1e-16).abs().max().item() < 1
    stack = torch.stack([x, x * 0])
    assert linalg.matrix_rank(stack).tolist() == [2, 0]


def test_condition_numbers_and_norms_of_a_diagonal() -> None:
    x = mcf.tensor([[3, 0], [0, -4]], 2, F64)
    exactly = {None: Fraction(4, 3), 2: Fraction(4, 3), -2: Fraction(3, 4), "nuc": Fraction(49, 12)}
    for p, want in exactly.items():
        assert abs(linalg.cond(x, p).to_fractions() - want) <= Fraction(1, 2**100)


BAD: dict[str, Any] = {
    **{
        name: (
            lambda x, name=name: getattr(linalg, name)(x[:1]),
            RuntimeError,
            f"linalg.{name}: A must be batches of square matrices",
        )
        for name in ("inv", "det", "slogdet", "cholesky")
    },
    "solve": (lambda x: linalg.solve(x[:1], x), RuntimeError, "linalg.solve: A must be batches"),
    "vector": (lambda x: linalg.solve(x, mcf.ones(3)), RuntimeError, r"\[2, 2\] and \[3\]"),
    "eigh": (lambda x: linalg.eigh(x[:1]), RuntimeError, "batches of square matrices"),
    "uplo": (lambda x: linalg.eigh(x, UPLO="x"), RuntimeError, "'L' or 'U', but got x"),
    "svd": (lambda x: linalg.svd(x[0]), RuntimeError, "at least 2 dimensions"),
    "driver": (lambda x: linalg.svd(x, driver="gesvd"), mcf.UnsupportedError, "gesvd"),
    "lstsq": (lambda x: linalg.lstsq(x, x, driver="best"), RuntimeError, "gelss.*got best"),
    "shapes": (lambda x: linalg.lstsq(x, x[:1]), RuntimeError, r"\[2, 2\] and \[1, 2\]"),
    "rank": (lambda x: linalg.matrix_rank(x, toll=1), TypeError, "toll"),
    "exp": (lambda x: linalg.matrix_exp(x[:1]), RuntimeError, "square"),
    "eig": (lambda x: linalg.eig(x[:1]), RuntimeError, "batches of square matrices"),
    "inf": (lambda x: linalg.svd(x / 0), mcf.linalg.LinAlgError, "svd.*non-finite"),
    "nan": (lambda x: linalg.eigh(x * torch.nan), mcf.linalg.LinAlgError, "eigh.*non-finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str) -> None:
    call, error, words = BAD[name]
    with pytest.raises(error, match=words):
        call(mcf.eye(2))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3), (3, 0), (0, 2, 2)])
def test_empty_matrices_have_torchs_shapes(shape: tuple[int, ...]) -> None:
    x, y = mcf.zeros(*shape), torch.zeros(*shape)
    calls = [linalg.svd, linalg.svdvals, linalg.pinv]
    square = [linalg.eig, linalg.eigvals, linalg.eigh, linalg.matrix_exp]
    calls += square if shape[-1] == shape[-2] else []
    for call in calls:
        for ours, theirs in zip(leaves(call(x)), leaves(call(y)), strict=True):
            assert ours.shape == theirs.shape
    assert torch.equal(linalg.matrix_rank(x), linalg.matrix_rank(y))


def leaves(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def _pair(seed: int) -> mcf.MCFTensor:
    return wrapped(uniform(F64, 2, 3, 3, seed=seed))


def _quadratic(x: Any) -> Any:
    """Of vectors whose sign is arbitrary: the products of each with itself."""
    return x[..., :, None, :] * x[..., None, :, :]


DERIVATIVES: dict[str, Any] = {
    "eigvalsh": lambda a: linalg.eigvalsh(a + a.mT),
    "eigh": lambda a: _quadratic(linalg.eigh(a + a.mT)[1]),
    "svd": lambda a: linalg.svd(a)[0] @ linalg.svd(a)[2],
    "svdvals": linalg.svdvals,
    "matrix_exp": linalg.matrix_exp,
    "pinv": lambda a: linalg.pinv(a[:, :2]),
    "pinv_hermitian": lambda a: linalg.pinv(a + a.mT, hermitian=True),
    "lstsq": lambda a: linalg.lstsq(a[:, :2], a[:, 2:])[0],
    "lstsq_wide": lambda a: linalg.lstsq(a[:2], a[:2, :1])[0],
    "cond": linalg.cond,
    "nuclear": lambda a: linalg.matrix_norm(a, "nuc"),
    "slogdet": lambda a: linalg.slogdet(a)[1],
    "det": linalg.det,
    "solve": lambda a: linalg.solve(a, a[:, :1] * a[:, 1:]),
}


@pytest.mark.parametrize(
    "name",
    everyday(DERIVATIVES, ("eigh", "svd", "lstsq", "det", "solve")),
)
def test_derivatives_have_digits_beyond_float64(name: str) -> None:
    """Central differences at h = 2^-32: errors of about h^2 and of 2^-106 / h.

    Derivatives of the third order are below some thousands for this matrix.
    """
    function, a, way = DERIVATIVES[name], _pair(1), _pair(2)
    shape = function(a).shape
    weights = wrapped(uniform(F64, 2, *(shape or (1,)), seed=5)).reshape(shape)

    def value(x: Any) -> Any:
        return (function(x) * weights).sum()

    leaf = a.clone().requires_grad_()
    value(leaf).backward()
    assert leaf.grad is not None
    h = 2.0**-32
    slope = (value(a + way * h) - value(a - way * h)) / (2 * h)
    error = ((leaf.grad * way).sum() - slope).abs().item()
    assert error <= 2.0**-54 * max(1.0, slope.abs().item()), f"{error:.2e}"


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> mcf.MCFTensor:
    g = torch.Generator().manual_seed(seed)
    hi = (torch.rand(*shape, generator=g, dtype=torch.float64) - 0.5).to(dtype)
    lo = (hi * torch.finfo(dtype).eps / 4 * torch.rand(*shape, generator=g).to(dtype)).to(dtype)
    return mcf.from_components(operations.renormalize((hi, lo)))


def leading(x: torch.Tensor) -> torch.Tensor:
    """An expansion tensor as a plain one."""
    return x.components[0].detach() if isinstance(x, mcf.MCFTensor) else x.detach()


FACTORS: dict[str, Callable[[Any], Any]] = {
    "lu": lambda a: linalg.lu(a)[1:],
    "qr": linalg.qr,
    "cholesky": lambda a: [linalg.cholesky(a @ a.mT + 1)],
    "det": lambda a: [linalg.det(a)],
    "slogdet": lambda a: linalg.slogdet(a)[1:],
    "inv": lambda a: [linalg.inv(a)],
    "solve": lambda a: [linalg.solve(a, a[..., :2])],
}


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("name", FACTORS)
def test_derivative_of_each_memory_layout_is_that_of_float64(name: str, contiguous: bool) -> None:
    """Torch's derivatives depend on the layout; mutant: `slogdet` of A in place of A^T.

    Condition numbers are below 1e4, so the error of float64 is below 1e-10.
    """
    a = tensor(4, 4)
    a = (a if contiguous else a.mT.contiguous().mT).requires_grad_()
    b = leading(a).requires_grad_()
    for x in (a, b):
        sum((t * t).sum() for t in FACTORS[name](x)).backward()
    assert isinstance(a.grad, mcf.MCFTensor)
    assert b.grad is not None
    torch.testing.assert_close(leading(a.grad), b.grad, rtol=1e-9, atol=1e-9)


def test_a_plain_matrix_and_an_expansion_right_side() -> None:
    a, b = leading(tensor(6, 6)), tensor(6, 2)
    wide = mcf.from_components((a, torch.zeros_like(a)))
    x, y = linalg.solve(a, b), linalg.solve(wide, b)
    assert all(torch.equal(s, t) for s, t in zip(x.components, y.components, strict=True))


def test_a_singular_matrix_raises_as_in_torch() -> None:
    zero = mcf.from_components((torch.zeros(2, 2), torch.zeros(2, 2)))
    for call in (linalg.inv, lambda a: linalg.solve(a, a)):
        with pytest.raises(linalg.LinAlgError, match="singular"):
            call(zero)
    with pytest.raises(linalg.LinAlgError, match="not positive-definite"):
        linalg.cholesky(zero)
    assert leading(linalg.det(zero)) == 0
    assert leading(linalg.slogdet(zero)[1]) == -torch.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_of_singular_values_in_every_format(dtype: torch.dtype) -> None:
    """Exact: of diag(3, -4) and, for a dimension, of its columns."""
    a = mcf.tensor([[3, 0], [0, -4]], 2, dtype)
    for norm in (torch.linalg.matrix_norm, torch.linalg.norm):
        assert [norm(a, ord).item() for ord in (2, -2, "nuc")] == [4, 3, 7]
    assert torch.norm(a, "nuc") == 7
    assert torch.linalg.norm(a[0], 2) == 3
    assert torch.linalg.norm(a, 2, dim=0).to_fractions() == [3, 4]


def test_logdet_and_vander_in_sixteen_bits() -> None:
    """Exact; torch has neither for bfloat16."""
    x = mcf.tensor([1, 3, -2], 4, torch.bfloat16)
    want = [[1, 1, 1, 1], [1, 3, 9, 27], [1, -2, 4, -8]]
    assert torch.linalg.vander(x, N=4).to_fractions() == want
    with pytest.raises(RuntimeError, match="N must be at least 2"):
        torch.linalg.vander(x, N=1)
    assert torch.logdet(torch.diag(x)).isnan()
    assert torch.logdet(torch.diag(x[:2])) == x[1].log()


def test_the_determinant_is_differentiable_twice() -> None:
    """Exact: of a, b, c, d in a d - b c."""
    a = mcf.tensor([[2, 4], [1, 4]], requires_grad=True)
    (first,) = torch.autograd.grad(torch.linalg.det(a), a, create_graph=True)
    assert first.to_fractions() == [[4, -1], [-4, 2]]
    (second,) = torch.autograd.grad(first[0, 0] + 3 * first[0, 1], a)
    assert second.to_fractions() == [[0, 0], [-3, 1]]
    ones = mcf.ones(2, 2, requires_grad=True)
    (first,) = torch.autograd.grad(torch.det(ones), ones)
    # By singular values, to a few u^2.
    assert (first - torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).abs().max() <= 2.0**-44
    with pytest.raises(mcf.linalg.LinAlgError, match="singular"):
        torch.autograd.grad(torch.det(ones), ones, create_graph=True)


def cofactors(a: list[list[Fraction]]) -> list[list[Fraction]]:
    def determinant(m: list[list[Fraction]]) -> Fraction:
        if not m:
            return Fraction(1)
        rest = ([row[:k] + row[k + 1 :] for row in m[1:]] for k in range(len(m)))
        return sum(((-1) ** k * m[0][k] * determinant(r) for k, r in enumerate(rest)), Fraction(0))

    def minor(i: int, j: int) -> list[list[Fraction]]:
        return [row[:j] + row[j + 1 :] for k, row in enumerate(a) if k != i]

    size = range(len(a))
    return [[(-1) ** (i + j) * determinant(minor(i, j)) for j in size] for i in size]


SINGULAR: dict[str, list[list[float]]] = {
    "regular": [[2, -1, 3], [1, 5, 7], [-4, 2, 6]],
    "of rank n - 1": [[1, 2, 3], [2, 4, 6], [1, 0, 5]],
    "with zeros": [[0, 0, 1], [0, 0, 0], [0, 2, 0]],
    "of rank n - 2": [[1, 2, 3], [2, 4, 6], [3, 6, 9]],
    "zero": [[0, 0], [0, 0]],
    "a number": [[0]],
}


@pytest.mark.parametrize(
    ("dtype", "exponents"),
    [
        (torch.bfloat16, (0, 50, -50)),
        (torch.float16, (0, 4)),
        (torch.float32, (0, 50, -50)),
        (torch.float64, (0, 400, -400)),
    ],
)
def test_det_of_any_matrix_has_cofactors_as_derivative(dtype: Any, exponents: Any) -> None:
    """Also where the determinant is 0, infinite or of a format of 16 bits."""
    for rows in SINGULAR.values():
        for k in exponents:
            a: Any = mcf.tensor(rows, 2, dtype) * 2.0**k
            a.requires_grad_()
            linalg.det(a).backward()
            wanted = cofactors(a.to_fractions())
            # Norm-wise as of LU and of SVD, relative to |A|^(n - 1).
            size = max(abs(x) for row in a.to_fractions() for x in row) ** (len(rows) - 1)
            unit = Fraction(torch.finfo(dtype).eps) ** 2 / 4
            for got, want in zip(a.grad.to_fractions(), wanted, strict=True):
                for x, y in zip(got, want, strict=True):
                    assert abs(x - y) <= 32 * unit * size


def test_det_of_a_batch_with_singular_matrices_has_cofactors_as_derivative() -> None:
    a: Any = mcf.tensor([[[1, 2], [2, 4]], [[1, 2], [3, 5]], [[0, 0], [0, 1]]], 2, torch.float64)
    a.requires_grad_()
    (linalg.det(a) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    wanted = [[[4, -2], [-2, 1]], [[10, -6], [-4, 2]], [[3, 0], [0, 0]]]
    assert (a.grad - torch.tensor(wanted)).abs().max() <= 2.0**-98
