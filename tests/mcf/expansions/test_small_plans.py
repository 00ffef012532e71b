"""Exact: what plans keep for small results is nobody else's: not of other threads, modes, layouts.

Caught mutants: one table for all calls of a launch; a result in the memory of what the plan keeps;
strides or inference mode of the operands that a plan was made for; plain operands that are not what
lies at their address.
"""

from __future__ import annotations

import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import calls
from mcf.kernels import operations
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard


def _tensor(terms: int, *shape: int, seed: int = 1) -> mcf.MCFTensor:
    count = max(8, torch.Size(shape).numel())
    flat = hard(torch.float64, terms, count, seed)
    return mcf.MCFTensor([c[: torch.Size(shape).numel()].reshape(shape) for c in flat])


def test_threads_share_a_plan() -> None:
    """Each thread has its own operands; the loop runs without the interpreter's lock."""
    sizes = 20_000
    operands = [(_tensor(2, sizes, seed=k), _tensor(2, sizes, seed=k + 9)) for k in range(4)]
    expected = [x * y for x, y in operands]
    start = threading.Barrier(len(operands))

    def products(pair: tuple[Any, Any]) -> list[Any]:
        start.wait()
        return [pair[0] * pair[1] for _ in range(40)]

    with ThreadPoolExecutor(len(operands)) as pool:
        for one, found in zip(expected, pool.map(products, operands), strict=True):
            for each in found:
                assert_all_same_bits(each.components, one.components, "a thread's product")


def test_results_of_one_plan_are_apart() -> None:
    x = _tensor(2, 3)
    results = [x * x, x * x, x + x, x + x]
    places = {c.data_ptr() for r in results for c in r.components}
    assert len(places) == 8
    results[0].zero_()
    assert_all_same_bits((x * x).components, results[1].components, "after another is overwritten")


@pytest.mark.parametrize("size", [(1, 3), (3, 1), (1,), (1, 100), ()], ids=str)
def test_strides_are_those_of_a_new_tensor(size: tuple[int, ...]) -> None:
    """An operand with one element in a dimension is contiguous with any stride there."""
    plain = torch.empty(size).stride()
    odd = tuple(7 if n == 1 else s for n, s in zip(size, plain, strict=True))
    flat = _tensor(2, 7 * max(1, torch.Size(size).numel()))
    x = flat.as_strided(size, odd)
    for a in (x, x.contiguous(), x):
        for result in (a * a, a + 1, a.sqrt()):
            assert result.stride() == plain
            assert all(c.stride() == plain for c in result.components)
        assert (a < a).stride() == plain


def test_a_plan_made_in_inference_mode() -> None:
    calls._calls.clear()
    with torch.inference_mode():
        x = _tensor(2, 3)
        assert (x * x).is_inference()
    y = _tensor(2, 3, seed=2)
    product = y * y
    assert not product.is_inference()
    assert not any(c.is_inference() for c in product.components)
    product.requires_grad_().sum().backward()
    assert product.grad is not None
    with torch.inference_mode():
        assert (x * x).is_inference()


def test_plain_operands() -> None:
    """What is as it lies in memory is taken from there, and other views as they are."""
    x = _tensor(2, 4)
    plain = torch.arange(1, 5, dtype=torch.float64) / 3
    views = {
        "as it lies": plain,
        "one number": plain[2],
        "a negative view": torch.complex(plain, plain).conj().imag,
        "every other": torch.arange(8, dtype=torch.float64)[::2],
        "a narrower format": plain.to(torch.float32),
        "integers": torch.arange(4),
        "requires grad": plain.clone().requires_grad_(),
    }
    for name, y in views.items():
        for function in (operator.add, operator.sub, operator.mul, operator.truediv):
            # torch has a plain tensor's quotient as a product with the reciprocal.
            for a, b in ((x, y), (y, x))[: 1 + (function is not operator.truediv)]:
                with torch.no_grad():
                    got = function(a, b)
                parts = [
                    v.components
                    if isinstance(v, mcf.MCFTensor)
                    else (v.detach().to(torch.float64).resolve_neg(),)
                    for v in (a, b)
                ]
                expected = getattr(operations, function.__name__.replace("true", ""))(*parts)
                assert_all_same_bits(got.components, expected, name)
        assert torch.equal(x < y, operations.lt(x.components, (y.detach().double(),)))


def test_plain_operands_of_transforms() -> None:
    """Inside vmap and grad a plain tensor's type is that of any other, and its memory is not."""
    x = _tensor(2, 4)
    rows = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    got = torch.func.vmap(lambda row: x * row)(rows)
    for k in range(3):
        assert_all_same_bits(got[k].components, (x * rows[k]).components, "vmap")
    tangent = torch.func.jvp(lambda p: x * p, (rows[1],), (torch.ones(4, dtype=torch.float64),))[1]
    assert_all_same_bits(tangent.components, (x * torch.ones(4).double()).components, "jvp")
