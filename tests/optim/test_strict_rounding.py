"""Strict arithmetic rounds where the documentation says, and nowhere else.

Contract: with compute_dtype the parameter's 16-bit dtype, every state after every step has the
values of `tests.optim.strict_model`, which computes the documented formulas on rational numbers.
Leaving any single rounding of the model out makes it differ (`test_every_rounding_counts`), so each
rounding point is tested. Zero comes without its sign, which the executors' own comparison covers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels.formats import format_of
from mcf.optim import AdamW, Lion
from tests.helpers import numbers
from tests.helpers.draws import power_of_two
from tests.helpers.everyday import everyday
from tests.optim.formulas import State
from tests.optim.helpers import BF16, FP16, Case, random
from tests.optim.strict_model import Strict, history
from tests.optim.variants import VARIANTS, Variant, named, pairs

# RAdam's second formula begins with the sixth step.
STEPS = 7


def _chosen(variant: Variant, case: Case) -> bool:
    """AdamW with all arithmetics, rules in bf16 with most steps, their variants in fp16."""
    light = Case("light", FP16, FP16)
    return variant.name == "adamw" or case == (light if "-" in variant.name else variant.few()[1])


PAIRS = everyday([(v, case) for v, case in pairs(VARIANTS, "cases") if case.strict], _chosen)

ADAMW = named("adamw")


def wide_numbers(dtype: torch.dtype, seed: int, n: int = 200) -> Tensor:
    """Numbers of many magnitudes, ordinary ones and zeros; within fp16's range for fp16."""
    exponent = random(n, torch.float64, seed + 7).abs() * (-8 if dtype == BF16 else -1)
    x = random(n, torch.float64, seed) * power_of_two(exponent.round())
    x[: n // 2] = random(n // 2, torch.float64, seed + 1, 0.3)
    x[::10] = 0
    return x.to(dtype)


def gradients(dtype: torch.dtype) -> list[Tensor]:
    return [wide_numbers(dtype, 100 + t) for t in range(STEPS)]


def measured(variant: Variant, case: Case) -> list[list[State]]:
    """For each number its states after each step of the optimizer itself."""
    p = torch.nn.Parameter(wide_numbers(case.dtype, 3))
    optimizer = variant.make([p], **variant.options, **case.options())
    steps = []
    with mcf.executor("torch"):
        for g in gradients(case.dtype):
            p.grad = g
            optimizer.step()
            tensors = {"param": p, **optimizer.state[p]}
            tensors = {n: t for n, t in tensors.items() if t.shape == p.shape}
            columns = {name: numbers(t) for name, t in tensors.items()}
            rows = zip(*columns.values(), strict=True)
            steps.append([dict(zip(columns, row, strict=True)) for row in rows])
    return [list(states) for states in zip(*steps, strict=True)]


def modelled(variant: Variant, model: Strict, case: Case) -> Iterator[list[State]]:
    """For each number its states after each step of the model."""
    step = getattr(model, variant.rule)
    columns = zip(*(numbers(g) for g in gradients(case.dtype)), strict=True)
    for x, gs in zip(numbers(wide_numbers(case.dtype, 3)), columns, strict=True):
        yield history(step, {"param": x}, list(gs), **variant.options)


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


@pytest.mark.sampled(every=24)
@pytest.mark.parametrize(("variant", "case"), PAIRS, ids=str)
def test_optimizer_is_the_model(variant: Variant, case: Case) -> None:
    model = Strict(format_of(case.dtype), case.precision)
    assert not first_difference(measured(variant, case), modelled(variant, model, case))


# What follows from theorems, whatever the inputs: Fast2Sum's s - a is exact where a is the larger
# (Sterbenz), and so is the error that it ends with. Kahan's call has no such order.
EXACT = {"p s - a", "v s - a", "dp", "dv"}
# Lion uses the sign of a sum only. Rounding the sum keeps it; that of its terms is tested below.
EXACT |= {"x", "b1 x", "(1-b1) x"}


@pytest.mark.slow
@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(
    ("variant", "precision"),
    # What plain and light round, plus rounds as well.
    [pytest.param(ADAMW, p, marks=pytest.mark.slow) for p in ("plain", "light")]
    + [(ADAMW, p) for p in ("kahan", "plus")]
    # Each formula once: these have every slot that a variant of them fills otherwise.
    + [(named(n), "plus") for n in ("adam-amsgrad", "nadam", "radam", "adamax")]
    + [(named("lion"), "light")],
    ids=str,
)
def test_every_rounding_counts(variant: Variant, precision: str) -> None:
    # Large, so that an update moves the parameter by many of its ulps and the last bits are seen.
    large = dataclasses.replace(variant, options={**variant.options, "lr": 0.3})
    case = Case(precision, BF16, BF16)
    truth = measured(large, case)
    complete = Strict(format_of(BF16), precision)
    assert same(truth, modelled(large, complete, case))
    unseen = {
        point
        for point in complete.points - EXACT
        if same(truth, modelled(large, Strict(format_of(BF16), precision, point), case))
    }
    assert not unseen, "leaving these roundings out changes nothing"


def test_lion_rounds_what_it_takes_the_sign_of() -> None:
    # Products that cancel as rounded, and do not where one of them is left exact: sign(0) = 0.
    b1, rest = (torch.tensor(x, dtype=torch.float32) for x in (0.9, 1 - 0.9))
    m = torch.arange(128, 256).to(BF16).repeat_interleave(256)
    g = -(torch.arange(1024, 2304, 5).to(BF16)).repeat(128)
    exact_m, exact_g = b1.double() * m.double(), rest.double() * g.double()
    rounded_m, rounded_g = (b1 * m.float()).to(BF16).double(), (rest * g.float()).to(BF16).double()
    cancel = rounded_m + rounded_g == 0
    assert (cancel & (exact_m + rounded_g != 0)).sum() > 10
    assert (cancel & (rounded_m + exact_g != 0)).sum() > 10
    p = torch.nn.Parameter(torch.zeros(int(cancel.sum()), dtype=BF16))
    optimizer = Lion([p], 1.0, precision="plain", compute_dtype=BF16)
    p.grad = g[cancel]
    optimizer.step()
    p.data.zero_()
    optimizer.state[p]["exp_avg"].copy_(m[cancel])
    optimizer.step()
    assert (p == 0).all()


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
