"""The learning rate: a float or a tensor, new at every step, from any of torch's schedulers."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW
from mcf.optim.conversion import libraries
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import BF16, FP64
from tests.optim.helpers import (
    assert_same,
    copy_weights,
    give_gradients,
    parameter,
    steps,
    stored,
    through_file,
)

pytestmark = pytest.mark.usefixtures("on_torch")


LR = 1e-2
STEPS = 12

Optimizer = torch.optim.Optimizer
Schedule = Callable[[Optimizer], Any]


def sequential(o: Optimizer) -> Any:
    parts = [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    return lr_scheduler.SequentialLR(o, parts, [4])


def chained(o: Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, o)


SCHEDULES: dict[str, Schedule] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, STEPS),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "SequentialLR": sequential,
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, STEPS),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, step_size_up=3),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=STEPS + 1),
    "SWALR": lambda o: SWALR(o, 1e-3, anneal_epochs=4),
}


def test_every_scheduler_of_torch_is_here() -> None:
    found = {
        name
        for name, c in vars(lr_scheduler).items()
        if inspect.isclass(c)
        and issubclass(c, lr_scheduler.LRScheduler)
        and c.__name__ == name
        and name not in ("LRScheduler", "_LRScheduler")
    }
    assert found | {"SWALR"} == set(SCHEDULES)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("rule", ["AdamW", "SGD"])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
def test_scheduler(name: str, rule: str, tensor: bool) -> None:
    results, rates = [], []
    for module in (mcf.optim, torch.optim):
        p = parameter(20, FP64)
        lr = torch.tensor(LR, dtype=FP64) if tensor else LR
        # foreach=None of torch refuses some tensors; its for-loop takes all.
        options: dict[str, Any] = {} if module is mcf.optim else {"foreach": False}
        if rule == "SGD":
            options["momentum"] = 0.9
        optimizer = getattr(module, rule)([p], lr, **options)
        with warnings.catch_warnings():
            # SequentialLR steps its parts in the order that torch itself warns about.
            warnings.simplefilter("ignore")
            scheduler = SCHEDULES[name](optimizer)
        rates.append(run(optimizer, scheduler, 0, STEPS))
        results.append(p.detach())
    assert rates[0] == rates[1]
    # float64 rounding of some steps with weights of size 1.
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)
    if name != "ReduceLROnPlateau":
        assert len(set(rates[0])) > 1


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_is_the_float(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    lr = torch.full(shape, LR, dtype=kind)
    results = []
    for given in (lr, float(lr)):
        optimizer = mcf.optim.AdamW([parameter((5, 3), BF16)], given)
        steps(optimizer, 3)
        results.append(stored(optimizer))
    assert_same(*results)
    assert_same_bits(lr, torch.full(shape, LR, dtype=kind), "the user's tensor")


def test_each_step_takes_the_rate_of_the_moment() -> None:
    # Decay rates and eps of 0 make each step -lr sign(g); powers of two are exact.
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.float32))
    rate = torch.tensor(0.5)
    optimizer = mcf.optim.AdamW([p], rate, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0)
    p.grad = torch.ones(3)
    optimizer.step()
    rate.fill_(0.25)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert p.tolist() == [-0.875] * 3


def test_rate_that_misses_zero_from_below_is_taken_and_saved() -> None:
    # LinearLR down to 0 can end at -7e-22; a user may not give a negative rate.
    optimizer = AdamW([parameter(4, BF16)], 3e-4)
    scheduler = lr_scheduler.LinearLR(optimizer, 0.1, 0.0, 10)
    for _ in range(10):
        steps(optimizer, 1)
        scheduler.step()
    assert -1e-18 < optimizer.param_groups[0]["lr"] < 0
    # A loaded optimizer checks all of its hyperparameters in its next step.
    optimizer.load_state_dict(optimizer.state_dict())
    steps(optimizer, 1)
    other = AdamW([parameter(4, BF16)], 3e-4)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


# -- checkpoints -----------------------------------------------------------------------------------


Make = Callable[[], Any]


def plain(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups without parameters, with tensors as numbers."""
    return [
        {k: v.item() if isinstance(v, Tensor) else v for k, v in g.items() if k != "params"}
        for g in groups
    ]


def run(optimizer: Any, schedule: Any, first: int, last: int) -> list[float]:
    """Make steps on seeded gradients; return their learning rates."""
    rates = []
    for t in range(first, last):
        give_gradients(optimizer, t)
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            named = "metrics" in inspect.signature(schedule.step).parameters
            schedule.step(1.0) if named else schedule.step()
    return rates


def assert_resumes(make: Make, schedule: Callable[[Any], Any]) -> None:
    """4 steps, a checkpoint and 4 more have the bits, rates and groups of 8 steps."""

    def made() -> tuple[Any, Any]:
        optimizer = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optimizer, schedule(optimizer)

    (optimizer, scheduler), (again, other) = made(), made()
    run(optimizer, scheduler, 0, 4)
    saved = through_file(optimizer.state_dict()), copy.deepcopy(scheduler.state_dict())
    copy_weights(again, optimizer)
    run(optimizer, scheduler, 4, 8)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
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
    copy_weights(other, optimizer)
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
    copy_weights(other, optimizer)
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
