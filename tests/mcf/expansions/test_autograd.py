"""Derivatives at the expansion's own precision: mixed operands, hooks, losses, compiled functions.

`tests/mcf/test_derivative_sweep.py` compares those of functions with exact results.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from tests.helpers import assert_all_same_bits, assert_same_bits

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")


def test_a_plain_operand_gets_a_plain_gradient_rounded_once() -> None:
    x = mcf.tensor([["0.1", "0.2"], ["0.3", "0.4"]])
    for use in (
        lambda w: x * w,
        lambda w: w * x,
        lambda w: torch.where(x > 0, w * 1, x) * x,
        lambda w: (torch.cat([x, w[None]]) * 1)[2:] * x,
    ):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        use(w).sum().backward()
        assert type(w.grad) is Tensor
        assert_same_bits(w.grad, x.sum(0).to_plain())


def test_views_writes_and_broadcasting_have_gradients() -> None:
    x = mcf.tensor([["0.1", "0.2"], ["0.3", "0.4"]], requires_grad=True)
    y = x * 1
    y[0] = 0
    y[:, 1] *= 3
    (y.t()[1] + x[1, 0]).sum().backward()
    assert x.grad.tolist() == [[0, 0], [2, 3]]
    assert x.grad[0, 0].to_fractions() == 0
    table = mcf.tensor([["0.1"], ["0.2"]], requires_grad=True)
    table[torch.tensor([0, 1, 1, 1])].sum().backward()
    assert table.grad.tolist() == [[1], [3]]
    x.grad = None
    x.max(1).values.sum().backward()
    assert x.grad.tolist() == [[0, 1], [0, 1]]


def test_hooks_and_retained_gradients() -> None:
    x = mcf.tensor(["0.1"], requires_grad=True)
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda g: g * mcf.tensor("0.1"))
    seen = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.to_fractions()))
    (y * 1).sum().backward()
    assert seen == [(mcf.tensor(["0.1"]) * 3).to_fractions()]
    assert y.grad.to_fractions() == mcf.tensor(["0.1"]).to_fractions()
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        assert (x * 2).to_fractions() == [2 * v for v in x.to_fractions()]
    with pytest.raises(RuntimeError, match="scalar outputs"):
        mcf.ones(2, requires_grad=True).mul(1).backward()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_function_gives_the_eager_bits(backend: str) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")

    def function(a: Tensor, b: Tensor) -> Tensor:
        c = a * b + a.t() - 0.1
        return torch.where(c > 0, c, b).sum(0) / 3

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for dtype in (torch.bfloat16, torch.float64):
        leaves = [mcf.randn(3, 3, terms=3, dtype=dtype, requires_grad=True) for _ in range(2)]
        twins = [x.detach().clone().requires_grad_() for x in leaves]
        got, want = compiled(*leaves), function(*twins)
        assert_all_same_bits(got.detach().components, want.detach().components)
        got.sum().backward()
        want.sum().backward()
        for x, y in zip(leaves, twins, strict=True):
            assert_all_same_bits(x.grad.components, y.grad.components)


class _Tenth(torch.autograd.Function):
    """The identity, whose gradient is a tenth everywhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        grad = torch.where(grad > 5, grad, 0.1)
        grad[0] = 0.1
        return grad


@pytest.mark.parametrize("way", ["backward", "autograd.backward", "autograd.grad"])
def test_a_number_in_a_hook_or_derivative_is_not_rounded(way: str) -> None:
    """Exact; mutant: torch's own backward pass, in which 0.1 is the float32 nearest to it."""
    x, y = (mcf.ones(2, requires_grad=True) for _ in range(2))
    y.register_hook(lambda g: torch.where(g > 5, g, 0.1))
    total = _Tenth.apply(x).sum() + y.sum()  # type: ignore[no-untyped-call]
    if way == "autograd.grad":
        grads = torch.autograd.grad(total, (x, y))
    else:
        total.backward() if way == "backward" else torch.autograd.backward([total])
        grads = (x.grad, y.grad)
    tenth = mcf.tensor([0.1, 0.1])
    for g in grads:
        assert_all_same_bits(g.components, tenth.components)


def test_a_given_gradient_has_the_format_of_its_tensor() -> None:
    """Exact; mutant: a plain gradient left plain, whose third is a float32."""
    third = mcf.ones(2) / 3
    for given in (torch.ones(2), torch.ones(2).double(), mcf.ones(2, terms=3), mcf.ones(2)):
        x = mcf.ones(2, requires_grad=True)
        (x / 3).backward(given)
        assert_all_same_bits(x.grad.components, third.components)
        x.grad = None
        torch.autograd.backward([x / 3, x * 0], [given, given])
        assert_all_same_bits(x.grad.components, third.components)
        (grad,) = torch.autograd.grad([x / 3], [x], [given])
        assert_all_same_bits(grad.components, third.components)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (mcf.ones(2, requires_grad=True) * 2).backward(torch.ones(3))
