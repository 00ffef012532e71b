"""The warning that a rate is too small for a precision.

Weights of 1 and updates of the size of the rate: the share that is lost is known. A rate of 2^-12
is below half a unit of a bf16 weight of 1, which is 2^-9 below and 2^-8 above it, and above half a
unit of 8 + 8 bits. Mutants that fail: a check that looks at served weights alone, one that counts
skipped steps, one in the middle of a warm-up, one that looks on after it has warned.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf.optim
from mcf.optim import SGD, AdamW, CollageAdamW, Lion, LostUpdatesWarning, NoEffectWarning
from tests.optim.arithmetics import BF16, FP16, FP32
from tests.optim.helpers import random

pytestmark = pytest.mark.usefixtures("on_torch")


SMALL = 2.0**-12


def ones(dtype: torch.dtype = BF16) -> Parameter:
    return Parameter(torch.ones(5, 7, dtype=dtype))


def run(optimizer: Any, count: int, gradient: float = 1.0) -> list[str]:
    """Return the messages of some steps on gradients of one value."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(count):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = torch.full_like(p, gradient)
            optimizer.step()
    assert all(w.category is LostUpdatesWarning for w in found)
    return [str(w.message) for w in found]


LOSES = {"plain": True, "fp32_states": True, "split8": False, "light": False, "plus": False}
KEEPS = ("stochastic", "bf16_sr", "8bit", "4bit", "eco", "split8_sr", "split16_sr", "master")


@pytest.mark.parametrize("precision", [*LOSES, *KEEPS])
def test_a_small_rate_warns_where_updates_are_lost(precision: str) -> None:
    optimizer = AdamW([ones()], SMALL, precision=precision, weight_decay=0.0)
    found = run(optimizer, 40)
    assert len(found) == LOSES.get(precision, False)
    if found:
        assert "100% of the sampled updates of param_groups[0]" in found[0]
        assert f"lr={SMALL:g} is too small for precision={precision!r}" in found[0]
        assert "'split16_sr'" in found[0]


def test_a_rate_below_the_low_word_warns_for_pairs_as_well() -> None:
    net = torch.nn.Linear(20, 20, bias=False)
    weights = {"weight": 1 + random((20, 20), FP32, 1, 0.25)}
    # A low word of 2^-10 and more has a unit of 2^-18 and more.
    optimizer = AdamW(net.bfloat16().parameters(), 1e-6, precision="plus", weight_decay=0.0)
    mcf.optim.load_float32_weights(net, optimizer, weights)
    (message,) = run(optimizer, 20)
    assert "precision='plus'" in message


def test_a_large_rate_does_not_warn() -> None:
    assert run(AdamW([ones()], 2.0**-6, precision="plain", weight_decay=0.0), 40) == []


def test_the_check_can_be_left_out() -> None:
    optimizer = AdamW([ones()], SMALL, precision="plain", check_numerics=False)
    assert run(optimizer, 20) == []
    later = AdamW([ones()], SMALL, precision="plain")
    later.check_numerics = False
    assert run(later, 20) == []
    with pytest.raises(TypeError, match="check_numerics must be True or False, got 1"):
        AdamW([ones()], check_numerics=1)  # type: ignore[arg-type]


def test_a_rate_that_rises_is_compared_when_it_no_longer_does() -> None:
    optimizer = AdamW([ones()], 1e-9, precision="plain", weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(k + 1, 40) * 2.5e6)
    found = []
    for _ in range(200):
        found += run(optimizer, 1)
        scheduler.step()
    # At the end of the warm-up the rate is 0.1.
    assert found == []


def test_each_group_is_named_and_warned_of_once() -> None:
    groups = [{"params": [ones()], "lr": 2.0**-6}, {"params": [ones()], "lr": SMALL}]
    optimizer = AdamW(groups, precision="plain", weight_decay=0.0)
    (message,) = run(optimizer, 300)
    assert "param_groups[1]" in message


def test_elements_without_a_gradient_and_skipped_steps_are_not_lost() -> None:
    optimizer = AdamW([ones()], 2.0**-6, precision="plain", nonfinite="skip", weight_decay=0.0)
    assert run(optimizer, 15) == []
    assert run(optimizer, 1, float("inf")) == []
    assert run(AdamW([ones()], SMALL, precision="plain", weight_decay=0.0), 20, 0.0) == []


