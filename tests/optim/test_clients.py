"""What other projects do to an optimizer: replace its step, rebuild its state, wrap it.

Each test is one client's pattern, named after it, without the client; `tests/integrations` runs the
clients themselves.
"""

from __future__ import annotations

import copy
import functools
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mcf.optim import AdamW, GradientAccumulator
from tests.optim.helpers import BF16, assert_same, parameter, random, steps, stored

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
    """For the time of `scaler.step`, by an instance attribute that calls the original."""
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


def test_lightning_steps_by_a_closure_that_resets() -> None:
    """Lightning's closure zeroes, runs forward and backward, and its step is a partial of ours."""
    model = nn.Linear(4, 3).to(BF16)
    optimizer = AdamW(model.named_parameters(), 1e-2, precision="plus")
    plain_model = copy.deepcopy(model)
    plain = AdamW(plain_model.named_parameters(), 1e-2, precision="plus")
    x = random((2, 4), BF16, 3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    step = functools.partial(optimizer.step, closure=closure)
    for _ in range(2):
        assert step().requires_grad
        plain.zero_grad()
        plain_model(x).square().mean().backward()
        plain.step()
    assert_same(stored(optimizer), stored(plain))


def test_trainer_resets_by_the_model_and_saves_weights_only() -> None:
    """transformers' Trainer: `model.zero_grad()`, `torch.load(weights_only=True)`, a new run."""
    optimizer = made()
    steps(optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = made()
    for p, q in zip(
        (p for g in again.param_groups for p in g["params"]),
        (p for g in optimizer.param_groups for p in g["params"]),
        strict=True,
    ):
        p.data = q.detach().clone()
    again.load_state_dict(torch.load(file, weights_only=True))
    for p in (p for g in again.param_groups for p in g["params"]):
        p.grad = None
    again.step()
    steps(again, 1, seed=2001)
    assert_same(stored(again), expected(3))


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


def test_timm_scales_rates_by_entries_of_its_own() -> None:
    """Layer-wise decay: `lr_scale` in each group, which schedulers read and checkpoints keep."""
    optimizer = made()
    for k, group in enumerate(optimizer.param_groups):
        group["lr_scale"] = 0.5**k
        group["lr"] = torch.tensor(1e-2 * group["lr_scale"])
    steps(optimizer, 1)
    again = made()
    again.load_state_dict(optimizer.state_dict())
    assert [group["lr_scale"] for group in again.param_groups] == [1.0, 0.5]
    alone = made()
    alone.param_groups[1]["lr"] = 5e-3
    steps(alone, 1)
    assert_same(stored(optimizer), stored(alone))
