"""LDL factors, reflections in LAPACK's form and torch's older names, against exact arithmetic."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import mcf
from mcf.linalg import ldl_factors

# Values; the arithmetic has the same bits on all executors by other tests.
pytestmark = [
    pytest.mark.usefixtures("on_torch"),
    pytest.mark.filterwarnings("ignore:torch.*deprecated"),
]

F64 = torch.float64


def whole(*shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, shape, generator=g).double()


def tensor(x: torch.Tensor, terms: int = 2) -> mcf.MCFTensor:
    """Whole numbers plus a 2^-60th of others."""
    low = x.flip(-1) * 2.0**-60
    return mcf.from_components((x, low, *(torch.zeros_like(x) for _ in range(terms - 2))))


def exact(x: Any) -> Any:
    """Rows of Fractions."""
    return x.to_fractions()


def size(rows: Any) -> Fraction:
    return max(abs(c) for row in rows for c in row)


def product(a: Any, b: Any) -> Any:
    columns = list(zip(*b, strict=True))
    return [[sum(p * q for p, q in zip(r, c, strict=True)) for c in columns] for r in a]


def error(a: Any, x: Any, b: Any) -> Fraction:
    """The largest element of A X - B, relative to |A| |X| and n."""
    found = product(exact(a), exact(x))
    wanted = exact(b)
    gap = max(
        abs(p - q) for r, s in zip(found, wanted, strict=True) for p, q in zip(r, s, strict=True)
    )
    return gap / (len(found) * size(exact(a)) * size(exact(x)))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["general", "no_diagonal", "positive"])
@pytest.mark.parametrize("n", [1, 2, 6, pytest.param(13, marks=pytest.mark.slow)])
def test_symmetric_systems(kind: str, n: int) -> None:
    """LAPACK's pivots, its numbers to float64's precision, and a residual of a few u^2 |A| |X|."""
    s = whole(n, n, seed=n)
    s = s + s.mT
    if kind == "no_diagonal" and n > 1:
        s.fill_diagonal_(0)
    elif kind == "positive":
        s = s @ s + torch.eye(n, dtype=F64)
    s += torch.eye(n, dtype=F64) * (n == 1)
    low = tensor(s).tril()
    a = low + low.tril(-1).mT
    factors, pivots, info = torch.linalg.ldl_factor_ex(a)
    want, others, _ = torch.linalg.ldl_factor_ex(s)
    assert not info.any()
    assert torch.equal(pivots, others)
    assert (factors.to_plain(F64) - want.tril()).abs().max() <= 2.0**-42 * want.abs().max()
    b = tensor(whole(n, 2, seed=1))
    x = torch.linalg.ldl_solve(factors, pivots, b)
    # Some n u^2 with |L| |D| |L^T| in the place of |A|; a factor in float64 is off by 2^-53.
    assert error(a, x, b) <= 2.0**-98


def test_only_the_lower_triangle_is_read_and_batches_are_apart() -> None:
    s = whole(2, 3, 5, 5)
    s = s + s.mT
    a = tensor(s)
    factors, pivots, _ = torch.linalg.ldl_factor_ex(a.tril())
    again, same, _ = torch.linalg.ldl_factor_ex(a[1, 2])
    assert torch.equal(factors[1, 2], again)
    assert torch.equal(pivots[1, 2], same)
    b = tensor(whole(5, 2))
    x = torch.linalg.ldl_solve(factors, pivots, b)
    assert x.shape == (2, 3, 5, 2)
    assert torch.equal(x[0, 1], torch.linalg.ldl_solve(factors[0, 1], pivots[0, 1], b))


def test_a_singular_matrix_says_which_block() -> None:
    zero = tensor(torch.zeros(3, 3, dtype=F64))
    assert torch.linalg.ldl_factor_ex(zero)[2].item() == 1
    with pytest.raises(torch.linalg.LinAlgError, match=r"ldl_factor_ex: block 1 of D is 0"):
        torch.linalg.ldl_factor_ex(zero, check_errors=True)


def test_without_blocks_of_two_a_zero_diagonal_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: pivots of one row alone."""
    monkeypatch.setattr(ldl_factors, "_pivot", lambda a, k: (k, 1))
    rows = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=F64)
    a = mcf.from_components((rows, torch.zeros_like(rows)))
    assert torch.linalg.ldl_factor_ex(a)[2].item() == 1


