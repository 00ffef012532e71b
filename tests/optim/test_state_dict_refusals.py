"""A state dict that does not fit is refused by name, and nothing of the optimizer changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mcf.optim import SGD, AdamW, NAdam
from tests.optim.helpers import BF16, FP16, FP32, assert_same, parameter, steps, stored
from tests.optim.variants import NEW, Variant, recent

pytestmark = pytest.mark.usefixtures("on_torch")


def target(**options: Any) -> AdamW:
    """Two groups in bf16 and float32, with states."""
    groups = [
        {"params": [parameter((2, 3), BF16, 1), parameter(4, FP32, 2)]},
        {"params": [parameter(5, BF16, 3)], "lr": 0.5},
    ]
    optimizer = AdamW(groups, 1e-2, **options)
    steps(optimizer, 2)
    return optimizer


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The target's own state dict with one change."""
    state = copy.deepcopy(target().state_dict())
    change(state)
    return state


def with_entry(key: int, name: str, value: Any) -> dict[str, Any]:
    return changed(lambda s: s["state"][key].update({name: value}))


def with_group(index: int, name: str, value: Any) -> dict[str, Any]:
    return changed(lambda s: s["param_groups"][index].update({name: value}))


def of(make: Any, *shapes: Any, dtype: torch.dtype = BF16, **options: Any) -> dict[str, Any]:
    """The state dict of another optimizer after a step."""
    optimizer = make([parameter(s, dtype) for s in shapes], **options)
    steps(optimizer, 1)
    state: dict[str, Any] = optimizer.state_dict()
    return state


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "not a dict": (lambda: [1], TypeError, "state_dict must be a dict, got list"),
    "no state": (lambda: {"param_groups": []}, ValueError, "has no 'state'"),
    "no groups": (lambda: {"state": {}}, ValueError, "has no 'param_groups'"),
    "fewer groups": (lambda: of(AdamW, (2, 3)), ValueError,
                     "has 1 parameter groups; the optimizer has 2"),
    "more groups": (lambda: changed(lambda s: s["param_groups"].append(s["param_groups"][0])),
                    ValueError, "has 3 parameter groups"),
    "fewer parameters": (lambda: with_group(0, "params", [0]), ValueError,
                         r"has 1 parameters in param_groups\[0\]; the optimizer has 2"),
    "no parameters": (lambda: changed(lambda s: s["param_groups"][1].pop("params")), ValueError,
                      r"param_groups\[1\] lacks \['params'\]"),
    "another precision": (lambda: target(precision="light").state_dict(), ValueError,
                          r"param_groups\[0\] has precision='light'; the optimizer has .*'plus'"),
    "another arithmetic": (lambda: with_group(1, "compute_dtype", BF16), ValueError,
                           r"param_groups\[1\] has compute_dtype=torch.bfloat16; the optimizer"),
    "another shape": (lambda: with_entry(2, "exp_avg", torch.zeros(6, dtype=BF16)), ValueError,
                      r"'exp_avg' of params\[0\] of param_groups\[1\] .* shape \[6\].*\[5\]"),
    "another dtype": (lambda: with_entry(1, "exp_avg_sq", torch.zeros(4, dtype=BF16)), ValueError,
                      r"'exp_avg_sq' of params\[1\] of param_groups\[0\] has dtype torch.bfloat16"),
    "not a tensor": (lambda: with_entry(0, "param_lo", [0.0]), TypeError,
                     r"'param_lo' of params\[0\] of param_groups\[0\] is a list, not a tensor"),
    "a state too few": (lambda: changed(lambda s: s["state"][0].pop("exp_avg_sq_lo")), ValueError,
                        r"params\[0\] of param_groups\[0\] has .* need .*'exp_avg_sq_lo'"),
    "a state too many": (lambda: with_entry(1, "param_lo", torch.zeros(4)), ValueError,
                         "has .*'param_lo'"),
    "no step": (lambda: changed(lambda s: s["state"][2].pop("step")), ValueError, "need .*'step'"),
    "several steps": (lambda: with_entry(0, "step", torch.ones(2)), ValueError,
                      r"'step' of params\[0\] of param_groups\[0\] has shape \[2\]"),
    "half a step": (lambda: with_entry(0, "step", torch.tensor(1.5)), ValueError, "is 1.5"),
    "no number of steps": (lambda: with_entry(0, "step", torch.tensor(torch.nan)), ValueError,
                           "is nan; allowed are whole numbers"),
    "negative step": (lambda: with_entry(0, "step", -1), ValueError, "is -1; allowed"),
    "step of another type": (lambda: with_entry(0, "step", "one"), TypeError, "is a str"),
    "unknown parameter": (lambda: changed(lambda s: s["state"].update({7: s["state"][0]})),
                          ValueError, r"states for parameters \[7\], which are in none"),
    "hyperparameter": (lambda: with_group(1, "betas", (0.9, 1.5)), ValueError, "index 1: 1.5"),
    "rate": (lambda: with_group(1, "lr", "fast"), TypeError, "learning rate must be a number"),
    "torch's AdamW": (
        lambda: {**target().state_dict(), "param_groups": of(torch.optim.AdamW, (2, 3), 4)[
            "param_groups"] * 2},
        ValueError, r"param_groups\[0\] lacks \['compute_dtype', 'precision'\].*another optimizer"),
    "SGD": (
        lambda: {**target().state_dict(), "param_groups": of(SGD, (2, 3), 4)["param_groups"] * 2},
        ValueError, r"lacks \['betas', 'eps'\]: it was made by another optimizer"),
}  # fmt: skip


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    make, error, words = REFUSED[what]
    optimizer = target()
    before, groups = stored(optimizer), copy.deepcopy(optimizer.state_dict()["param_groups"])
    with pytest.raises(error, match=words):
        optimizer.load_state_dict(make())
    assert_same(stored(optimizer), before)
    assert optimizer.state_dict()["param_groups"] == groups
    # It still goes on as one that was never asked.
    other = target()
    for each in (optimizer, other):
        steps(each, 1, seed=5)
    assert_same(stored(optimizer), stored(other))


