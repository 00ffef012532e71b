"""Strict arithmetic rounds where the documentation says, and nowhere else.

Contract: with compute_dtype the parameter's 16-bit dtype, every state after every step has the
values of `tests.optim.strict_model`, which computes the documented formulas on rational numbers.
Leaving any single rounding of the model out makes it differ (`test_every_rounding_counts`), so each
rounding point is tested. Zero comes without its sign, which the executors' own comparison covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels.formats import format_of
from mcf.optim import SGD, AdamW
from tests.helpers import numbers
from tests.optim.helpers import BF16, FP16, Case, cases, random
from tests.optim.strict_model import State, Strict, history

STEPS = 5

ADAMW = {"lr": 3e-3, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
MOMENTUM = {"lr": 0.03, "momentum": 0.9, "dampening": 0.25, "weight_decay": 0.1, "nesterov": False}
NESTEROV = {**MOMENTUM, "dampening": 0.0, "nesterov": True}
BARE = {**MOMENTUM, "momentum": 0.0, "dampening": 0.0}

STRICT = [c for c in cases() if c.strict]


def wide_numbers(dtype: torch.dtype, seed: int, n: int = 120) -> Tensor:
    """Numbers of many magnitudes, ordinary ones and zeros; within fp16's range for fp16."""
    exponent = random(n, torch.float64, seed + 7).abs() * (-8 if dtype == BF16 else -1)
    x = random(n, torch.float64, seed) * torch.exp2(exponent)
    x[: n // 2] = random(n // 2, torch.float64, seed + 1, 0.3)
    x[::10] = 0
    return x.to(dtype)


def gradients(dtype: torch.dtype) -> list[Tensor]:
    return [wide_numbers(dtype, 100 + t) for t in range(STEPS)]


def measured(make: Any, case: Case, options: dict[str, Any]) -> list[list[State]]:
    """For each number its states after each step of the optimizer itself."""
    p = torch.nn.Parameter(wide_numbers(case.dtype, 3))
    optimizer = make([p], **options, **case.options())
    steps = []
    with mcf.executor("torch"):
        for g in gradients(case.dtype):
            p.grad = g
            optimizer.step()
            tensors = {"param": p, **optimizer.state[p]}
            del tensors["step"]
            columns = {name: numbers(t) for name, t in tensors.items()}
            rows = zip(*columns.values(), strict=True)
            steps.append([dict(zip(columns, row, strict=True)) for row in rows])
    return [list(states) for states in zip(*steps, strict=True)]


def modelled(
    rule: str, model: Strict, case: Case, options: dict[str, Any]
) -> Iterator[list[State]]:
    """For each number its states after each step of the model."""
    names = ("param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo", "momentum_buffer")
    step = model.adamw if rule == "adamw" else model.sgd
    columns = zip(*(numbers(g) for g in gradients(case.dtype)), strict=True)
    for x, gs in zip(numbers(wide_numbers(case.dtype, 3)), columns, strict=True):
        start: Any = {"param": x, **dict.fromkeys(names, Fraction(0))}
        yield history(step, start, list(gs), **options)  # type: ignore[arg-type]


def first_difference(truth: list[list[State]], model: Iterator[list[State]]) -> str:
    """Where optimizer and model first differ, in words; empty where they do not."""
    for k, (mine, theirs) in enumerate(zip(truth, model, strict=True)):
        for t, (a, b) in enumerate(zip(mine, theirs, strict=True), 1):
            for name in a.keys() | b.keys():
                x, y = a.get(name), b.get(name)
                if x != y:
                    return f"number {k}, step {t}, {name}: {x} in the optimizer, {y} in the model"
    return ""


def same(truth: list[list[State]], model: Iterator[list[State]]) -> bool:
    return not first_difference(truth, model)


@pytest.mark.parametrize("case", STRICT, ids=str)
def test_adamw_is_the_model(case: Case) -> None:
    model = Strict(format_of(case.dtype), case.precision)
    found = first_difference(measured(AdamW, case, ADAMW), modelled("adamw", model, case, ADAMW))
    assert not found


@pytest.mark.parametrize(
    "options", [BARE, MOMENTUM, NESTEROV], ids=["bare", "momentum", "nesterov"]
)
@pytest.mark.parametrize("case", cases(("plain", "kahan", "light"), (BF16,))[3:], ids=str)
def test_sgd_is_the_model(case: Case, options: dict[str, Any]) -> None:
    model = Strict(format_of(case.dtype), case.precision)
    found = first_difference(measured(SGD, case, options), modelled("sgd", model, case, options))
    assert not found


# What follows from theorems, whatever the inputs: Fast2Sum's s - a is exact where a is the larger
# (Sterbenz), and so is the error that it ends with. Kahan's call has no such order.
EXACT = {"p s - a", "v s - a", "dp", "dv"}


# Large, so that an update moves the parameter by many of its ulps and the last bits are seen.
LARGE = {**ADAMW, "lr": 0.3}


@pytest.mark.parametrize("precision", ["plain", "kahan", "light", "plus"])
def test_every_rounding_counts(precision: str) -> None:
    case = Case(precision, BF16, BF16)
    truth = measured(AdamW, case, LARGE)
    complete = Strict(format_of(BF16), precision)
    assert same(truth, modelled("adamw", complete, case, LARGE))
    unseen = {
        point
        for point in complete.points - EXACT
        if same(truth, modelled("adamw", Strict(format_of(BF16), precision, point), case, LARGE))
    }
    assert not unseen, "leaving these roundings out changes nothing"


def test_moments_are_divided_by_their_corrections() -> None:
    # RN(m / c1) differs from RN(m RN(1 / c1)) in one number of 100,000: these are some of them.
    # With beta2 = 0, g = 1, eps = 0, lr = 1 and no decay the step is p - m / c1.
    beta1 = 0.999
    before = torch.cat([torch.arange(128, 256) * 2.0**e for e in range(-10, 1)])
    m = (torch.tensor(beta1) * before).to(BF16).float()
    m = (m + torch.tensor(1 - beta1).to(BF16).float()).to(BF16).float()
    seen = 0
    for t in range(2, 1500):
        correction = 1 - beta1**t
        divided = (m / torch.tensor(correction, dtype=torch.float32)).to(BF16)
        multiplied = (m * torch.tensor(1 / correction, dtype=torch.float32)).to(BF16)
        differ = divided != multiplied
        if not differ.any():
            continue
        seen += int(differ.sum())
        p = torch.nn.Parameter(torch.zeros(int(differ.sum()), dtype=BF16))
        p.grad = torch.ones_like(p)
        optimizer = AdamW([p], 1.0, (beta1, 0.0), 0.0, 0.0, precision="light", compute_dtype=BF16)
        optimizer.step()
        optimizer.state[p]["exp_avg"].copy_(before[differ])
        optimizer.state[p]["param_lo"].zero_()
        optimizer.state[p]["step"].fill_(t - 1)
        p.data.zero_()
        optimizer.step()
        assert torch.equal(-p.detach(), divided[differ])
    assert seen > 0


def test_one_format_is_not_the_other() -> None:
    case = Case("plus", FP16, FP16)
    model = Strict(format_of(BF16), "plus")
    assert not same(measured(AdamW, case, ADAMW), modelled("adamw", model, case, ADAMW))
