"""The warning that a precision does nothing for any of an optimizer's parameters.

Mutants that fail: a warning where one 16-bit parameter is there, none for float64 parameters, one
for precisions that ask for full precision, one for each group.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mcf.optim
from mcf.optim import SGD, AdamW, CollageAdamW, Lion, NoEffectWarning

pytestmark = pytest.mark.usefixtures("on_torch")


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
