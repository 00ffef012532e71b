"""AdEMAMix, Adan, schedule-free AdamW, StableAdamW: exact in float64, the same bits, their modes.

Contract in float64: that of `test_exact_rules`. Mutants: warm-ups left out, another power of the
weights, decay of the other kind.
"""

from __future__ import annotations

import copy
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.kernels import host
from mcf.optim import Adan, AdEMAMix, ScheduleFreeAdamW, StableAdamW
from mcf.optim.rules import ademamix
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.optim.exact_adamw import floats
from tests.optim.exact_recent import Recent
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    assert_same,
    cases,
    parameter,
    random,
    steps,
    stored,
)
from tests.optim.test_exact_rules import STEPS, TOLERANCE, N, compared
from tests.optim.variants import RECENT, RECENT_RULES, Variant

every = pytest.mark.parametrize("variant", RECENT, ids=str)
each = pytest.mark.parametrize("variant", RECENT_RULES, ids=str)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=2)
@every
@pytest.mark.usefixtures("on_torch")
def test_float64_is_exact(variant: Variant) -> None:
    found, optimizer, exact = compared(variant, Recent)
    print(f"{variant}: {found:.2g}")
    assert found < TOLERANCE
    if variant.make is StableAdamW:
        # Some rates are divided, and some are not.
        assert 0 < sum(exact.clipped) < STEPS
    if variant.make is ScheduleFreeAdamW:
        (p,) = optimizer.param_groups[0]["params"]
        optimizer.eval()
        x = floats(exact.x)
        assert float((p.detach() - x).norm() / (x - random(N, FP64, 1)).norm()) < TOLERANCE


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("variant", "wrong"),
    [
        (RECENT[0], {"beta3_warmup": None}),
        (RECENT[0], {"alpha_warmup": None}),
        (RECENT[3], {"no_prox": True}),
        (RECENT[5], {"warmup_steps": 11}),
        (RECENT[6], {"r": 1}),
        (RECENT[6], {"weight_lr_power": 2}),
        (RECENT[7], {"eps": 1e-3}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("on_torch")
def test_another_rule_is_rejected(variant: Variant, wrong: dict[str, Any]) -> None:
    assert compared(variant, Recent, **wrong)[0] > 1e6 * TOLERANCE


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.usefixtures("on_torch")
def test_adan_is_optimis() -> None:
    optimi = pytest.importorskip("optimi")
    mine, theirs = parameter(20, FP64), parameter(20, FP64)
    options = {"lr": 1e-2, "betas": (0.98, 0.92, 0.99), "eps": 1e-6, "weight_decay": 0.02}
    both = Adan([mine], **options), optimi.Adan([theirs], kahan_sum=False, **options)
    for optimizer in both:
        steps(optimizer, 20)
    # Each rounds by some 2**-53 in a step.
    assert (mine - theirs).abs().max() < 1e-13


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.usefixtures("on_torch")
def test_stable_adamw_is_optimis() -> None:
    optimi = pytest.importorskip("optimi", reason="a peer of the benchmarks")
    mine, theirs = parameter(20, FP64), parameter(20, FP64)
    options = {"lr": 1e-2, "betas": (0.9, 0.9), "eps": 1e-6, "weight_decay": 0.02}
    both = (
        StableAdamW([mine], **options),
        optimi.StableAdamW([theirs], kahan_sum=False, triton=False, foreach=False, **options),
    )
    for optimizer in both:
        for t in range(20):
            steps(optimizer, 1, seed=t, scale=10.0 ** (t % 3))
    assert (mine - theirs).abs().max() < 1e-13


@pytest.mark.usefixtures("on_torch")
def test_nothing_is_clipped_by_what_is_not_finite() -> None:
    """An infinity, a gradient of zeros, a tensor without elements: the other elements move on."""
    p, zero, nothing = parameter(4, BF16, 1), parameter(3, BF16, 2), parameter(0, BF16)
    optimizer = StableAdamW([p, zero, nothing], 0.01, eps=0.0, weight_decay=0.0)
    before = p.detach().clone(), zero.detach().clone()
    p.grad = torch.tensor([1.0, torch.inf, -1.0, 1.0], dtype=BF16)
    zero.grad, nothing.grad = torch.zeros(3, dtype=BF16), torch.zeros(0, dtype=BF16)
    optimizer.step()
    moved = p.detach().float() - before[0].float()
    assert moved[[0, 2, 3]].sign().tolist() == [-1.0, 1.0, -1.0]
    assert not moved[1].isfinite()


def test_one_minus_exp() -> None:
    """1 - e^x to 16 units in the last place (measured: 6) for x from -18 to -1e-16."""
    function = host.bind(ademamix.one_minus_exp)
    with mpmath.workprec(200):
        for k in range(500):
            x = -18.0 * 0.93**k
            right = -mpmath.expm1(mpmath.mpf(x))
            assert abs(function(x) / right - 1) < 16 * 2.0**-53
    assert ademamix.inverse_log(0.0) == 0.0


# -- low precision -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize(
    "variant",
    RECENT_RULES,
    ids=str,
)
@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
def test_of_float64s_way(variant: Variant) -> None:
    """How far bf16 is from float64 after 100 steps, as a share of the way."""
    found, start = {}, random(200, BF16, 1)
    for precision in ("float64", "plain", "plus", "master"):
        dtype = FP64 if precision == "float64" else BF16
        p = Parameter(start.to(dtype, copy=True))
        options = {**variant.options, "lr": 3e-4, "weight_decay": 0.0}
        given = {} if dtype == FP64 else {"precision": precision}
        optimizer = variant.make([p], **options, **given)
        for t in range(100):
            p.grad = random(200, BF16, 2 + t % 50, 0.1).to(dtype)
            optimizer.step()
        found[precision] = optimizer.master_weight(p).double() - start.double()
    right = found.pop("float64")
    distance = {n: float((t - right).norm() / right.norm()) for n, t in found.items()}
    print(variant, {n: f"{x:.2g}" for n, x in distance.items()})
    assert distance["master"] < 1e-3
    assert distance["plus"] < 0.02 < 0.2 < distance["plain"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
def test_slow_averages_need_pairs() -> None:
    """Of rate .999 a bf16 number stops at a quarter of the gradients: its unit is 2^-9 there."""
    found = {}
    for precision in ("plain", "plus"):
        p = parameter(1, BF16)
        optimizer = AdEMAMix([p], 0.0, betas=(0.9, 0.99, 0.999), precision=precision)
        p.grad = torch.ones(1, dtype=BF16)
        for _ in range(400):
            optimizer.step()
        found[precision] = float(optimizer.state[p]["exp_avg_slow"])
    assert found["plain"] == 0.25
    assert abs(found["plus"] / (1 - 0.999**400) - 1) < 2.0**-8


def test_strict_rates_are_pairs() -> None:
    """Of .9999 eight bits are 1; two components are what rounding to bf16 twice gives."""
    split = host.bind(ademamix.leading_bits)
    for beta in (0.9999, 0.999, 0.875, 0.98765):
        for dtype, bits in ((BF16, 8), (FP16, 11)):
            high = split(beta, 2.0 ** (53 - bits) + 1)
            assert high == torch.tensor(beta, dtype=FP64).to(dtype).item()
    assert split(0.9999, 1.0) == 0.9999


# -- the same bits -----------------------------------------------------------------------------


def bits(variant: Variant, executor: str, options: dict[str, Any], dtype: Any) -> dict[str, Tensor]:
    params = [parameter((5, 7), dtype, 1), parameter(11, FP32, 2), parameter((), dtype, 3)]
    with mcf.executor(executor):
        optimizer = variant.make(params, **variant.options, **options)
        # More than a warm-up.
        steps(optimizer, 12)
        if variant.make is ScheduleFreeAdamW:
            optimizer.eval()
        found = stored(optimizer)
    return {name: t.cpu() for name, t in found.items() if isinstance(t, Tensor)}


# By default one arithmetic of one rule on one executor beside torch's: a loop each takes seconds to
# compile.
CROSSED = everyday(
    [
        (variant, case, executor)
        for variant in RECENT_RULES
        for case in cases(variant.make.precisions)
        for executor in EXECUTORS[1:]
    ],
    lambda variant, case, executor: (
        (case.precision, case.dtype, case.strict) == ("plus", BF16, False)
        and variant.make is ScheduleFreeAdamW
        and executor == "numba"
    ),
)


@pytest.mark.parametrize(("variant", "case", "executor"), CROSSED, ids=str)
def test_executors_agree(variant: Variant, case: Any, executor: str) -> None:
    options = case.options()
    if case.strict:
        options["eps"] = 1e-4
        variant = Variant(variant.name, variant.make, {**variant.options, "eps": 1e-4})
        del options["eps"]
    right = bits(variant, "torch", options, case.dtype)
    assert_same(bits(variant, executor, options, case.dtype), right)


@pytest.mark.slow
@pytest.mark.parametrize("executor", everyday(["torch", "numba", "triton"], ["torch"]))
@each
def test_counted_on_a_device(variant: Variant, executor: str) -> None:
    right = bits(variant, "torch", {"precision": "plus"}, BF16)
    found = bits(variant, executor, {"precision": "plus", "capturable": True}, BF16)
    assert_same(found, right)


@each
@pytest.mark.usefixtures("on_torch")
def test_resumed(variant: Variant) -> None:
    runs = []
    for again in (False, True):
        p = parameter(9, BF16)
        optimizer = variant.make([p], **variant.options)
        steps(optimizer, 5)
        if again:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = variant.make([p], **variant.options)
            optimizer.load_state_dict(saved)
        steps(optimizer, 5, seed=7)
        runs.append(stored(optimizer))
    assert_same(*runs)
