"""The learning rate: a float or a tensor, new at every step, from any of torch's schedulers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

import mcf
import mcf.optim
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP64, assert_same, parameter, random, steps, stored

pytestmark = pytest.mark.usefixtures("on_torch")

LR = 1e-2
STEPS = 12

Optimizer = torch.optim.Optimizer
Schedule = Callable[[Optimizer], Any]


def sequential(o: Optimizer) -> Any:
    parts = [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    return lr_scheduler.SequentialLR(o, parts, [4])


def chained(o: Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, o)


SCHEDULES: dict[str, Schedule] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, STEPS),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "SequentialLR": sequential,
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, STEPS),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, step_size_up=3),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=STEPS + 1),
    "SWALR": lambda o: SWALR(o, 1e-3, anneal_epochs=4),
}


def test_every_scheduler_of_torch_is_here() -> None:
    found = {
        name
        for name, c in vars(lr_scheduler).items()
        if inspect.isclass(c)
        and issubclass(c, lr_scheduler.LRScheduler)
        and c.__name__ == name
        and name not in ("LRScheduler", "_LRScheduler")
    }
    assert found | {"SWALR"} == set(SCHEDULES)


def scheduled(optimizer: Optimizer, schedule: Schedule) -> list[float]:
    """The learning rates of some steps on seeded gradients."""
    with warnings.catch_warnings():
        # SequentialLR steps its parts in the order that torch itself warns about.
        warnings.simplefilter("ignore")
        scheduler = schedule(optimizer)
    (p,) = optimizer.param_groups[0]["params"]
    rates = []
    for t in range(STEPS):
        p.grad = random(p.shape, p.dtype, t + 1)
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
            scheduler.step(1.0) if plateau else scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("rule", ["AdamW", "SGD"])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
def test_scheduler(name: str, rule: str, tensor: bool) -> None:
    results, rates = [], []
    for module in (mcf.optim, torch.optim):
        p = parameter(20, FP64)
        lr = torch.tensor(LR, dtype=FP64) if tensor else LR
        # foreach=None of torch refuses some tensors; its for-loop takes all.
        options: dict[str, Any] = {} if module is mcf.optim else {"foreach": False}
        if rule == "SGD":
            options["momentum"] = 0.9
        optimizer = getattr(module, rule)([p], lr, **options)
        rates.append(scheduled(optimizer, SCHEDULES[name]))
        results.append(p.detach())
    assert rates[0] == rates[1]
    # float64 rounding of some steps with weights of size 1.
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)
    if name != "ReduceLROnPlateau":
        assert len(set(rates[0])) > 1


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_is_the_float(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    lr = torch.full(shape, LR, dtype=kind)
    results = []
    for given in (lr, float(lr)):
        optimizer = mcf.optim.AdamW([parameter((5, 3), BF16)], given)
        steps(optimizer, 3)
        results.append(stored(optimizer))
    assert_same(*results)
    assert_same_bits(lr, torch.full(shape, LR, dtype=kind), "the user's tensor")


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_each_step_takes_the_rate_of_the_moment() -> None:
    # Decay rates and eps of 0 make each step -lr sign(g); powers of two are exact.
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.float32))
    rate = torch.tensor(0.5)
    optimizer = mcf.optim.AdamW([p], rate, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0)
    p.grad = torch.ones(3)
    optimizer.step()
    rate.fill_(0.25)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert p.tolist() == [-0.875] * 3


def test_rate_that_misses_zero_from_below() -> None:
    # LinearLR down to 0 can end at -7e-22. The last steps and the checkpoint made after them
    # must not fail, although a negative rate is refused where a user gives one.
    p = parameter(4, BF16)
    optimizer = mcf.optim.AdamW([p], 3e-4)
    scheduler = lr_scheduler.LinearLR(optimizer, 0.1, 0.0, 10)
    for _ in range(10):
        steps(optimizer, 1)
        scheduler.step()
    assert -1e-18 < optimizer.param_groups[0]["lr"] < 0
    steps(optimizer, 1)
    other = mcf.optim.AdamW([parameter(4, BF16)], 3e-4)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
