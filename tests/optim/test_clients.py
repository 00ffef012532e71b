"""What other projects do to an optimizer: replace its step, rebuild its state, wrap it.

Each test is one client's pattern, named after it, without the client; `tests/integrations` runs the
clients themselves.
"""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from mcf.optim import AdamW, GradientAccumulator
from tests.helpers import assert_same_bits
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


@pytest.fixture
def alone_in_the_world() -> Iterator[Any]:
    """A device mesh of this process."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("precision", ["plus", "stochastic"])
def test_accelerate_shards_after_the_optimizer(alone_in_the_world: Any, precision: str) -> None:
    """Under FSDP2 its `prepare` puts empty tensors, then the sharded parameters, in the groups.

    accelerate itself does this on GPUs only.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    def built() -> tuple[nn.Module, AdamW]:
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)).to(BF16)
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_(random(p.shape, BF16, k))
        return model, AdamW(model.named_parameters(), 1e-2, precision=precision, max_grad_norm=1.0)

    model, optimizer = built()
    optimizer.load_state_dict(moved(optimizer.state_dict()))
    (group,) = optimizer.param_groups
    names = {p.data_ptr(): name for name, p in model.named_parameters()}
    held = [p.data_ptr() for p in group["params"]]
    for k in range(len(held)):
        group["params"][k] = torch.empty(1, dtype=BF16)
    for layer in model.children():
        fully_shard(layer, mesh=alone_in_the_world)
    sharded = dict(model.named_parameters())
    group["params"] = [sharded[names[address]] for address in held]
    plain_model, plain = built()
    for t in range(3):
        for k, (p, q) in enumerate(zip(model.parameters(), plain_model.parameters(), strict=True)):
            q.grad = random(q.shape, BF16, 10 * t + k, 0.1)
            assert isinstance(p, DTensor)
            p.grad = distribute_tensor(q.grad, p.device_mesh, p.placements)
        optimizer.step()
        plain.step()
    for p, q in zip(model.parameters(), plain_model.parameters(), strict=True):
        assert isinstance(p, DTensor)
        assert_same_bits(p.to_local(), q)
