"""What is set between steps in groups and states is checked as what constructors are given.

*Exact*: a step that refuses it has changed no bit. Caught mutants: a check in the first step alone;
one after the launch; rates that are compared and not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import mcf
from mcf.optim import SGD, AdamW, GradientRelease, Lion, Muon, NAdam
from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.helpers.executors import on_each_executor
from tests.optim.helpers import BF16, assert_same, parameter, steps, stored
from tests.optim.test_validation import HYPERPARAMETERS

# The values that a new optimizer refuses, and some that only a group can have.
SET = [
    *(
        row
        for row in HYPERPARAMETERS
        if row[0] in (AdamW, SGD, NAdam, Lion)
        and row[1] not in ("precision", "decoupled_weight_decay", "nesterov")
        and not isinstance(row[2], tuple | list)
    ),
    (AdamW, "betas", (2, 0.9), ValueError, r"index 0: 2; allowed is \[0.0, 1.0\)"),
    (Lion, "betas", (0.9, math.nan), ValueError, "index 1: nan"),
    (AdamW, "lr", "0.5", TypeError, "learning rate must be a number, got str"),
    (AdamW, "betas", None, ValueError, "betas: None; allowed is a pair"),
    (Muon, "momentum", 1.5, ValueError, "momentum value: 1.5"),
    (Muon, "nesterov", None, TypeError, "nesterov must be True or False, got None"),
]


def refused(optimizer: LowPrecisionOptimizer, error: type[Exception], words: str) -> None:
    """step() raises with these words, and no bit, state or count is different after."""
    before = stored(optimizer)
    with pytest.raises(error, match=words):
        optimizer.step()
    assert_same(stored(optimizer), before)


# The torch executor checks every step in full, Numba's repeats the last.
@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize("made", [0, 3], ids=["new", "stepped"])
@pytest.mark.parametrize(
    ("kind", "name", "value", "error", "words"),
    SET,
    ids=[f"{k}-{r[0].__name__}-{r[1]}" for k, r in enumerate(SET)],
)
def test_hyperparameters_out_of_range(
    kind: Any, name: str, value: Any, error: type[Exception], words: str, made: int, executor: str
) -> None:
    with mcf.executor(executor):
        optimizer = kind([parameter((3, 4), BF16)])
        steps(optimizer, made)
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        group = optimizer.param_groups[0]
        given, group[name] = group[name], value
        for _ in range(2):
            refused(optimizer, error, words)
        group[name] = given
        optimizer.step()
        assert optimizer.state[group["params"][0]]["step"].item() == made + 1


@on_each_executor
def test_a_tensor_that_is_written(executor: str) -> None:
    lr = torch.tensor(0.5)
    with mcf.executor(executor):
        optimizer = AdamW([parameter(3, BF16)], lr)
        steps(optimizer, 3)
        lr.fill_(-0.5)
        refused(optimizer, ValueError, "learning rate: -0.5")
        lr.fill_(0.25)
        optimizer.step()


def test_gradient_release() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p])
    release = GradientRelease(optimizer)
    p.sum().backward()
    before = p.detach().clone()
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="learning rate: -1"):
        p.sum().backward()
    assert torch.equal(p, before)
    release.remove()


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_schedules_that_miss_zero_by_a_rounding_error(executor: str) -> None:
    with mcf.executor(executor):
        for below, taken in ((-1e-20, True), (-1e-10, True), (-1e-7, False), (-1e-3, False)):
            optimizer = AdamW([parameter(3, BF16)], 1e-3)
            steps(optimizer, 2)
            optimizer.param_groups[0]["lr"] = below
            if taken:
                optimizer.step()
            else:
                refused(optimizer, ValueError, "learning rate: -")
        # Of the rate that a schedule began with, where that is another.
        optimizer = AdamW([{"params": [parameter(3, BF16)], "lr": 1e3}], 1e-3)
        lr_scheduler.LambdaLR(optimizer, lambda t: 1.0)
        steps(optimizer, 2)
        optimizer.param_groups[0]["lr"] = -1e-4
        optimizer.step()


def test_a_momentum_that_goes_to_zero_and_back() -> None:
    optimizer = SGD([parameter(3, BF16)], 1e-2, 0.9, nesterov=True)
    for momentum in (0.9, 0.0, 0.5):
        optimizer.param_groups[0]["momentum"] = momentum
        steps(optimizer, 1)
    optimizer.param_groups[0]["dampening"] = 0.5
    refused(optimizer, ValueError, "Nesterov momentum requires a momentum and zero dampening")


def test_schedules_cost_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    check = AdamW._check_group
    monkeypatch.setattr(AdamW, "_check_group", lambda o, g: (seen.append(1), check(o, g))[1])
    with mcf.executor("numba"):
        optimizer = AdamW([parameter(3, BF16)], 1e-2)
        steps(optimizer, 2)
        repeated, count = optimizer._steps._repeat, len(seen)
        for k in range(5):
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + k)
            optimizer.param_groups[0]["weight_decay"] = 1e-2 * k
            steps(optimizer, 1)
        assert len(seen) == count
        optimizer.param_groups[0]["eps"] = 1e-6
        steps(optimizer, 1)
        assert len(seen) == count + 1
        assert optimizer._steps._repeat is repeated is not None


NUMBERS: list[tuple[Any, str, Callable[[], Any], type[Exception], str]] = [
    (AdamW, "step", lambda: 3, TypeError, "is of type int; allowed is a tensor"),
    (AdamW, "step", lambda: None, TypeError, "is of type NoneType; allowed is a tensor"),
    (AdamW, "step", lambda: torch.ones(2), ValueError, r"has shape \[2\]; allowed is one"),
    (NAdam, "mu_product", lambda: 0.5, TypeError, "is of type float; allowed is a tensor"),
]


@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize(
    ("kind", "name", "make", "error", "words"), NUMBERS, ids=["int", "None", "two", "product"]
)
def test_numbers_of_a_state(
    kind: Any, name: str, make: Callable[[], Any], error: type[Exception], words: str, executor: str
) -> None:
    with mcf.executor(executor):
        params = [parameter(3, BF16, 1), parameter(4, BF16, 2)]
        optimizer = kind(params)
        steps(optimizer, 2)
        state = optimizer.state[params[1]]
        kept = state[name]
        before = stored(optimizer)
        state[name] = make()
        message = rf"state '{name}' of params\[1\] of param_groups\[0\] {words}"
        with pytest.raises(error, match=message):
            optimizer.step()
        state[name] = kept
        assert_same(stored(optimizer), before)
        optimizer.step()
        assert kept is optimizer.state[params[1]][name]
