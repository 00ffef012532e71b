"""Steps that repeat: what an optimizer keeps from the step before changes no bit, hides no error.

The reference forgets before every step what could be repeated, and has its kernels called as
opaque operators. Whatever happens between two steps, both must end with the same bits, or raise
the same error with nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.optim import SGD, AdamW, Lion, NAdam
from tests.helpers import assert_same_bits
from tests.optim.helpers import assert_same, stored
from tests.optim.plan_cases import (
    CHANGES,
    ERRORS,
    give_gradients,
    in_full,
    make,
    no_gradient,
)


def run(change: Callable[[Any], None], keep: bool, **options: Any) -> Any:
    optimizer = make(**options)
    if not keep:
        in_full(optimizer)
    for t in range(6):
        give_gradients(optimizer, t)
        if t == 3:
            change(optimizer)
        optimizer.step()
    return optimizer


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_changes_between_steps(change: Callable[[Any], None]) -> None:
    kept, reference = run(change, True), run(change, False)
    assert_same(stored(kept), stored(reference))


def test_metrics() -> None:
    kept = run(no_gradient, True, track_metrics=True)
    assert kept.metrics() == run(no_gradient, False, track_metrics=True).metrics()


@pytest.mark.sampled
@pytest.mark.parametrize("change", ERRORS, ids=lambda f: f.__name__)
def test_errors_between_steps(change: Callable[[Any], None]) -> None:
    optimizer = make()
    for t in range(3):
        give_gradients(optimizer, t)
        optimizer.step()
    assert optimizer._steps._repeat.holds(optimizer._request())
    change(optimizer)
    last = optimizer.param_groups[1]["params"][-1]
    before = last.detach().clone()
    with pytest.raises((TypeError, ValueError)) as kept:
        optimizer.step()
    assert_same_bits(last.detach(), before)
    in_full(optimizer)
    with pytest.raises((TypeError, ValueError)) as reference:
        optimizer.step()
    assert str(kept.value) == str(reference.value)


def test_executors_between_steps() -> None:
    kept, reference = make(), make()
    for t, name in enumerate(["numba", "numba", "torch", "numba", "numba"]):
        for optimizer in (kept, reference):
            give_gradients(optimizer, t)
            with mcf.executor(name if optimizer is kept else "torch"):
                optimizer.step()
    assert_same(stored(kept), stored(reference))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("made", [AdamW, NAdam, SGD, Lion])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    "change", [{"lr": None}, {"lr": torch.ones(2)}, {"weight_decay": None}, {"low": "up"}], ids=str
)
def test_hyperparameters_that_are_none(made: Any, steps: int, change: dict[str, Any]) -> None:
    # In the last group, when the others could have stepped.
    optimizer = make(made, precision="light")
    for t in range(steps):
        give_gradients(optimizer, t)
        optimizer.step()
    give_gradients(optimizer, 9)
    before = stored(optimizer)
    optimizer.param_groups[1].update(change)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        optimizer.step()
    assert_same(stored(optimizer), before)
