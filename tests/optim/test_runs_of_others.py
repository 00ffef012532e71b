"""Runs of other libraries' optimizers that are alive go on as ours, from their states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf.optim
from mcf.optim import convert
from tests.optim.helpers import FP64, parameter, steps

pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_an_optimi_run_goes_on(name: str) -> None:
    """Its moments are divided by 1 - beta^t; taken for ours, they made the step half of its own."""
    optimi = pytest.importorskip("optimi", reason="a peer of the benchmarks")
    p = parameter((6, 4), FP64)
    options = {"betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.0}
    source = getattr(optimi, name)([p], 1e-2, kahan_sum=False, **options)
    steps(source, 7)
    q = Parameter(p.detach().clone())
    mine, _ = convert(source, params=[q])
    for optimizer in (source, mine):
        steps(optimizer, 3, seed=5)
    # Some roundings of 2**-53 in each of three steps.
    assert (p - q).abs().max() < 1e-14


class AdamWScheduleFree(torch.optim.Optimizer):
    """What the authors of schedule-free AdamW keep, by the paper's x, y and z; p is y."""

    def __init__(self, params: Any) -> None:
        defaults = {
            "lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-6, "r": 0.0, "k": 0, "warmup_steps": 3,
            "train_mode": True, "weight_sum": 0.0, "lr_max": -1.0, "weight_lr_power": 2.0,
            "weight_decay": 0.1, "foreach": True,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        (group,) = self.param_groups
        (p,), (beta1, beta2) = group["params"], group["betas"]
        state = self.state[p]
        if not state:
            state |= {"z": p.clone(), "exp_avg_sq": torch.zeros_like(p)}
        group["k"] += 1
        warm = min(group["k"] / group["warmup_steps"], 1.0)
        rate = group["lr"] * warm * (1 - beta2 ** group["k"]) ** 0.5
        group["lr_max"] = max(rate, group["lr_max"])
        group["weight_sum"] += group["lr_max"] ** 2
        c, z, v = group["lr_max"] ** 2 / group["weight_sum"], state["z"], state["exp_avg_sq"]
        x = (p - (1 - beta1) * z) / beta1
        v.mul_(beta2).add_((1 - beta2) * p.grad * p.grad)
        u = p.grad / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
        z.sub_(rate * u)
        p.copy_(beta1 * ((1 - c) * x + c * z) + (1 - beta1) * z)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_a_schedule_free_run_goes_on() -> None:
    p = parameter(8, FP64)
    source = AdamWScheduleFree([p])
    steps(source, 5)
    q = Parameter(p.detach().clone())
    mine, report = convert(source, params=[q])
    assert type(mine) is mcf.optim.ScheduleFreeAdamW
    assert report.exact
    for optimizer in (source, mine):
        steps(optimizer, 4, seed=5)
    # Roundings of 2**-53, of which x has ten times as many.
    assert (p - q).abs().max() < 1e-14
    source.param_groups[0]["train_mode"] = False
    with pytest.raises(ValueError, match="train_mode=False; allowed is its state in train mode"):
        convert(source, params=[q])