@pytest.mark.parametrize(
    "shape", [(4, 4), (7, 4), (2, 5, 3), pytest.param((40, 37), marks=pytest.mark.slow)]
)
def test_reflections_and_their_product(shape: tuple[int, ...]) -> None:
    """Numbers of LAPACK, Q R that is A, and products by Q that are those with the matrix."""
    x = whole(*shape, seed=2)
    a = tensor(x)
    both, tau = torch.geqrf(a)
    want, other = torch.geqrf(x)
    assert (both.to_plain(F64) - want).abs().max() <= 2.0**-40 * want.abs().max()
    assert (tau.to_plain(F64) - other).abs().max() <= 2.0**-48
    n = shape[-1]
    q = torch.linalg.householder_product(both, tau)
    assert torch.equal(q, torch.orgqr(both, tau))
    assert (q @ both[..., :n, :].triu() - a).abs().max() <= 2.0**-94
    eye = torch.eye(shape[-2], dtype=F64).expand(*shape[:-1], shape[-2]).contiguous()
    square = torch.ormqr(both, tau, mcf.from_components((eye, torch.zeros_like(eye))))
    for left in (True, False):
        for turned in (True, False):
            c = tensor(whole(*shape[:-1], 3) if left else whole(*shape[:-2], 3, shape[-2]))
            known = square.mT if turned else square
            found = torch.ormqr(both, tau, c, left, turned)
            assert (found - (known @ c if left else c @ known)).abs().max() <= 2.0**-92


def test_the_derivative_of_a_product_of_reflections() -> None:
    """Central differences with steps of 2^-30, in two components, whose error is some 2^-60."""
    a, tau = tensor(whole(4, 2) / 16), tensor(whole(2) / 16)
    weights = whole(4, 2, seed=5)
    a.requires_grad_(True)
    (torch.linalg.householder_product(a, tau) * weights).sum().backward()
    step = 2.0**-30
    with torch.no_grad():
        moved = torch.zeros(4, 2, dtype=F64)
        moved[2, 0] = step
        up, down = (torch.linalg.householder_product(a + s * moved, tau) for s in (1, -1))
        slope = ((up - down) * weights).sum() / (2 * step)
    assert a.grad is not None
    assert abs(a.grad[2, 0] - slope).item() <= 2.0**-50


def test_older_names() -> None:
    s = whole(4, 4)
    a = tensor(s @ s.mT + torch.eye(4, dtype=F64))
    if hasattr(torch.ops.aten, "cholesky"):
        assert torch.equal(torch.cholesky(a), torch.linalg.cholesky(a))
        assert torch.equal(torch.cholesky(a, upper=True), torch.linalg.cholesky(a, upper=True))
    else:
        # Of torch 2.14, which removed it, as of plain tensors.
        with pytest.raises(RuntimeError, match=r"favor of `torch\.linalg\.cholesky`"):
            torch.cholesky(a)
    b = tensor(whole(4, 2))
    for upper in (True, False):
        for turned in (True, False):
            for unit in (True, False):
                x, same = torch.triangular_solve(b, a, upper, turned, unit)
                triangle = a.triu() if upper else a.tril()
                if unit:
                    triangle = triangle - triangle.diagonal().diag() + torch.eye(4, dtype=F64)
                gap = (triangle.mT if turned else triangle) @ x - b
                assert gap.abs().max() <= 2.0**-88 * x.abs().max()
                assert torch.equal(same, a)
    v = tensor(whole(3))
    assert torch.equal(torch.vander(v, 4), torch.linalg.vander(v, N=4).flip(-1))
    assert torch.equal(torch.vander(v, increasing=True), torch.linalg.vander(v))


def test_shapes_that_do_not_go_together_are_refused() -> None:
    a = tensor(whole(4, 3))
    for call in (
        lambda: torch.linalg.householder_product(a.mT, tensor(whole(3))),
        lambda: torch.linalg.householder_product(a, tensor(whole(4))),
        lambda: torch.ormqr(a, tensor(whole(2, 3)), a),
    ):
        with pytest.raises(RuntimeError, match=r"tau|rows"):
            call()
    with pytest.raises(RuntimeError, match=r"square"):
        torch.linalg.ldl_factor(a)


def test_the_page_has_every_name() -> None:
    """`docs/linear_algebra.md` says of all of torch.linalg what works."""
    page = (Path(__file__).parents[3] / "docs" / "linear_algebra.md").read_text()
    said = set(re.findall(r"`(\w+)`", page))
    names = {n for n in dir(torch.linalg) if callable(getattr(torch.linalg, n)) and n[0].islower()}
    assert names <= said
    assert all(getattr(mcf.linalg, n) is getattr(torch.linalg, n) for n in names)


@pytest.mark.slow
def test_one_graph() -> None:
    """torch.compile takes each as one operator, and reflections' products as their operations."""

    def factors(a: Any) -> Any:
        low, pivots, info = torch.linalg.ldl_factor_ex(a)
        both, tau = torch.geqrf(a)
        return torch.linalg.ldl_solve(low, pivots, a), info, torch.orgqr(both, tau), both

    a = tensor(whole(4, 4) + 20 * torch.eye(4, dtype=F64))
    found = torch.compile(factors, backend="aot_eager", fullgraph=True)(a)
    assert all(torch.equal(x, y) for x, y in zip(found, factors(a), strict=True))
    torch._dynamo.reset()
