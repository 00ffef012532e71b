"""Bits inside torch.func's transforms: those of the function, but for two stated cases.

docs/semantics.md has the reasons. Derivatives of `det` and `solve` take the branch of PyTorch's
formula that can be differentiated again, as `create_graph=True` does: those two agree bit for bit.
A map of dot products is PyTorch's batched matrix product, which has the bits of `torch.bmm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import vjp, vmap

import mcf
from tests.helpers import assert_all_same_bits
from tests.helpers.draws import bell


def numbers(*shape: int, seed: int = 0) -> mcf.MCFTensor:
    return mcf.tensor(bell(shape, seed), 2) + mcf.tensor(bell(shape, seed + 9), 2) * 2.0**-60


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "solve": (torch.linalg.solve, ((4, 4), (4, 2))),
    "inv": (torch.linalg.inv, ((4, 4),)),
    "matmul": (torch.matmul, ((4, 4), (4, 3))),
    "softmax": (lambda x: torch.softmax(x, -1), ((4, 5),)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), ((4, 5),)),
    "svdvals": (torch.linalg.svdvals, ((4, 3),)),
}


@pytest.mark.parametrize("executor", ["torch", pytest.param("numba", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vjp_has_the_bits_of_a_recorded_derivative(name: str, executor: str) -> None:
    function, shapes = FUNCTIONS[name]
    given = [numbers(*shape, seed=k) for k, shape in enumerate(shapes)]
    with mcf.executor(executor):
        leaves = [x.clone().requires_grad_() for x in given]
        value = function(*leaves)
        weight = numbers(*value.shape, seed=5)
        # PyTorch's formulas of det and solve have a branch for derivatives of derivatives.
        recorded = torch.autograd.grad(value, leaves, weight, create_graph=True)
        other, pull = vjp(function, *given)
        for x, y in zip((value, *recorded), (other, *pull(weight)), strict=True):
            assert_all_same_bits(x.detach().components, y.detach().components, name)


@pytest.mark.parametrize("executor", ["torch", pytest.param("numba", marks=pytest.mark.slow)])
def test_maps_have_the_bits_of_their_batched_function(executor: str) -> None:
    x, y = numbers(6, 5), numbers(6, 5, seed=3)
    classes = torch.tensor([0, 1, 2, 3, 4, 0])
    with mcf.executor(executor):
        for function in (torch.dot, torch.vdot):
            mapped = vmap(function)(x, y)
            product = torch.bmm(x[:, None], y[:, :, None])[:, 0, 0]
            assert_all_same_bits(mapped.components, product.components)
        losses = vmap(lambda v, c: F.cross_entropy(v, c))(x[:, None], classes[:, None])
        apart = [F.cross_entropy(x[k : k + 1], classes[k : k + 1]) for k in range(6)]
        assert_all_same_bits(losses.components, torch.stack(apart).components)
