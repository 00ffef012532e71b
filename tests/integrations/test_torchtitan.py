"""torchtitan's way: a container of optimizers, one for each part of a model, and of schedules.

As a client that follows its pattern (`torchtitan/components/optimizer.py`), without the package,
which wants a nightly torch: keyword arguments `fused` and `foreach` for every class, states by
`get_optimizer_state_dict` with flat keys, several model parts, hooks after a step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.checkpoint.stateful import Stateful

import mcf.optim
from tests.integrations.training import Model, assert_equal, kept, tokens

FLAT = dcp.StateDictOptions(flatten_optimizer_state_dict=True)


class Container(torch.optim.Optimizer, Stateful):
    """Optimizers of the parts of a model that is cut into pipeline stages."""

    def __init__(self, parts: list[nn.Module], cls: Any, options: dict[str, Any]) -> None:
        self.parts = parts
        self.optimizers = [cls(list(part.parameters()), **options) for part in parts]
        # For the hooks of torch.optim.Optimizer, which it is for whoever asks.
        every = [p for part in parts for p in part.parameters()]
        torch.optim.Optimizer.__init__(self, every, options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.optimizers)

    def step(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        get = functools.partial(dcp.get_optimizer_state_dict, options=FLAT)
        return {k: v for pair in map(get, self.parts, self.optimizers) for k, v in pair.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        load = functools.partial(
            dcp.set_optimizer_state_dict, optim_state_dict=state_dict, options=FLAT
        )
        for part, optimizer in zip(self.parts, self.optimizers, strict=True):
            load(part, optimizer)


def stages(model: Model) -> list[nn.Module]:
    """Two parts that keep the names of the whole, as pipeline stages do."""
    first, second = nn.Module(), nn.Module()
    first.embedding, first.norm = model.embedding, model.norm
    second.hidden, second.head = model.hidden, model.head
    return [first, second]


def run(precision: str, implementation: str) -> tuple[Model, Container, list[Any]]:
    model = Model()
    options = {
        "lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "precision": precision,
        "fused": implementation == "fused", "foreach": implementation == "foreach",
    }  # fmt: skip
    container = Container(stages(model), mcf.optim.AdamW, options)
    rates = [torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)) for o in container]
    return model, container, rates


def train(model: Model, container: Container, rates: list[Any], steps: int) -> None:
    for _ in range(steps):
        container.zero_grad()
        model(tokens(4)).backward()
        container.step()
        for rate in rates:
            rate.step()


@pytest.mark.parametrize(
    ("precision", "implementation"), [("plus", "fused"), ("plus", "foreach"), ("8bit", "for-loop")]
)
def test_its_checkpoints(precision: str, implementation: str) -> None:
    model, container, rates = run(precision, implementation)
    train(model, container, rates, 2)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    saved = {
        k: v.clone() if isinstance(v, torch.Tensor) else v
        for k, v in container.state_dict().items()
    }
    assert {k.split(".")[0] for k in saved} == {"state", "param_groups"}
    again, other, schedules = run(precision, implementation)
    for optimizer in other:
        optimizer.init_state()
    again.load_state_dict(weights)
    other.load_state_dict(saved)
    schedules[0].load_state_dict(rates[0].state_dict())
    schedules[1].load_state_dict(rates[1].state_dict())
    train(model, container, rates, 2)
    train(again, other, schedules, 2)
    for mine, theirs in zip(other.optimizers, container.optimizers, strict=True):
        assert_equal(kept(again, mine), kept(model, theirs))
