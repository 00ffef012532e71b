"""State dicts of another precision, what comes along with a conversion, and what is refused.

A mutant these tests catch: a half-done conversion (`test_nothing_changes`).
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from mcf.optim import AdamW, Lion, convert, float32_checkpoint, load_converted
from tests.helpers import assert_same_bits
from tests.optim.conversion_cases import trained
from tests.optim.helpers import BF16, FP32, assert_same, parameter, parameters, steps, stored
from tests.optim.test_amp import without_gradients

pytestmark = pytest.mark.usefixtures("on_torch")


def test_float32_checkpoint_and_back() -> None:
    first = trained("split16")
    weights, state = float32_checkpoint(first)
    # It is torch's: a torch optimizer takes it and goes on.
    params = [Parameter(w.clone()) for w in weights]
    theirs = torch.optim.AdamW(params, 1.0)
    theirs.load_state_dict(copy.deepcopy(state))
    assert theirs.param_groups[0]["lr"] == 1e-2
    steps(theirs, 1)
    # And back into ours, bit for bit.
    other = AdamW([Parameter(torch.zeros_like(p)) for p in parameters(first)], precision="split16")
    report = load_converted(other, state, weights)
    assert report.exact
    assert_same(without_gradients(stored(other)), without_gradients(stored(first)))
    assert other.param_groups[0]["lr"] == 1e-3, "its own"


def test_load_a_state_dict_of_another_precision(tmp_path: Any) -> None:
    first = trained("master")
    torch.save(first.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    second = AdamW([Parameter(p.detach().clone()) for p in parameters(first)], precision="split16")
    report = load_converted(second, state)
    assert {r.what for r in report.rounded} == {"exp_avg", "exp_avg_sq"}
    for p, q in zip(parameters(first), parameters(second), strict=True):
        assert_same_bits(second.master_weight(q), first.state[p]["master_param"])


def test_nothing_changes() -> None:
    first = trained("master")
    kept = without_gradients(stored(first))
    target = trained("plus")
    before = without_gradients(stored(target))
    broken = copy.deepcopy(first.state_dict())
    broken["state"][3]["exp_avg"] = torch.zeros(5)
    moment = copy.deepcopy(first.state_dict())
    del moment["state"][3]["exp_avg_sq"]
    for state, params, words in (
        (broken, None, r"'exp_avg' of params\[3\] of param_groups\[0\] has shape \[5\]; known"),
        (moment, None, r"params\[3\].*needs \['exp_avg_sq'\]; the source has \['exp_avg'\]"),
        (first.state_dict(), [torch.zeros(3)], "is of 4 parameters; params has 1"),
        (first.state_dict(), [torch.zeros(3)] * 4, r"params\[0\].*has shape \[7, 5\]"),
    ):
        with pytest.raises(ValueError, match=words):
            load_converted(target, state, params)
        assert_same(without_gradients(stored(target)), before)
    with pytest.raises(ValueError, match="params has 1 tensors; the optimizer has 4"):
        convert(first, "plus", params=[torch.zeros(3)])
    with pytest.raises(ValueError, match="precision: 'double'"):
        convert(first, "double")
    with pytest.raises(ValueError, match=r"needs .*exp_avg_sq"):
        convert(trained_lion(), to=AdamW)
    with pytest.raises(ValueError, match="named like Rprop; pass its class as to="):
        convert(torch.optim.Rprop([parameter(3, FP32)]))
    assert_same(without_gradients(stored(first)), kept)


def trained_lion() -> Lion:
    optimizer = Lion([parameter(3, BF16)])
    steps(optimizer, 1)
    return optimizer


def test_groups_names_and_parameters_without_states() -> None:
    model = nn.Linear(3, 2).to(BF16)
    groups = [
        {"params": [("w", model.weight)], "lr": 0.5},
        {"params": [("b", model.bias)], "eps": 1e-3},
    ]
    first = AdamW(groups, nonfinite="skip", max_grad_norm=2.0)  # type: ignore[arg-type]
    model.weight.grad = torch.ones_like(model.weight)
    first.step()
    second, _ = convert(first, "light", weight_decay=0.25)
    assert [g["param_names"] for g in second.param_groups] == [["w"], ["b"]]
    assert [g["lr"] for g in second.param_groups] == [0.5, 1e-3]
    assert [g["eps"] for g in second.param_groups] == [1e-8, 1e-3]
    assert [g["weight_decay"] for g in second.param_groups] == [0.25, 0.25]
    assert (second.nonfinite, second.max_grad_norm) == ("skip", 2.0)
    assert not second.state.get(model.bias)


def test_metrics_go_on() -> None:
    p = Parameter(torch.ones(4, dtype=torch.bfloat16))
    made, _ = convert(AdamW([p], track_metrics=True), "light")
    p.grad = torch.ones_like(p)
    made.step()
    assert made.metrics()["update_norm"] > 0


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("name", ["max_grad_norm", "lrr"])
@pytest.mark.parametrize("target", [AdamW, torch.optim.AdamW])
def test_options_that_no_group_has_are_refused(name: str, target: Any) -> None:
    # Else they would lie in the group without effect.
    optimizer = AdamW([Parameter(torch.ones(4))])
    with pytest.raises(TypeError, match=rf"options \['{name}'\] are none of AdamW's groups"):
        convert(optimizer, to=target, **{name: 1.0})
