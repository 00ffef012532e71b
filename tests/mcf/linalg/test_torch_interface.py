"""`torch.linalg` on expansion tensors: shapes, errors and derivatives are torch's own."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.kernels import operations

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

linalg = mcf.linalg


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


def fractions(x: mcf.MCFTensor) -> list[list[Fraction]]:
    c = [t.detach().double().tolist() for t in x.components]
    rows, columns = x.shape
    return [[sum(Fraction(t[i][j]) for t in c) for j in range(columns)] for i in range(rows)]


def test_the_derivative_of_det_has_all_components() -> None:
    """d det / dA is the matrix of cofactors, integers for an integer matrix."""
    a = mcf.tensor([[2, -1, 3], [1, 5, 7], [-4, 2, 6]], terms=2, dtype=torch.float64)
    a.requires_grad_()
    linalg.det(a).backward()
    cofactors = [[16, -34, 22], [12, 24, 0], [-22, -11, 11]]
    assert a.grad is not None
    for row, wanted in zip(fractions(a.grad), cofactors, strict=True):
        for x, y in zip(row, wanted, strict=True):
            # Float64 alone would be off by about 2**-50; the condition number is below 2**5.
            assert abs(x - y) <= 64 * Fraction(1, 2**98)


def test_the_derivative_of_solve_has_all_components() -> None:
    """X = A^-1 B gives dB = A^-T G and dA = -dB X^T; the first is checked by its residual."""
    a, b = tensor(5, 5, seed=1).requires_grad_(), tensor(5, 2, seed=2).requires_grad_()
    x = linalg.solve(a, b)
    x.sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    at, db, xs = fractions(a.mT.detach()), fractions(b.grad), fractions(x.detach())
    for i in range(5):
        for j in range(2):
            terms = [at[i][k] * db[k][j] for k in range(5)]
            # A few roundings of u^2 = 2**-106 relative to |A^T||dB|; float64 would leave 2**-53.
            assert abs(sum(terms) - 1) <= 100 * Fraction(1, 2**106) * sum(map(abs, terms))
    da = fractions(a.grad)
    for i in range(5):
        for j in range(5):
            terms = [db[i][k] * xs[j][k] for k in range(2)]
            assert abs(da[i][j] + sum(terms)) <= 20 * Fraction(1, 2**106) * sum(map(abs, terms))


def test_a_plain_matrix_and_an_expansion_right_side() -> None:
    a, b = leading(tensor(6, 6)), tensor(6, 2)
    wide = mcf.from_components((a, torch.zeros_like(a)))
    x, y = linalg.solve(a, b), linalg.solve(wide, b)
    assert all(torch.equal(s, t) for s, t in zip(x.components, y.components, strict=True))


REFUSED: dict[str, Callable[[mcf.MCFTensor], Any]] = {
    "inv": linalg.inv,
    "det": linalg.det,
    "slogdet": linalg.slogdet,
    "cholesky": linalg.cholesky,
    "solve": lambda a: linalg.solve(a, a),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_matrix_that_is_not_square_is_refused_as_torch_does(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"linalg.{name}: A must be batches of square matrices"):
        REFUSED[name](tensor(2, 3))


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


def test_solve_names_the_shapes_of_a_vector() -> None:
    with pytest.raises(RuntimeError, match=r"\[2, 2\] and \[3\]"):
        torch.linalg.solve(mcf.eye(2), mcf.ones(3))


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
