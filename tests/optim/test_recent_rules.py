"""AdEMAMix, Adan, schedule-free AdamW, StableAdamW: peers, low precision, two modes.

That they are exact in float64, have the bits of their models, of every executor and of a resumed
run is tested with the other rules (`RECENT` in `variants`).
"""

from __future__ import annotations

import copy
from typing import Any

import mpmath
import pytest
import torch

from mcf.kernels import host
from mcf.optim import Adan, ScheduleFreeAdamW, StableAdamW
from mcf.optim.rules import ademamix
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    assert_same,
    parameter,
    steps,
    stored,
)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(
    ("make", "options", "more"),
    [
        (Adan, {"betas": (0.98, 0.92, 0.99)}, {}),
        (StableAdamW, {"betas": (0.9, 0.9)}, {"triton": False, "foreach": False}),
    ],
    ids=["adan", "stable-adamw"],
)
def test_float64_run_is_optimis(make: Any, options: dict[str, Any], more: dict[str, Any]) -> None:
    optimi = pytest.importorskip("optimi", reason="a peer of the benchmarks")
    mine, theirs = parameter(20, FP64), parameter(20, FP64)
    options = {"lr": 1e-2, "eps": 1e-6, "weight_decay": 0.02, **options}
    other = getattr(optimi, make.__name__)([theirs], kahan_sum=False, **options, **more)
    for optimizer in (make([mine], **options), other):
        for t in range(20):
            steps(optimizer, 1, seed=t, scale=10.0 ** (t % 3))
    # Each rounds by some 2**-53 in a step.
    assert (mine - theirs).abs().max() < 1e-13


@pytest.mark.usefixtures("on_torch")
def test_stable_adamw_by_a_gradient_that_is_not_finite_clips_nothing() -> None:
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


def test_one_minus_exp_is_within_16_units() -> None:
    """1 - e^x to 16 units in the last place (measured: 6) for x from -18 to -1e-16."""
    function = host.bind(ademamix.one_minus_exp)
    with mpmath.workprec(200):
        for k in range(500):
            x = -18.0 * 0.93**k
            right = -mpmath.expm1(mpmath.mpf(x))
            assert abs(function(x) / right - 1) < 16 * 2.0**-53
    assert ademamix.inverse_log(0.0) == 0.0


# -- low precision -----------------------------------------------------------------------------


def test_leading_bits_are_rounded_rates() -> None:
    """Of .9999 eight bits are 1; two components are what rounding to bf16 twice gives."""
    split = host.bind(ademamix.leading_bits)
    for beta in (0.9999, 0.999, 0.875, 0.98765):
        for dtype, bits in ((BF16, 8), (FP16, 11)):
            high = split(beta, 2.0 ** (53 - bits) + 1)
            assert high == torch.tensor(beta, dtype=FP64).to(dtype).item()
    assert split(0.9999, 1.0) == 0.9999


# -- schedule-free: two modes ------------------------------------------------------------------


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("precision", ["plus", "light", "master", "split16", "bf16_sr", "8bit"])
@pytest.mark.usefixtures("on_torch")
def test_evaluation_changes_no_bit_of_training(precision: str) -> None:
    """Evaluation changes no bit of the training, also where it is saved and resumed in between."""
    runs = []
    for how in ("never", "between", "saved"):
        p, q = parameter((3, 4), BF16), parameter(5, FP32)
        optimizer = ScheduleFreeAdamW([p, q], 0.01, precision=precision)
        steps(optimizer, 4)
        before = stored(optimizer)
        if how != "never":
            optimizer.eval()
            optimizer.eval()
            assert not torch.equal(p, before["0.param"])
            with pytest.raises(RuntimeError, match=r"step\(\) in eval mode.*call train\(\)"):
                optimizer.step()
        if how == "saved":
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = ScheduleFreeAdamW([p, q], 0.01, precision=precision)
            optimizer.load_state_dict(saved)
        optimizer.train()
        assert_same(stored(optimizer), before)
        steps(optimizer, 3, seed=9)
        runs.append(stored(optimizer))
    for run in runs[1:]:
        assert_same(run, runs[0])
