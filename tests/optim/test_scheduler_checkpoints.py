"""Checkpoints under torch's schedules, and what others write to groups."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.optim import SGD, AdamW
from mcf.optim.conversion import libraries
from tests.helpers.everyday import everyday
from tests.optim.helpers import BF16, assert_same, parameter, parameters, random, steps, stored
from tests.optim.state_dict_cases import through_file
from tests.optim.test_schedulers import SCHEDULES

pytestmark = pytest.mark.usefixtures("on_torch")

Make = Callable[[], Any]


def plain(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups without parameters, with tensors as numbers."""
    return [
        {k: v.item() if isinstance(v, Tensor) else v for k, v in g.items() if k != "params"}
        for g in groups
    ]


def run(optimizer: Any, schedule: Any, first: int, last: int) -> None:
    for t in range(first, last):
        for k, p in enumerate(parameters(optimizer)):
            p.grad = random(p.shape, p.dtype, 100 * t + k)
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            named = "metrics" in inspect.signature(schedule.step).parameters
            schedule.step(1.0) if named else schedule.step()


def assert_resumes(make: Make, schedule: Callable[[Any], Any]) -> None:
    """4 steps, a checkpoint and 4 more have the bits, rates and groups of 8 steps."""

    def made() -> tuple[Any, Any]:
        optimizer = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optimizer, schedule(optimizer)

    optimizer, scheduler = made()
    run(optimizer, scheduler, 0, 4)
    saved = through_file(optimizer.state_dict())
    place = copy.deepcopy(scheduler.state_dict())
    values = [p.detach().clone() for p in parameters(optimizer)]
    run(optimizer, scheduler, 4, 8)
    again, other = made()
    for p, value in zip(parameters(again), values, strict=True):
        p.data.copy_(value)
    again.load_state_dict(saved)
    other.load_state_dict(place)
    run(again, other, 4, 8)
    assert_same(stored(again), stored(optimizer))
    assert plain(again.param_groups) == plain(optimizer.param_groups)


def adamw(**options: Any) -> Any:
    groups = [
        {"params": [parameter((3, 2), BF16, 1)]},
        {"params": [parameter(5, torch.float32, 2)], "weight_decay": 0.5},
    ]
    return AdamW(groups, **{"lr": 1e-2, **options})


def optimizers() -> dict[str, Make]:
    return {
        "AdamW": adamw,
        "decoupled": lambda: adamw(decouple_lr=True),
        "tensor": lambda: adamw(lr=torch.tensor(1e-2)),
        "capturable": lambda: adamw(lr=torch.tensor(1e-2), capturable=True),
        "SGD": lambda: SGD([parameter(4, BF16)], 1e-2, 0.9),
    }


def _crossed() -> list[Any]:
    """Every schedule of AdamW, and every kind of optimizer with the first and the last of them."""
    ends = (next(iter(SCHEDULES)), list(SCHEDULES)[-1])
    return everyday(
        [(name, kind) for kind in optimizers() for name in SCHEDULES],
        lambda name, kind: kind == "AdamW" or name in ends,
    )


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("name", "kind"), _crossed())
def test_schedulers_of_torch(name: str, kind: str) -> None:
    assert_resumes(optimizers()[kind], SCHEDULES[name])


# -- entries of others in groups -----------------------------------------------------------------

ENTRIES: dict[str, Any] = {
    "initial_lr": 0.5, "max_lr": 0.25, "min_lr": 1e-5, "base_momentum": 0.8, "max_momentum": 0.9,
    "swa_lr": 1e-3, "name": "head", "lr_mult": 2, "tags": ["a", {"b": 1}], "none": None,
    "ratio": torch.tensor(0.5), "values": torch.arange(3),
}  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", optimizers())
def test_entries_of_others_are_kept(kind: str) -> None:
    optimizer = optimizers()[kind]()
    for group in optimizer.param_groups:
        group.update(copy.deepcopy(ENTRIES))
    steps(optimizer, 2)
    saved = through_file(optimizer.state_dict())
    other = optimizers()[kind]()
    # Also given with the group, where OneCycleLR's is no option of ours.
    fresh = {**copy.deepcopy(ENTRIES), "peak_lr": None, "decouple_lr": False}
    other.add_param_group({"params": [parameter(2, BF16)], **fresh})
    assert other.param_groups.pop()["max_lr"] == 0.25
    for p, q in zip(parameters(other), parameters(optimizer), strict=True):
        p.data.copy_(q)
    other.load_state_dict(saved)
    for group in other.param_groups:
        for name, value in ENTRIES.items():
            if isinstance(value, Tensor):
                assert torch.equal(group[name], value)
            else:
                assert group[name] == value
    for copied in (other, copy.deepcopy(optimizer)):
        assert copied.param_groups[0].keys() == optimizer.param_groups[0].keys()
    for each in (optimizer, other):
        steps(each, 1, seed=9)
    assert_same(stored(other), stored(optimizer))


# -- max_lr, as peak_lr was called -----------------------------------------------------------------


def test_old_name_in_the_constructor_and_in_groups() -> None:
    with pytest.warns(FutureWarning, match="max_lr is now called peak_lr"):
        optimizer = AdamW([parameter(3, BF16)], decouple_lr=True, max_lr=0.5)
    assert optimizer.param_groups[0]["peak_lr"] == 0.5
    assert "max_lr" not in optimizer.param_groups[0]
    with pytest.warns(FutureWarning, match="max_lr is now called peak_lr"):
        optimizer.add_param_group({"params": [parameter(3, BF16)], "max_lr": 0.25})
    assert optimizer.param_groups[1]["peak_lr"] == 0.25
    with pytest.raises(TypeError, match="peak_lr and max_lr are both given"):
        AdamW([parameter(3, BF16)], decouple_lr=True, max_lr=0.5, peak_lr=0.5)


@pytest.mark.parametrize(
    ("decouple", "value", "peak"),
    # As it was saved; and as OneCycleLR, which wrote there, left it.
    [(False, None, None), (True, 0.5, 0.5), (False, 0.125, None), (True, 0.125, 0.125)],
)
def test_checkpoints_of_the_old_name(
    decouple: bool, value: float | None, peak: float | None
) -> None:
    optimizer = adamw(decouple_lr=decouple, peak_lr=peak)
    steps(optimizer, 2)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["peak_lr"]
        group["max_lr"] = value
    other = adamw(decouple_lr=decouple)
    for p, q in zip(parameters(other), parameters(optimizer), strict=True):
        p.data.copy_(q)
    other.load_state_dict(saved)
    pickled = copy.deepcopy(other)
    state = pickled.__getstate__()
    for group in state["param_groups"]:
        del group["peak_lr"]
        group["max_lr"] = value
    pickled.__setstate__(state)
    for each in (other, pickled):
        assert [g["peak_lr"] for g in each.param_groups] == [peak, peak]
        assert [g.get("max_lr") for g in each.param_groups] == [value, value]
        assert ("max_lr" in each.param_groups[0]) == (value is not None)
    for each in (optimizer, other):
        steps(each, 1, seed=9)
    assert_same(stored(other), stored(optimizer))


def test_optimi_calls_it_so_too() -> None:
    group = {"params": [0], "beta1": 0.9, "beta2": 0.99, "decouple_lr": True, "max_lr": 0.5}
    found = libraries.options(group)
    assert found["peak_lr"] == 0.5
    assert found["betas"] == (0.9, 0.99)
