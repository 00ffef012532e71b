"""Entries that others keep in the optimizer's state: left alone by steps, kept by checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.optim import SGD, AdamW, NAdam
from mcf.optim.parameters import entries
from mcf.optim.step import kernel as update
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, assert_same, parameter, parameters, steps, stored
from tests.optim.state_dict_cases import through_file
from tests.optim.variants import RECENT_RULES, VARIANTS, Variant, recent

pytestmark = pytest.mark.usefixtures("on_torch")


def adamw(**options: Any) -> AdamW:
    return AdamW([parameter((3, 2), BF16, 1), parameter(5, FP32, 2)], 1e-2, **options)


def lookahead(optimizer: Any) -> None:
    """What timm's Lookahead does in every k-th step, in the words of its paper."""
    for p in parameters(optimizer):
        state = optimizer.state[p]
        if "slow_buffer" not in state:
            state["slow_buffer"] = p.detach().clone()
        slow = state["slow_buffer"]
        slow += (p.detach() - slow) * 0.5
        p.data.copy_(slow)


# Numba's steps are repeated ones.
@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize("transfer", [lambda state: state, through_file])
def test_lookahead_resumes(transfer: Callable[[Any], Any], executor: str) -> None:
    with mcf.executor(executor):
        assert_lookahead_resumes(transfer)


def assert_lookahead_resumes(transfer: Callable[[Any], Any]) -> None:
    def go(optimizer: Any, first: int, last: int) -> None:
        for t in range(first, last):
            steps(optimizer, 1, seed=10 * t)
            if t % 2:
                lookahead(optimizer)

    optimizer = adamw(precision="plain")
    go(optimizer, 0, 4)
    saved = transfer(copy.deepcopy(optimizer.state_dict()))
    other = adamw(precision="plain")
    for p, q in zip(parameters(other), parameters(optimizer), strict=True):
        p.data.copy_(q)
    other.load_state_dict(saved)
    for each in (optimizer, other):
        go(each, 4, 8)
    assert_same(stored(other), stored(optimizer))
    assert "slow_buffer" in other.state[next(parameters(other))]


EVERYTHING: dict[str, Any] = {
    "cached": torch.arange(3.0, dtype=torch.float64), "count": 3, "name": "head", "none": None,
    "nested": {"a": [torch.ones(2), {"b": 1.5}], 7: (1, 2)}, "ids": torch.tensor([1, 2]),
    # Named like a moment's further words, but of nothing that is ours.
    "slow_lo": torch.zeros(3), "_lo": 1,
}  # fmt: skip


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("variant", [*VARIANTS, *recent(2)], ids=str)
def test_steps_and_checkpoints_leave_them_alone(variant: Variant, when: str) -> None:
    def make() -> Any:
        return variant.make([parameter(4, BF16, 1), parameter(3, FP32, 2)], **variant.options)

    optimizer, reference = make(), make()
    if when == "after":
        steps(optimizer, 1)
        steps(reference, 1)
    for p in parameters(optimizer):
        optimizer.state[p].update(copy.deepcopy(EVERYTHING))
    for each in (optimizer, reference):
        steps(each, 3, seed=5)
    assert_same(own_of(optimizer), own_of(reference))
    other = make()
    for p, q in zip(parameters(other), parameters(optimizer), strict=True):
        p.data.copy_(q)
    other.load_state_dict(through_file(optimizer.state_dict()))
    for each in (optimizer, other):
        for p in parameters(each):
            assert_everything(each.state[p])
        steps(each, 1, seed=7)
    assert_same(own_of(other), own_of(optimizer))


def own_of(optimizer: Any) -> dict[str, Tensor]:
    """Parameters and the states of this package."""
    found = {}
    for k, p in enumerate(parameters(optimizer)):
        state = optimizer.state[p]
        found |= {f"{k}.{name}": state[name].clone() for name in entries.own(state)}
        found[f"{k}.param"] = p.detach().clone()
    return found


def assert_everything(state: dict[str, Any]) -> None:
    for name, value in EVERYTHING.items():
        if isinstance(value, Tensor):
            assert_same_bits(state[name], value, name)
    assert_same_bits(state["nested"]["a"][0], torch.ones(2))
    assert state["nested"]["a"][1] == {"b": 1.5}
    assert state["nested"][7] == (1, 2)
    assert [state[n] for n in ("count", "name", "none", "_lo")] == [3, "head", None, 1]


def test_loaded_entries_are_copies() -> None:
    optimizer = adamw()
    for p in parameters(optimizer):
        optimizer.state[p].update(copy.deepcopy(EVERYTHING))
    other = adamw()
    other.load_state_dict(optimizer.state_dict())
    for p in parameters(other):
        other.state[p]["cached"].zero_()
        other.state[p]["nested"]["a"][0].zero_()
    for p in parameters(optimizer):
        assert_everything(optimizer.state[p])


