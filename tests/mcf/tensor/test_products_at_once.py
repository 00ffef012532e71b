"""Exact: what is a product of matrices by another name has the bits and the layout of torch's way.

Caught mutants: an index of the other operand kept; an operand that is not turned; what lies in
another layout read as it lies; capitals after small letters; many elements without a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.tensor import product_plans, torch_functions
from tests.helpers import assert_alike
from tests.mcf.tensor.inputs import hard

linear: Any = torch.nn.functional.linear
einsum: Any = torch.einsum


def _numbers(seed: int, *shape: int) -> Any:
    parts = hard(torch.float64, 2, 48, seed)
    count = torch.Size(shape).numel()
    usual = mcf.MCFTensor([c[:count].clamp(-(2.0**30), 2.0**30) for c in parts])
    return usual.reshape(shape)


SHAPES = [(3, 4), (4, 5), (5, 4), (2, 3, 4), (2, 4, 5)]
A, B, S, T, U = (_numbers(seed, *shape) for seed, shape in enumerate(SHAPES))
V, W, BIAS = (_numbers(9 + k, n) for k, n in enumerate([4, 3, 5]))

CALLS: dict[str, Callable[[], Any]] = {
    "matrices": lambda: [einsum("ij,jk->ik", A, B), einsum("ij, kj -> ik", A, S),
                         einsum("ba,ac", A, B), einsum("ji,jk->ik", A.T.contiguous().T, A)],
    "vectors": lambda: [einsum("ij,j", A, V), einsum("ij,i->j", A, W), einsum("i,ij->j", W, A),
                        einsum("i,j->ij", W, V), A @ V],
    "batches": lambda: [einsum("bij,jk->bik", T, B), einsum("bij,kj->bik", T, S), T @ B, T @ V,
                        einsum("bij,j->bi", T, V), T @ U, T.transpose(0, 1) @ B],
    "other sums": lambda: [einsum("ij,jk->ki", A, B), einsum("ij,ij->", A, A),
                           einsum("ii", A[:, :3]),
                           einsum("bij,bjk->bik", T, U), einsum("ij,jk->ik", [A, B]),
                           einsum("Ba,ab", A, B), einsum("ba,aB", A, B), einsum("ij->ji", A),
                           einsum("ij,ij->ij", A, A), einsum("i,i->", V, V)],
    "sums": lambda: [torch.addmm(A, A @ A.T, A), A.addmm(A @ A.T, A, beta=0.5, alpha=3),
                     torch.addmm(BIAS, A, B, beta=2), torch.addmv(W, A, V), torch.addmv(W, A, V,
                     alpha=0.5), torch.baddbmm(T[:, :1, :1], T, U), torch.addmm(
                         BIAS.to_plain(), A, B)],
    "linear": lambda: [linear(A, S), linear(T, S, BIAS), linear(V, S, BIAS), A @ A.T, A.T @ A,
                       torch.inner(A, S), torch.inner(T, S), torch.inner(V, V), torch.inner(A, V),
                       B.T @ V, V @ B],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_products_are_those_of_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product_plans._plans.clear()
    at_once = CALLS[name]()
    if name != "other sums":
        assert any(plan is not None for plan in product_plans._plans.values())
    monkeypatch.setattr(torch_functions, "DIRECT", {})
    with mcf.executor("torch"):
        expected = CALLS[name]()
    for k, (got, want) in enumerate(zip(at_once, expected, strict=True)):
        assert_alike(got, want, f"{name} {k}")


def _many(dtype: torch.dtype, *shape: int) -> Any:
    """More elements than plans move one by one."""
    count = torch.Size(shape).numel()
    first = (torch.arange(count) * 7919 % 2003 - 1001).to(dtype).reshape(shape)
    return mcf.MCFTensor([first, first.flip(0) * 2.0 ** -(40 if dtype is torch.float64 else 26)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_of_many_elements_have_plans(dtype: torch.dtype) -> None:
    tall, batch, few = (_many(dtype, *s) for s in [(3000, 6), (1100, 4, 4), (6, 3)])
    out = torch.empty_like(batch)
    calls: list[Callable[[], Any]] = [
        lambda: [tall @ few, tall.T @ tall, few.T @ tall.T],
        lambda: [batch @ batch, batch.mT @ batch, batch @ few[:4], torch.matmul(batch, batch)],
        lambda: [torch.matmul(batch, batch, out=out).clone(), einsum("bi,ji->bj", tall, few.T)],
        lambda: [linear(tall, few.T), torch.addmm(few[0], tall, few)],
    ]
    for k, call in enumerate(calls):
        product_plans._plans.clear()
        found = call()
        made = [*product_plans._plans.values()]
        assert made, k
        assert all(plan is not None for plan in made), k
        # The second time, with the rooms of the first.
        again = call()
        with mcf.executor("torch"):
            expected = call()
        for got, other, want in zip(found, again, expected, strict=True):
            assert_alike(got, want, f"{dtype} {k}")
            assert_alike(other, want, f"{dtype} {k}, again")


def test_errors_are_those_of_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: einsum("ij,jk->ik", A, A),
        lambda: einsum("ij,jk->il", A, B),
        lambda: einsum("ij,j", A, B),
        lambda: einsum("i-j,jk", A, B),
        lambda: T @ A,
        lambda: torch.addmm(A, A, B),
        lambda: torch.addmm(A, A, T),
        lambda: torch.mm(T, B),
        lambda: torch.inner(A, B),
        lambda: linear(A, B),
        # What is added to a product is expanded to it.
        lambda: linear(A, S, T),
        lambda: linear(A, S, V),
    ]
    for call in wrong:
        with pytest.raises((RuntimeError, ValueError)) as at_once:
            call()
        with monkeypatch.context() as patched:
            patched.setattr(torch_functions, "DIRECT", {})
            with pytest.raises((RuntimeError, ValueError)) as expected:
                call()
        assert str(at_once.value) == str(expected.value)


def test_gradients_are_recorded() -> None:
    a = A.clone().requires_grad_()
    einsum("ij,jk->ik", a, B).sum().backward()
    assert_alike(a.grad, torch.ones_like(A @ B) @ B.T, "gradient")