def test_the_unchanged_state_is_accepted() -> None:
    # Else every row above would pass for a loader that refuses all.
    optimizer = target()
    optimizer.load_state_dict(changed(lambda s: None))
    optimizer.load_state_dict(changed(lambda s: None))
    steps(optimizer, 1)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_parameters_of_another_dtype_are_refused() -> None:
    # The same precision, but its states depend on the parameter's dtype.
    with pytest.raises(ValueError, match=r"needs torch\.float16"):
        AdamW([parameter(3, FP16)]).load_state_dict(of(AdamW, 3))
    with pytest.raises(ValueError, match="its rule, precision and dtype need"):
        AdamW([parameter(3, FP32)]).load_state_dict(of(AdamW, 3))


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (None, ValueError, r"has .*; its rule, precision and dtype need .*'mu_product'"),
        ("one", TypeError, r"'mu_product' of params\[0\] of param_groups\[0\] must be a number"),
        (torch.ones(2), ValueError, "'mu_product' .* must be 1-element"),
        (torch.tensor(torch.nan), ValueError, "'mu_product' .*nan; allowed is"),
        (torch.tensor(-0.5), ValueError, "'mu_product' .*-0.5; allowed is"),
    ],
)
def test_numbers_are_checked(value: Any, error: type[Exception], words: str) -> None:
    saved = of(NAdam, 3)
    if value is None:
        del saved["state"][0]["mu_product"]
    else:
        saved["state"][0]["mu_product"] = value
    optimizer = NAdam([parameter(3, BF16)])
    steps(optimizer, 1)
    before = stored(optimizer)
    with pytest.raises(error, match=words):
        optimizer.load_state_dict(saved)
    assert_same(stored(optimizer), before)


@pytest.mark.parametrize("variant", [*NEW, *recent(2)], ids=str)
def test_rules_refuse_the_state_of_another(variant: Variant) -> None:
    optimizer = variant.make([parameter(3, BF16)], **variant.options)
    optimizer.load_state_dict(of(variant.make, 3, **variant.options))
    entry = of(SGD, 3, momentum=0.9)["state"]
    with pytest.raises(ValueError, match=r"has .*'momentum_buffer'.* its rule, precision"):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": entry})


def test_sgd_refuses_the_state_of_another_variant() -> None:
    for mine, theirs in (({"momentum": 0.9}, {}), ({}, {"momentum": 0.9})):
        state = of(SGD, 3, **theirs)
        optimizer = SGD([parameter(3, BF16)], **mine)
        # The saved momentum comes with the saved groups, so either state fits itself.
        optimizer.load_state_dict(state)
        steps(optimizer, 1)
    broken = of(SGD, 3)
    broken["param_groups"][0]["momentum"] = 0.9
    with pytest.raises(ValueError, match=r"need .*'momentum_buffer'"):
        SGD([parameter(3, BF16)]).load_state_dict(broken)
