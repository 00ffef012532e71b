"""Checkpoints: what they hold and keep, how training goes on from them, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, Adam, Adamax, AdamW, CollageAdamW, Lion, Muon, NAdam, RAdam
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, FULL, Case, cases
from tests.optim.helpers import (
    assert_same,
    copy_weights,
    parameter,
    parameters,
    random,
    steps,
    stored,
    through_file,
    without_gradients,
)
from tests.optim.variants import NEW, Variant, named, pairs, recent, recent_pairs

pytestmark = pytest.mark.usefixtures("on_torch")


SHAPES = [(5, 7), (), (0,), (3,)]


PLUS = Case("plus", BF16, FP32)


def adamw(case: Case = PLUS, **options: Any) -> AdamW:
    params = [parameter(s, case.dtype, k) for k, s in enumerate(SHAPES)]
    return AdamW(params, 1e-2, eps=1e-4, **case.options(), **options)


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


def test_step_of_a_float_counter() -> None:
    # torch's own counters are float32; an integer is what is kept.
    optimizer = adamw()
    steps(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for entry in saved["state"].values():
        entry["step"] = entry["step"].float()
    optimizer.load_state_dict(saved)
    assert optimizer.state[next(parameters(optimizer))]["step"].dtype == torch.int64


@pytest.mark.parametrize("case", [Case("plus", BF16, BF16), Case("master", FP16, FP32)], ids=str)
def test_loaded_tensors_are_copies(case: Case) -> None:
    optimizer, other = adamw(case), adamw(case)
    steps(optimizer, 2)
    before = stored(optimizer)
    copy_weights(other, optimizer)
    other.load_state_dict(optimizer.state_dict())
    steps(other, 2)
    assert_same(stored(optimizer), before)
    assert optimizer.param_groups[0]["lr"] == 1e-2


def test_metrics_are_still_tracked_after_loading() -> None:
    optimizer = adamw(track_metrics=True)
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
    empty = adamw().state_dict()
    optimizer = adamw()
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
    optimizer = adamw()
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
    entries = {k: {f"old_{n}": t for n, t in e.items()} for k, e in state["state"].items()}
    optimizer.register_load_state_dict_pre_hook(rename)
    optimizer.register_load_state_dict_post_hook(loaded)
    before = stored(optimizer)
    optimizer.load_state_dict({**state, "state": entries})
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


@pytest.mark.parametrize("dtype", [FP32, FP64])
def test_full_precision_state_of_torch_adamw(dtype: torch.dtype) -> None:
    # The states have torch's names, so only the groups' own options are missing.
    p = parameter(5, dtype)
    theirs = torch.optim.AdamW([p], foreach=False)
    steps(theirs, 2)
    ours = AdamW([parameter(5, dtype)])
    ours.load_state_dict({**ours.state_dict(), "state": theirs.state_dict()["state"]})
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


# -- round trips -----------------------------------------------------------------------------------


def assert_round_trip(make: Callable[[], Any], transfer: Callable[[Any], Any]) -> None:
    """N + M steps without a break have the bits of N steps, a checkpoint and M steps."""
    optimizer, other = make(), make()
    steps(optimizer, 3)
    copy_weights(other, optimizer)
    other.load_state_dict(transfer(optimizer.state_dict()))
    assert_same(without_gradients(stored(other)), without_gradients(stored(optimizer)))
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    for each in (optimizer, other):
        steps(each, 5, seed=7)
    assert_same(stored(other), stored(optimizer), "after 5 more steps")


# Moments of float32 parameters in fewer bytes.
NARROW = [Case(precision, FP32, FP32) for precision in ("bf16_sr", "8bit", "4bit")]


transfers = pytest.mark.parametrize("transfer", [lambda state: state, through_file])


@pytest.mark.sampled(every=15)
@transfers
@pytest.mark.parametrize("case", cases() + FULL + NARROW, ids=str)
def test_adamw_goes_on_with_the_same_bits(case: Case, transfer: Callable[[Any], Any]) -> None:
    assert_round_trip(lambda: adamw(case), transfer)


def test_adamw_goes_on_from_a_mapped_file(tmp_path: Any) -> None:
    def transfer(state: Any) -> Any:
        torch.save(state, tmp_path / "state.pt")
        return torch.load(tmp_path / "state.pt", weights_only=True, mmap=True)

    assert_round_trip(lambda: adamw(PLUS), transfer)


SGDS = pairs([named("sgd"), named("sgd-momentum")], "cases")
OTHERS = pairs(NEW, "few") + [pair for pair in SGDS if pair[1].dtype == BF16] + recent_pairs(1)


@pytest.mark.sampled(every=45)
@transfers
@pytest.mark.parametrize(("variant", "case"), OTHERS, ids=str)
def test_other_rules_go_on_with_the_same_bits(
    variant: Variant, case: Case, transfer: Callable[[Any], Any]
) -> None:
    def make() -> Any:
        params = [parameter(s, case.dtype, k) for k, s in enumerate(SHAPES)]
        return variant.make(params, **variant.options, **case.options())

    assert_round_trip(make, transfer)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_on_with_the_same_bits(how: str) -> None:
    optimizer = adamw(track_metrics=True)
    steps(optimizer, 3)
    # Neither way of copying takes gradients along.
    optimizer.zero_grad()
    other = copy.deepcopy(optimizer) if how == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
    assert_same(stored(other), stored(optimizer))
    assert not any(p is q for p in parameters(optimizer) for q in parameters(other))
    for each in (optimizer, other):
        steps(each, 3, seed=7)
    assert_same(stored(other), stored(optimizer))
    assert other.metrics() == optimizer.metrics()


# -- refusals --------------------------------------------------------------------------------------


def target(**options: Any) -> AdamW:
    """Return an optimizer of two groups in bf16 and float32, with states."""
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
    "sparse": (lambda: with_entry(0, "exp_avg", torch.zeros(2, 3, dtype=BF16).to_sparse()),
               TypeError, "layout"),
    "an expansion": (lambda: with_entry(0, "exp_avg", mcf.zeros(2, 3, dtype=BF16)), TypeError,
                     "expansion"),
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


def test_parameters_of_another_dtype_are_refused() -> None:
    # The same precision, but its states depend on the parameter's dtype.
    with pytest.raises(ValueError, match=r"needs torch\.float16"):
        AdamW([parameter(3, FP16)]).load_state_dict(of(AdamW, 3))
    with pytest.raises(ValueError, match="its rule, precision"):
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
