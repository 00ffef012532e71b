"""What checkpoints hold and what loading them keeps: dtypes, counts, groups, names, hooks.

That training goes on with the same bits is in test_round_trips.py.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.optim import SGD, Adam, Adamax, AdamW, CollageAdamW, Lion, Muon, NAdam, RAdam
from tests.helpers import assert_same_bits
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    Case,
    assert_same,
    parameter,
    parameters,
    random,
    steps,
    stored,
)
from tests.optim.state_dict_cases import SHAPES, adamw, through_file, twin

pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_with_decoupled_decay_is_adamw(amsgrad: bool) -> None:
    results = []
    for make, options in ((AdamW, {}), (Adam, {"decoupled_weight_decay": True})):
        params = [parameter(s, BF16, k) for k, s in enumerate(SHAPES)]
        optimizer = make(params, 1e-2, weight_decay=0.1, amsgrad=amsgrad, **options)
        steps(optimizer, 3)
        results.append(stored(optimizer))
    assert_same(results[1], results[0])


def test_numbers_are_float64_on_the_cpu() -> None:
    # torch saves NAdam's product in float32; it is read as it is, and goes on in float64.
    optimizer = NAdam([parameter(3, BF16)])
    steps(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    exact = saved["state"][0]["mu_product"]
    assert exact.dtype == FP64
    saved["state"][0]["mu_product"] = exact.float()
    optimizer.load_state_dict(saved)
    loaded = optimizer.state[next(parameters(optimizer))]["mu_product"]
    assert loaded.dtype == FP64
    assert loaded.shape == ()
    assert loaded.item() == exact.float().item() != exact.item()


def test_amsgrad_may_be_turned_off() -> None:
    # torch keeps the maximum, and so do checkpoints; turned on again it is there.
    optimizer = Adam([parameter(3, BF16)], amsgrad=True)
    steps(optimizer, 2)
    p = next(parameters(optimizer))
    before = optimizer.state[p]["max_exp_avg_sq"].clone()
    optimizer.param_groups[0]["amsgrad"] = False
    steps(optimizer, 1, scale=10.0)
    assert_same_bits(optimizer.state[p]["max_exp_avg_sq"], before)
    optimizer.load_state_dict(through_file(optimizer.state_dict()))
    optimizer.param_groups[0]["amsgrad"] = True
    steps(optimizer, 1)
    assert (optimizer.state[p]["max_exp_avg_sq"] > before).all()


def test_dtypes_are_kept() -> None:
    # torch's own loader casts every state but `step` to the parameter's dtype.
    for precision, wide in (("fp32_states", {"exp_avg"}), ("master", {"exp_avg", "master_param"})):
        case = Case(precision, BF16, FP32)
        optimizer = adamw(case)
        steps(optimizer, 2)
        other = twin(optimizer, lambda case=case: adamw(case))
        other.load_state_dict(through_file(optimizer.state_dict()))
        state = other.state[next(parameters(other))]
        for name in wide:
            assert state[name].dtype == FP32
            assert (state[name] != state[name].to(BF16)).any(), "the low bits are there"
        assert state["step"].dtype == torch.int64
        assert state["step"].item() == 2


def test_step_of_a_float_counter() -> None:
    # torch's own counters are float32; an integer is what is kept.
    optimizer = adamw(Case("plus", BF16, FP32))
    steps(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for entry in saved["state"].values():
        entry["step"] = entry["step"].float()
    optimizer.load_state_dict(saved)
    assert optimizer.state[next(parameters(optimizer))]["step"].dtype == torch.int64


@pytest.mark.parametrize("case", [Case("plus", BF16, BF16), Case("master", FP16, FP32)], ids=str)
def test_loaded_tensors_are_copies(case: Case) -> None:
    optimizer = adamw(case)
    steps(optimizer, 2)
    state = optimizer.state_dict()
    other = twin(optimizer, lambda: adamw(case))
    other.load_state_dict(state)
    before = copy.deepcopy(state)
    steps(other, 2)
    for key, entry in before["state"].items():
        for name, tensor in entry.items():
            assert_same_bits(state["state"][key][name], tensor, f"{key} {name}")
    assert [g["lr"] for g in state["param_groups"]] == [1e-2]


def test_metrics_are_still_tracked_after_loading() -> None:
    optimizer = adamw(Case("plus", BF16, FP32), track_metrics=True)
    steps(optimizer, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    steps(optimizer, 1)
    assert optimizer.metrics()["update_norm"] > 0


def test_parameters_without_a_state_stay_without() -> None:
    used, unused = parameter(3, BF16), parameter(4, BF16)
    optimizer = AdamW([used, unused])
    used.grad = torch.ones_like(used)
    optimizer.step()
    other = AdamW([parameter(3, BF16), parameter(4, BF16)])
    other.load_state_dict(through_file(optimizer.state_dict()))
    assert [bool(other.state.get(p)) for p in parameters(other)] == [True, False]
    steps(other, 1)


def test_a_smaller_state_replaces_a_larger() -> None:
    # As in torch: what the state dict does not have is gone, moments start anew.
    empty = adamw(Case("plus", BF16, FP32)).state_dict()
    optimizer = adamw(Case("plus", BF16, FP32))
    steps(optimizer, 2)
    optimizer.load_state_dict(empty)
    assert not any(optimizer.state.get(p) for p in parameters(optimizer))


def test_groups_and_names_are_kept() -> None:
    def make(lr: float) -> AdamW:
        named = [("weight", parameter(3, BF16)), ("bias", parameter(2, FP32))]
        groups = [{"params": named[:1], "lr": lr}, {"params": named[1:], "betas": (0.8, 0.9)}]
        return AdamW(groups)  # type: ignore[arg-type]

    optimizer = make(0.5)
    steps(optimizer, 1)
    other = make(0.1)
    other.load_state_dict(through_file(optimizer.state_dict()))
    assert [g["lr"] for g in other.param_groups] == [0.5, 1e-3]
    assert other.param_groups[1]["betas"] == (0.8, 0.9)
    assert [g["param_names"] for g in other.param_groups] == [["weight"], ["bias"]]


def test_tensor_learning_rate() -> None:
    optimizer = AdamW([parameter(3, BF16)], torch.tensor(0.25))
    steps(optimizer, 1)
    state = optimizer.state_dict()
    other = AdamW([parameter(3, BF16)])
    other.load_state_dict(through_file(state))
    assert other.param_groups[0]["lr"] == 0.25
    other.load_state_dict(state)
    other.param_groups[0]["lr"].fill_(1)
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_hooks() -> None:
    optimizer = adamw(Case("plus", BF16, FP32))
    steps(optimizer, 1)
    seen: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("save"))
    optimizer.register_state_dict_post_hook(lambda o, s: {**s, "note": "hello"})

    def rename(o: Any, state: dict[str, Any]) -> dict[str, Any]:
        seen.append("load")
        # A hook sees tensors, and may repair what would not fit.
        assert all(isinstance(t, Tensor) for e in state["state"].values() for t in e.values())
        entries = {
            k: {n.removeprefix("old_"): t for n, t in e.items()} for k, e in state["state"].items()
        }
        return {**state, "state": entries}

    def loaded(o: Any) -> None:
        assert all(isinstance(t, Tensor) for e in o.state.values() for t in e.values())
        seen.append("loaded")

    state = optimizer.state_dict()
    assert state["note"] == "hello"
    old = {**state, "state": {
        k: {f"old_{n}": t for n, t in e.items()} for k, e in state["state"].items()
    }}  # fmt: skip
    optimizer.register_load_state_dict_pre_hook(rename)
    optimizer.register_load_state_dict_post_hook(loaded)
    before = stored(optimizer)
    optimizer.load_state_dict(old)
    assert seen == ["save", "load", "loaded"]
    assert_same(stored(optimizer), before)


def test_layout_of_the_parameter_is_not_required() -> None:
    # Saved from a contiguous parameter, loaded for a transposed one: same values, other strides.
    first = Parameter(random((4, 6), BF16, 1))
    optimizer = AdamW([first])
    g = random((4, 6), BF16, 2)
    first.grad = g
    optimizer.step()
    second = Parameter(first.detach().t().contiguous().t())
    other = AdamW([second])
    other.load_state_dict(optimizer.state_dict())
    for p, each in ((first, optimizer), (second, other)):
        p.grad = g
        each.step()
    assert_same(stored(other), stored(optimizer))


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("dtype", [FP32, FP64])
def test_full_precision_state_of_torch_adamw(dtype: torch.dtype) -> None:
    # The states have torch's names, so only the groups' own options are missing.
    p = parameter(5, dtype)
    theirs = torch.optim.AdamW([p], foreach=False)
    steps(theirs, 2)
    ours = AdamW([parameter(5, dtype)])
    ours.load_state_dict({"state": theirs.state_dict()["state"], "param_groups": [
        {**ours.state_dict()["param_groups"][0]}
    ]})  # fmt: skip
    q = next(parameters(ours))
    assert_same_bits(ours.state[q]["exp_avg_sq"], theirs.state[p]["exp_avg_sq"])
    assert ours.state[q]["step"].item() == 2


@pytest.mark.parametrize(
    "kind",
    [SGD, Adam, AdamW, NAdam, CollageAdamW, Adamax, RAdam, Lion, Muon],
    ids=lambda k: k.__name__,
)
def test_pickles_of_whole_optimizers_from_earlier_versions(kind: Any) -> None:
    # Every rule had a module of its own there; CollageAdamW was in that of AdamW.
    former = {"CollageAdamW": "adamw"}.get(kind.__name__, kind.__name__.lower())
    optimizer = kind([Parameter(torch.ones(3, 5, dtype=BF16))], lr=0.25)
    # Protocol 0 names classes in lines of text.
    now = f"c{kind.__module__}\n{kind.__name__}\n".encode()
    data = pickle.dumps(optimizer, protocol=0)
    assert data.count(now) == 1
    data = data.replace(now, f"cmcf.optim.{former}\n{kind.__name__}\n".encode())

    other = pickle.loads(data)

    assert type(other) is kind
    assert_same_bits(other.param_groups[0]["params"][0], optimizer.param_groups[0]["params"][0])
