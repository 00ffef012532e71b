"""Clients of an optimizer: they replace its step, rebuild its state, wrap it.

Each test is one client's pattern, named after it, without the client; `tests/integrations` runs the
clients themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mcf
from mcf.optim import AdamW, GradientAccumulator
from mcf.optim.parameters import entries
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP32
from tests.optim.helpers import (
    assert_same,
    copy_weights,
    parameter,
    parameters,
    random,
    steps,
    stored,
    through_file,
)
from tests.optim.variants import VARIANTS, Variant, recent

pytestmark = pytest.mark.usefixtures("on_torch")


def made(**options: Any) -> AdamW:
    groups = [
        {"params": [parameter((3, 4), BF16, 1)]},
        {"params": [parameter(5, BF16, 2)], "weight_decay": 0.0},
    ]
    return AdamW(groups, 1e-2, **{"precision": "plus", "max_grad_norm": 1.0, **options})


def expected(count: int) -> dict[str, Tensor]:
    optimizer = made()
    steps(optimizer, count)
    return stored(optimizer)


def moved(state: Any) -> Any:
    """accelerate's `move_to_device`: containers rebuilt by their types, tensors by `to`."""
    if isinstance(state, (list, tuple)):
        return type(state)(moved(value) for value in state)
    if isinstance(state, dict):
        return type(state)({key: moved(value) for key, value in state.items()})
    return state.to("cpu") if isinstance(state, Tensor) else state


@pytest.mark.parametrize("before", [0, 2])
def test_accelerate_rebuilds_the_state(before: int) -> None:
    """`AcceleratedOptimizer` loads an optimizer's own moved state when it is made."""
    optimizer = made()
    steps(optimizer, before)
    optimizer.load_state_dict(moved(optimizer.state_dict()))
    steps(optimizer, 3 - before, seed=1 + 1000 * before)
    assert_same(stored(optimizer), expected(3))


def test_accelerate_replaces_the_step() -> None:
    """`scaler.step` sets an instance attribute that calls the original."""
    optimizer = made()
    original, calls = optimizer.step, []

    def patched(*args: Any, **kwargs: Any) -> Any:
        calls.append(optimizer.__class__.__name__)
        return original(*args, **kwargs)

    optimizer.step = patched  # type: ignore[method-assign]
    steps(optimizer, 2)
    optimizer.step = original  # type: ignore[method-assign]
    steps(optimizer, 1, seed=2001)
    assert calls == ["AdamW", "AdamW"]
    assert_same(stored(optimizer), expected(3))
    # The instance attribute is no part of a copy's state.
    assert (
        copy.deepcopy(optimizer).state_dict()["param_groups"]
        == (optimizer.state_dict()["param_groups"])
    )


def test_clients_that_clip_to_infinity_to_read_a_norm() -> None:
    """They write the gradients, times 1; an accumulator cannot tell that from another factor."""
    model = nn.Linear(4, 3).to(BF16)
    optimizer = AdamW(model.parameters(), 1e-2, precision="plus")
    accumulator = GradientAccumulator(optimizer)
    for _ in range(2):
        model(random((2, 4), BF16, 3)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    with pytest.raises(RuntimeError, match=r"p\.grad_dtype = torch\.float32"):
        optimizer.step()
    assert not optimizer.state
    accumulator.close()
    optimizer.step()


# -- state of others -------------------------------------------------------------------------------


def adamw(**options: Any) -> AdamW:
    return AdamW([parameter((3, 2), BF16, 1), parameter(5, FP32, 2)], 1e-2, **options)


def lookahead(optimizer: Any) -> None:
    """Make the k-th step of timm's Lookahead, as its paper describes it."""
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
        optimizer, other = adamw(precision="plain"), adamw(precision="plain")
        lookahead_steps(optimizer, 0, 4)
        copy_weights(other, optimizer)
        other.load_state_dict(transfer(copy.deepcopy(optimizer.state_dict())))
        for each in (optimizer, other):
            lookahead_steps(each, 4, 8)
    assert_same(stored(other), stored(optimizer))
    assert "slow_buffer" in other.state[next(parameters(other))]


def lookahead_steps(optimizer: Any, first: int, last: int) -> None:
    for t in range(first, last):
        steps(optimizer, 1, seed=10 * t)
        if t % 2:
            lookahead(optimizer)


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
    copy_weights(other, optimizer)
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
    copy_weights(other, optimizer)
    again = wrap(other)
    again.load_state_dict(copy.deepcopy(wrapped.state_dict()))
    for each in (wrapped, again):
        go(each, 5, 9)
    assert [g["lr"] for g in optimizer.param_groups] == [1e-2]
    for p, q in zip(parameters(other), parameters(optimizer), strict=True):
        assert_same_bits(p, q)