@pytest.mark.parametrize("dtype", [FP32, FP16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    found = run(AdamW([ones(dtype)], 1e-5, precision="plain", weight_decay=0.0), 20)
    assert [("'master'" in message) for message in found] == [True] * (dtype == FP16)


def test_sgd_and_copies() -> None:
    optimizer = SGD([ones()], 2.0**-12, precision="plain")
    other = copy.deepcopy(optimizer)
    assert len(run(optimizer, 20)) == 1
    # A copy is of the same run, whose first steps are over or are another's to watch.
    assert run(other, 20) == []


def test_weights_and_states_are_those_without_the_check() -> None:
    found: list[list[Tensor]] = []
    for check in (True, False):
        optimizer = AdamW([ones()], 2.0**-6, precision="plus", check_numerics=check)
        run(optimizer, 20, 0.5)
        p = optimizer.param_groups[0]["params"][0]
        found.append([p.detach(), *(t for t in optimizer.state[p].values() if t.dim())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("precision", [*LOSES, *KEEPS])
def test_a_parameter_whose_first_gradient_comes_late_is_stepped(precision: str) -> None:
    first, second = ones(), ones()
    optimizer = AdamW([first, second], 2.0**-6, precision=precision)
    for step in range(1, 21):
        first.grad = torch.ones_like(first)
        second.grad = torch.ones_like(second) if step >= 16 else None
        optimizer.step()
    assert optimizer.state[second]["step"] == 5


def test_a_group_that_is_added_later_is_compared_as_well() -> None:
    optimizer = AdamW([ones()], 2.0**-6, precision="plain", weight_decay=0.0)
    assert run(optimizer, 20) == []
    optimizer.add_param_group({"params": [ones()], "lr": SMALL})
    (message,) = run(optimizer, 60)
    assert "param_groups[1]" in message


# -- no effect -------------------------------------------------------------------------------------


def messages(make: Any, *arguments: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make(*arguments, **options)
    for each in found:
        assert each.category is NoEffectWarning
        # The line that is shown is the user's.
        assert Path(each.filename) == Path(__file__)
    return [str(each.message) for each in found]


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).to(dtype)


# Precisions that store no moment of a float32 parameter in fewer bytes.
NONE = ("kahan", "light", "plus", "split16", "split8", "stochastic", "eco", "eco_stochastic")


@pytest.mark.parametrize("precision", mcf.optim.PRECISIONS)
def test_a_precision_without_effect_warns_once(precision: str) -> None:
    groups = [{"params": [p]} for p in net().parameters()]
    (*found,) = messages(AdamW, groups, precision=precision)
    assert len(found) == (precision in NONE)
    for message in found:
        assert message.startswith(f"precision={precision!r} has no effect: all parameters are ")
        assert "torch.float32" in message
        assert "model.to(torch.bfloat16)" in message
    full = precision in ("plain", "fp32_states", "master")
    assert len(messages(AdamW, net(torch.float64).parameters(), precision=precision)) == (not full)
    assert messages(AdamW, [nn.Parameter(torch.zeros(3).bfloat16())], precision=precision) == []


def test_one_narrow_parameter_is_enough() -> None:
    model = net()
    model[0].to(torch.bfloat16)
    assert messages(AdamW, model.parameters(), precision="plus") == []
    half = nn.Linear(2, 2).half()
    assert messages(AdamW, [*net().parameters(), *half.parameters()], precision="plus") == []


def test_every_constructor_warns_at_the_users_line() -> None:
    for make, options in (
        (CollageAdamW, {"mode": "plus"}), (SGD, {}), (Lion, {"precision": "light"}),
        (mcf.optim.NAdam, {}), (mcf.optim.ScheduleFreeAdamW, {}),
    ):  # fmt: skip
        assert len(messages(make, net().parameters(), **options)) == 1


def test_a_group_of_its_own_precision_counts() -> None:
    first, second = net().parameters(), net().parameters()
    groups = [{"params": first}, {"params": second, "precision": "8bit"}]
    assert messages(AdamW, groups, precision="plus") == []
    assert messages(AdamW, [{"params": net().parameters(), "precision": "master"}]) == []


def test_a_frozen_or_empty_optimizer_does_not_warn() -> None:
    frozen = nn.Parameter(torch.zeros(3, dtype=torch.int32), requires_grad=False)
    assert messages(AdamW, [frozen]) == []


def test_a_group_added_later_warns_where_it_is_the_first_to_ask_for_a_precision() -> None:
    optimizer = AdamW(net().parameters(), precision="master")
    later = {"params": list(net().parameters()), "precision": "plus"}
    (message,) = messages(optimizer.add_param_group, later)
    assert message.startswith("precision='plus' has no effect")
    # Once, and not where another group has 16 bits.
    assert messages(optimizer.add_param_group, {**later, "params": net().parameters()}) == []
    mixed = AdamW(net(torch.bfloat16).parameters())
    assert messages(mixed.add_param_group, {"params": list(net().parameters())}) == []
    told = AdamW(net(torch.bfloat16).parameters(), precision="master")
    assert messages(told.add_param_group, {**later, "params": net().parameters()}) == []


def test_a_wrapped_class_warns_and_names_what_it_takes() -> None:
    (message,) = messages(mcf.optim.collage, torch.optim.AdamW, net().parameters())
    assert "'bf16_sr' to store" in message
    assert "8bit" not in message
    narrow = net(torch.bfloat16).parameters()
    assert messages(mcf.optim.collage, torch.optim.AdamW, narrow) == []
    full = mcf.optim.collage(torch.optim.SGD, net().parameters(), precision="plain", lr=0.125)
    group = {"params": list(net().parameters()), "precision": "light"}
    assert len(messages(full.add_param_group, group)) == 1


def test_the_advice_is_of_precisions_that_the_optimizer_takes() -> None:
    for make, options in ((Lion, {}), (SGD, {}), (CollageAdamW, {}), (AdamW, {})):
        for dtype in (torch.float32, torch.float64):
            (message,) = messages(make, net(dtype).parameters(), **options)
            advised = message.split("; ")[1]
            for name in mcf.optim.PRECISIONS:
                if repr(name) in advised:
                    assert name in make.precisions
                    fresh = net(dtype).parameters()
                    assert messages(make, fresh, precision=name) == []


def test_conversion_of_16_bit_parameters_does_not_warn() -> None:
    source = torch.optim.AdamW(net(torch.bfloat16).parameters())
    assert messages(mcf.optim.convert, source, "plus") == []
