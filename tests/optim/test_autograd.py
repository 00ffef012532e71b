"""Steps beside autograd: closures, hooks, versions, lazy views, torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import AdamW
from tests.helpers import assert_same_bits
from tests.optim.helpers import (
    BF16,
    STRICT,
    assert_same,
    parameter,
    random,
    steps,
    stored,
)

pytestmark = pytest.mark.usefixtures("on_torch")


def test_closure() -> None:
    p = Parameter(torch.ones(3, dtype=BF16))
    optimizer = AdamW([p], 0.5, weight_decay=0.0)
    calls = []

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure) == 3
    assert calls == [3.0]
    assert (p < 1).all()
    assert optimizer.step() is None


def test_gradient_hooks_can_step() -> None:
    # The "optimizer in backward" pattern: one optimizer per parameter, stepped as gradients arrive.
    model = nn.Linear(4, 2, bias=False).to(BF16)
    optimizer = AdamW(model.parameters(), 0.5)
    p = model.weight

    def hook(q: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    p.register_post_accumulate_grad_hook(hook)
    before = p.detach().clone()
    model(torch.ones(1, 4, dtype=BF16)).sum().backward()
    assert (p != before).all()
    assert p.grad is None


@pytest.mark.parametrize("precision", [*STRICT, "fp32_states", "master"])
@pytest.mark.parametrize("maximize", [False, True])
def test_gradients_are_not_changed(precision: str, maximize: bool) -> None:
    p = parameter((5, 7), BF16)
    optimizer = AdamW([p], precision=precision, maximize=maximize)
    g = random((7, 5), BF16, 1).t()
    g[0, 0] = torch.nan
    p.grad = g
    before, version = g.clone(), g._version
    for _ in range(3):
        optimizer.step()
    assert p.grad is g
    assert_same_bits(g, before)
    assert g._version == version


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_versions_are_bumped(executor: str) -> None:
    # A tensor saved for backward that a step changed makes backward raise, as with torch.
    p = parameter(3, BF16)
    optimizer = AdamW([p], 0.1)
    loss = p.square().sum()
    p.grad = torch.ones_like(p)
    version, gradient = p._version, p.grad._version
    with mcf.executor(executor):
        optimizer.step()
    assert p._version > version
    assert p.grad._version == gradient
    states = [s for name, s in optimizer.state[p].items() if name != "step"]
    assert all(s._version > 0 for s in states)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_steps_are_not_recorded() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p], torch.tensor(0.1, requires_grad=True))
    steps(optimizer, 2)
    assert p.is_leaf
    assert p.grad_fn is None
    assert not any(t.requires_grad for t in optimizer.state[p].values())


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_compiled_step(backend: str) -> None:
    # torch.compile(optimizer.step) itself: the compiler leaves the kernel and all around it alone.
    def train(compiled: bool) -> dict[str, torch.Tensor]:
        p = parameter(100, BF16, 1)
        optimizer = AdamW([p], 1e-2)
        run = torch.compile(optimizer.step, backend=backend) if compiled else optimizer.step
        for t in range(3):
            p.grad = random(100, BF16, t + 2)
            run()
        return stored(optimizer)

    assert_same(train(True), train(False))


def test_a_step_in_one_graph_is_refused() -> None:
    optimizer = AdamW([parameter(3, BF16)])
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"LowPrecisionOptimizer\.step"):
        torch.compile(optimizer.step, backend="eager", fullgraph=True)()


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize("n", [1, 3])
def test_negated_view_as_gradient(n: int, executor: str) -> None:
    # A view whose sign torch flips lazily: what counts is the value and not the memory. torch does
    # it for every operator it dispatches; a kernel called by another way would read the memory.
    g = torch.view_as_complex(torch.ones(n, 2)).conj().imag
    assert g.is_neg()
    results = []
    for given in (g, g.resolve_neg()):
        p = Parameter(torch.zeros(n))
        optimizer = AdamW([p], 0.5)
        p.grad = given
        with mcf.executor(executor):
            optimizer.step()
        results.append(p.detach())
    assert_same_bits(*results)
    assert (results[0] > 0).all()
