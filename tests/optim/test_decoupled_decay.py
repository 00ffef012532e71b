"""Decoupled weight decay: apart from the rate, refused in the gradient, in checkpoints.

That it is exact in float64 is in `test_rules.py`.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import SGD, Adam, Adamax, AdamW, Lion, NAdam, RAdam
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP64, assert_same, parameter, steps, stored
from tests.optim.variants import RECENT_RULES, Variant

MAKES = (Adam, NAdam, RAdam, Adamax, SGD)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("make", [*MAKES, AdamW, Lion])
@pytest.mark.usefixtures("on_torch")
def test_apart_from_the_rate(make: Any) -> None:
    """p <- p (1 - lr / peak_lr weight_decay) where all gradients are 0, whatever the rate."""
    options = {"weight_decay": 0.25, "decouple_lr": True}
    if make in MAKES:
        options["decoupled_weight_decay"] = True
    for rate in (2.0**-10, 0.5):
        p = Parameter(torch.ones(3, dtype=FP64))
        optimizer = make([p], rate, **options)
        for t in range(3):
            optimizer.param_groups[0]["lr"] = rate * 0.5**t
            p.grad = torch.zeros_like(p)
            optimizer.step()
        # Powers of two: every operation is exact.
        right = (1 - 2.0**-2) * (1 - 2.0**-3) * (1 - 2.0**-4)
        assert_same_bits(p.detach(), torch.full((3,), right, dtype=FP64))


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("variant", RECENT_RULES, ids=str)
@pytest.mark.usefixtures("on_torch")
def test_decay_at_the_peak_rate_is_larger_by_its_inverse(variant: Variant) -> None:
    found = []
    for options in ({"weight_decay": 0.5}, {"weight_decay": 0.005, "decouple_lr": True}):
        p = parameter(6, FP64)
        steps(variant.make([p], **{**variant.options, "lr": 0.01, **options}), 1)
        found.append(p.detach())
    assert (found[0] - found[1]).abs().max() < 1e-15


@pytest.mark.parametrize("make", MAKES)
def test_a_penalty_in_the_gradient_is_refused(make: Any) -> None:
    words = f"weight decay of {make.__name__} is not decoupled.*decoupled_weight_decay=True"
    with pytest.raises(ValueError, match=words):
        make([parameter(3, BF16)], decouple_lr=True)
    with pytest.raises(TypeError, match="decoupled_weight_decay must be True or False, got 1"):
        make([parameter(3, BF16)], decoupled_weight_decay=1)


@pytest.mark.parametrize("make", [Adamax, SGD])
@pytest.mark.usefixtures("on_torch")
def test_checkpoints_of_before_have_a_penalty(make: Any) -> None:
    runs = []
    for older in (False, True):
        p = parameter(9, BF16)
        optimizer = make([p], 0.1, weight_decay=0.1)
        steps(optimizer, 3)
        if older:
            saved = copy.deepcopy(optimizer.state_dict())
            del saved["param_groups"][0]["decoupled_weight_decay"]
            optimizer = make([p], 0.1, decoupled_weight_decay=True)
            optimizer.load_state_dict(saved)
        steps(optimizer, 3, seed=5)
        runs.append(stored(optimizer))
    assert_same(*runs)