def test_entries_alone_are_no_state() -> None:
    # A checkpoint of a wrapper whose optimizer has made no step.
    optimizer = adamw()
    for p in parameters(optimizer):
        optimizer.state[p]["slow_buffer"] = torch.ones(2)
    other = adamw()
    other.load_state_dict(optimizer.state_dict())
    steps(other, 1)
    assert other.state[next(parameters(other))]["step"].item() == 1


def test_entries_beside_those_of_parameters() -> None:
    optimizer = adamw()
    steps(optimizer, 1)
    optimizer.state["global_step"] = 7
    # As pytorch_optimizer's TRAC.
    optimizer.state["shared"] = {"norm": torch.ones(2), "step": torch.tensor(3)}
    other = adamw()
    other.load_state_dict(through_file(optimizer.state_dict()))
    assert other.state["global_step"] == 7
    assert_same_bits(other.state["shared"]["norm"], torch.ones(2))
    steps(other, 1)
    # A state of ours for a parameter that is not there is none of these.
    saved = optimizer.state_dict()
    saved["state"]["layer.weight"] = copy.deepcopy(saved["state"][0])
    with pytest.raises(ValueError, match=r"states for parameters \['layer.weight'\], which"):
        other.load_state_dict(saved)


def test_states_of_ours_are_still_checked() -> None:
    optimizer = adamw()
    steps(optimizer, 1)
    p = next(parameters(optimizer))
    optimizer.state[p]["cached"] = 1
    for name in ("exp_avg", "step", "param_lo"):
        removed = optimizer.state[p].pop(name)
        before = stored_plain(optimizer)
        with pytest.raises(ValueError, match=rf"params\[0\] .* need .*'{name}'"):
            steps(optimizer, 1)
        assert_same(stored_plain(optimizer), before)
        optimizer.state[p][name] = removed
    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    with pytest.raises(ValueError, match=r"has .*'momentum_buffer'"):
        steps(optimizer, 1)


def stored_plain(optimizer: Any) -> dict[str, Tensor]:
    return {f"{k}": p.detach().clone() for k, p in enumerate(parameters(optimizer))}


def test_every_state_of_every_rule_is_known() -> None:
    for make in (*{v.make for v in [*VARIANTS, *RECENT_RULES]}, SGD, NAdam, mcf.optim.Muon):
        for precision in make.precisions:
            for case in ({}, {"momentum": 0.9}, {"amsgrad": True}):
                try:
                    optimizer = make([parameter((4, 4), BF16)], precision=precision, **case)
                except (TypeError, ValueError):
                    continue
                group = optimizer.param_groups[0]
                rule = optimizer._rule(group)
                (p,) = group["params"]
                names = {"step", *(n for n, _ in rule.numbers)}
                names |= update.states(rule, optimizer._arithmetic(group, p, "")).keys()
                assert entries.own(names) == names


def test_what_wrappers_add_to_defaults_is_not_asked_for() -> None:
    # As timm's Lookahead does: a checkpoint made without it still loads.
    saved = adamw().state_dict()
    optimizer = adamw(capturable=True)
    optimizer.defaults.update(lookahead_k=6)
    for group in optimizer.param_groups:
        group.setdefault("lookahead_k", 6)
    optimizer.load_state_dict(saved)
    copy.deepcopy(optimizer).load_state_dict(saved)
    steps(optimizer, 1)


def timm_lookahead(optimizer: Any) -> Any:
    module = pytest.importorskip("timm.optim.lookahead", reason="timm is not installed")
    return module.Lookahead(optimizer, k=2)


def pytorch_optimizer_lookahead(optimizer: Any) -> Any:
    module = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
    return module.Lookahead(optimizer, k=2)


@pytest.mark.parametrize("wrap", [timm_lookahead, pytorch_optimizer_lookahead])
def test_their_wrappers(wrap: Callable[[Any], Any]) -> None:
    def go(wrapped: Any, first: int, last: int) -> None:
        for t in range(first, last):
            for p in parameters(wrapped):
                p.grad = torch.full_like(p, 1 + t % 3)
            wrapped.step()

    optimizer = adamw(precision="plain")
    wrapped = wrap(optimizer)
    go(wrapped, 0, 5)
    other = adamw(precision="plain")
    for p, q in zip(parameters(other), parameters(optimizer), strict=True):
        p.data.copy_(q)
    again = wrap(other)
    again.load_state_dict(copy.deepcopy(wrapped.state_dict()))
    for each in (wrapped, again):
        go(each, 5, 9)
    assert [g["lr"] for g in optimizer.param_groups] == [1e-2]
    for p, q in zip(parameters(other), parameters(optimizer), strict=True):
        assert_same_bits(p, q)
