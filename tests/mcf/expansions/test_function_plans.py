"""Exact: functions, sums and means by plan have the bits of the functions on components.

Caught mutants: a sum without the terms, the dimension, `keepdim` or the executor in its kind; a
mean that is a sum; one room for partial sums for all calls; a formula's result where an element
needs a step that it lacks; an operand overwritten before that is known; a function that is not
recorded where its argument requires a gradient.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import mcf
from mcf import elementary, reductions
from mcf.expansions.launch import calls
from mcf.kernels import operations
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard


def _tensor(terms: int, *shape: int, seed: int = 1) -> mcf.MCFTensor:
    size = torch.Size(shape)
    flat = hard(torch.float64, terms, max(8, size.numel()), seed)
    return mcf.MCFTensor([c[: size.numel()].reshape(size) for c in flat])


@pytest.mark.parametrize("shape", [(), (1,), (5,)], ids=str)
def test_functions(shape: tuple[int, ...]) -> None:
    x: Any = _tensor(2, *shape)
    for name in ("floor", "exp"):
        expected = getattr(elementary, name)(x.components)
        for _ in range(2):
            assert_all_same_bits(getattr(x, name)().components, expected, name)
        out: Any = torch.empty_like(x)
        assert getattr(torch, name)(x, out=out) is out
        assert_all_same_bits(out.components, expected, f"{name}, out")
        out.copy_(x)
        assert_all_same_bits(getattr(out, f"{name}_")().components, expected, f"{name}, in place")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_functions_of_16_bits(dtype: torch.dtype) -> None:
    """Their kernel has components of float32, which a plan would not convert."""
    x: Any = mcf.tensor(["0.3", "-2.75", "11"], dtype=dtype)
    expected = elementary.floor(x.components)
    for _ in range(2):
        assert_all_same_bits(x.floor().components, expected, "by plan or not")
    assert expected[0].tolist() == [0, -3, 11]


# What Cody and Waite's reduction is not made for: the kernel counts it.
LARGE = torch.tensor([1.0, 2.0**800, 3.0], dtype=torch.float64)


@pytest.mark.slow
def test_an_element_that_the_formula_lacks() -> None:
    x: Any = mcf.MCFTensor([LARGE.clone(), torch.zeros_like(LARGE)])
    with mcf.executor("torch"):
        expected = elementary.sin(x.components)
    assert_all_same_bits(x.sin().components, expected, "new")
    out: Any = torch.empty_like(x)
    assert_all_same_bits(torch.sin(x, out=out).components, expected, "out")
    out.copy_(x)
    assert_all_same_bits(out.sin_().components, expected, "in place")


@pytest.mark.parametrize(
    "terms", [2, *(pytest.param(terms, marks=pytest.mark.slow) for terms in (1, 4))]
)
def test_sums(terms: int) -> None:
    """Each kind after the others, twice; the last shapes have no plan."""
    calls._calls.clear()
    shapes: list[tuple[int, ...]] = [(), (1,), (5,), (3, 700), (2, 0), (2, 17_000), (70, 2)]
    for _ in range(2):
        for shape in shapes:
            x = _tensor(terms, *shape)
            for dim in (None, -1, (), (0, 1), 0)[: 5 if len(shape) > 1 else 3]:
                for keepdim in (False, True)[: 1 if dim is None else 2]:
                    given = () if dim is None else (dim, keepdim)
                    expected = reductions.sum(x.components, dim, keepdim)
                    assert_all_same_bits(x.sum(*given).components, expected, "sum")
                    expected = reductions.mean(x.components, dim, keepdim)
                    assert_all_same_bits(x.mean(*given).components, expected, "mean")
            if len(shape) > 1:
                expected = reductions.sum(x.mT.components, -1)
                assert_all_same_bits(x.mT.sum(-1).components, expected, "laid out otherwise")
    with mcf.executor("torch"):
        x = _tensor(terms, 5)
        assert_all_same_bits(x.sum().components, reductions.sum(x.components), "executor")
    assert {plan is None for plan in calls._calls.values()} == {False, True}


def test_operands_of_several_shapes() -> None:
    """By plan too, where they are few; numbers without dimensions stay what they are."""
    calls._calls.clear()
    x, y = _tensor(2, 4, 3), _tensor(2, 3, seed=2)
    c = torch.tensor([[True], [False], [True], [False]])
    for _ in range(2):
        for a, b in ((x, y), (y, x.mT[..., None]), (x[:, :1], y), (x, y[1]), (x.mT, x.mT)):
            expected = operations.add(a.components, b.components)
            assert_all_same_bits((a + b).components, expected, "sum")
            assert torch.equal(a < b, operations.lt(a.components, b.components))
        chosen = [torch.where(c, u, v) for u, v in zip(x.components, y.components, strict=True)]
        assert_all_same_bits(torch.where(c, x, y).components, chosen, "where")
        out = x.mT.clone(memory_format=torch.contiguous_format)
        torch.add(out.mT, y, out=out.mT)
        expected = operations.add(x.components, y.components)
        assert_all_same_bits(out.mT.components, expected, "out laid out otherwise")
        row = x.clone()
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.add(row[:1], row, out=row)
    assert any(plan is not None and plan.broadcasts for plan in calls._calls.values())
    with pytest.raises(RuntimeError, match="must match the size"):
        x + _tensor(2, 4)


def test_threads_share_a_sum() -> None:
    """Each thread has its own operands; the loop runs without the interpreter's lock."""
    operands = [_tensor(2, 16_000, seed=k) for k in range(4)]
    expected = [x.sum() for x in operands]
    start = threading.Barrier(len(operands))

    def total(x: Any) -> list[Any]:
        start.wait()
        return [x.sum() for _ in range(40)]

    with ThreadPoolExecutor(len(operands)) as pool:
        for one, found in zip(expected, pool.map(total, operands), strict=True):
            for each in found:
                assert_all_same_bits(each.components, one.components, "a thread's sum")


def test_what_is_recorded() -> None:
    """Functions whose derivative is ours have a node where one is wanted, and only there."""
    x = mcf.tensor([0.5, -2.0], terms=2, dtype=torch.float64)
    y = x.clone().requires_grad_()
    for function in (torch.tanh, torch.abs, torch.sign):
        assert not function(x).requires_grad
        assert function(y).grad_fn is not None
        with torch.no_grad():
            assert not function(y).requires_grad
        assert_all_same_bits(
            function(x).components, function(y).detach().components, function.__name__
        )
    torch.abs(y).sum().backward()
    assert y.grad is not None
    assert y.grad.to_plain().tolist() == [1.0, -1.0]
