"""AdEMAMix, Adan, schedule-free AdamW and StableAdamW in use: modes, decay, what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from mcf.optim import Adan, AdEMAMix, ScheduleFreeAdamW
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, FP64, assert_same, parameter, steps, stored
from tests.optim.variants import RECENT_RULES

# -- schedule-free: two modes ------------------------------------------------------------------


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("precision", ["plus", "light", "master", "split16", "bf16_sr"])
@pytest.mark.usefixtures("on_torch")
def test_modes(precision: str) -> None:
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


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (AdEMAMix, {"betas": (0.9, 0.99)}, r"Invalid betas: \(0.9, 0.99\); allowed are three"),
        (AdEMAMix, {"betas": (0.9, 0.99, 1.0)}, "beta parameter at index 2: 1.0"),
        (Adan, {"betas": (0.9, 0.99, torch.tensor(0.9))}, r"betas\[2\] is a Tensor"),
        (AdEMAMix, {"alpha": -1.0}, "Invalid alpha: -1.0"),
        (AdEMAMix, {"alpha_warmup": 0}, "Invalid alpha_warmup: 0; allowed is a whole number"),
        (AdEMAMix, {"beta3_warmup": 0.5}, "beta3_warmup must be an int or None, got float"),
        (AdEMAMix, {"precision": "eco"}, "precision"),
        (Adan, {"precision": "eco"}, "precision"),
        (Adan, {"no_prox": 1}, "no_prox must be True or False"),
        (ScheduleFreeAdamW, {"betas": (0.0, 0.9)}, r"index 0: 0; allowed is \(0, 1\)"),
        (ScheduleFreeAdamW, {"warmup_steps": -1}, "Invalid warmup_steps: -1"),
        (ScheduleFreeAdamW, {"warmup_steps": 1.5}, "warmup_steps must be an int, got float"),
        (ScheduleFreeAdamW, {"r": 3}, "Invalid r: 3; allowed are 0, 1 and 2"),
    ],
    ids=str,
)
def test_bad_arguments(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        make([parameter(2, BF16)], **options)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.usefixtures("on_torch")
def test_decay_apart_from_the_rate() -> None:
    """`decouple_lr`: at the peak rate the same as a decay that is larger by 1 / peak_lr."""
    for variant in RECENT_RULES:
        found = []
        for options in ({"weight_decay": 0.5}, {"weight_decay": 0.005, "decouple_lr": True}):
            p = parameter(6, FP64)
            steps(variant.make([p], **{**variant.options, "lr": 0.01, **options}), 1)
            found.append(p.detach())
        assert (found[0] - found[1]).abs().max() < 1e-15
        assert_same_bits(found[0].sign(), found[1].sign())
