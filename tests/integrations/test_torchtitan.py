"""torchtitan's way: a container of optimizers for each part of a model, checkpoints by names.

As a client that follows its pattern (version 0.3), without the package, whose requirements go far
beyond an optimizer: groups of `params` and `param_names` with all options in them, `fused` and
`foreach` for every class, states made by a step on zeros at a rate of 0, flat states keyed by
names, groups that come back without `param_names`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mcf.optim
from tests.integrations.training import Model, assert_equal, kept, tokens


class Container(torch.optim.Optimizer):
    """Optimizers of the parts of a model that is cut into pipeline stages."""

    def __init__(self, parts: list[nn.Module], cls: Any, options: dict[str, Any]) -> None:
        self.optimizers = []
        for part in parts:
            groups = []
            for biases in (False, True):
                mine = {n: p for n, p in part.named_parameters() if n.endswith("bias") is biases}
                decay = {"weight_decay": 0.0} if biases else {}
                named = {"params": list(mine.values()), "param_names": list(mine)}
                groups.append({**named, **options, **decay})
            self.optimizers.append(cls(groups))
        # It is one for whoever asks, and has hooks.
        super().__init__([p for part in parts for p in part.parameters()], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {k: v for o in self.optimizers for k, v in flat(with_states(o)).items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for optimizer in self.optimizers:
            with_states(optimizer).load_state_dict(nested(optimizer, state_dict))


def with_states(optimizer: Any) -> Any:
    """An optimizer whose states are there, if need be by a step that moves nothing."""
    if not optimizer.state:
        for group in optimizer.param_groups:
            group["kept_lr"], group["lr"] = group["lr"], 0.0
            for p in group["params"]:
                p.grad = torch.zeros_like(p)
        optimizer.step(closure=None)
        for group in optimizer.param_groups:
            group["lr"] = group.pop("kept_lr")
        optimizer.zero_grad(set_to_none=True)
    return optimizer


def flat(optimizer: Any) -> dict[str, Any]:
    """`state.<parameter>.<state>` and `param_groups.<parameter>.<option>`."""
    own, found = optimizer.state_dict(), {}
    for group in own["param_groups"]:
        for k, name in zip(group["params"], group["param_names"], strict=True):
            found |= {f"state.{name}.{key}": value for key, value in own["state"][k].items()}
            options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
            found |= {f"param_groups.{name}.{key}": value for key, value in options.items()}
    return found


def nested(optimizer: Any, found: dict[str, Any]) -> dict[str, Any]:
    """What `load_state_dict` takes, of the states that the optimizer has now."""
    state: dict[int, Any] = {}
    groups = []
    for group in optimizer.param_groups:
        first = group["param_names"][0]
        keys = [key for key in group if key not in ("params", "param_names")]
        numbers = []
        for name, p in zip(group["param_names"], group["params"], strict=True):
            numbers.append(len(state))
            state[len(state)] = {k: found[f"state.{name}.{k}"] for k in optimizer.state[p]}
        options = {key: found[f"param_groups.{first}.{key}"] for key in keys}
        groups.append({"params": numbers, **options})
    return {"state": state, "param_groups": groups}


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
    rates = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)) for o in container.optimizers
    ]
    return model, container, rates


def train(model: Model, container: Container, rates: list[Any]) -> None:
    for _ in range(2):
        container.zero_grad()
        model(tokens(4)).backward()
        container.step()
        for rate in rates:
            rate.step()


@pytest.mark.parametrize(
    ("precision", "implementation"),
    [("plus", "fused"), ("split16", "foreach"), ("8bit", "for-loop")],
)
def test_its_checkpoints(precision: str, implementation: str) -> None:
    model, container, rates = run(precision, implementation)
    train(model, container, rates)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = {
        k: v.clone() if isinstance(v, torch.Tensor) else v
        for k, v in container.state_dict().items()
    }
    again, other, schedules = run(precision, implementation)
    again.load_state_dict(weights)
    other.load_state_dict(states)
    for new, old in zip(schedules, rates, strict=True):
        new.load_state_dict(old.state_dict())
    train(model, container, rates)
    train(again, other, schedules)
    for mine, theirs in zip(other.optimizers, container.optimizers, strict=True):
        assert_equal(kept(again, mine), kept(model, theirs))
        assert mine.param_groups[0]["param_names"] == theirs.param_groups[0]["param_names"]
