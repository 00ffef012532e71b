"""Steps in the backward pass: the same bits, no gradients left, what does not go with it."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mcf
from mcf.optim import SGD, AdamW, GradientAccumulator, GradientRelease
from mcf.optim.step.gradient_scaling import NonFiniteGradientError
from tests.optim.arithmetics import BF16, FP32
from tests.optim.helpers import assert_same, parameter, parameters, random, scaler, stored
from tests.optim.test_schedulers import SCHEDULES

pytestmark = pytest.mark.usefixtures("on_torch")


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16))
    tied = nn.Sequential(layers, layers[3], nn.Linear(16, 1)).to(BF16)
    tied[0][2].to(FP32)
    return tied


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(BF16)


def train(make: Any, released: bool, **options: Any) -> dict[str, torch.Tensor]:
    net = model()
    groups = [
        {"params": list(net[0].parameters())},
        {"params": list(net[2].parameters()), "lr": 0.1},
    ]
    optimizer = make(groups, 0.01, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    release = GradientRelease(optimizer) if released else None
    for t in range(6):
        net(random((4, 8), BF16, t)).float().square().mean().backward()
        if released:
            assert all(p.grad is None for p in parameters(optimizer))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    if release is not None:
        release.remove()
        net(random((4, 8), BF16, 0)).float().square().mean().backward()
        assert all(p.grad is not None for p in parameters(optimizer))
        optimizer.zero_grad()
    return stored(optimizer)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"precision": "plain", "max_grad_value": 1e-3},
    {"precision": "stochastic"},
    {"precision": "bf16_sr"},
    {"precision": "8bit"},
]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("make", "options"),
    [(AdamW, {"precision": "4bit"}), *((make, o) for o in OPTIONS for make in (AdamW, SGD))],
    ids=str,
)
def test_released_steps_have_the_same_bits(make: Any, options: dict[str, Any]) -> None:
    assert_same(train(make, True, **options), train(make, False, **options))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", SCHEDULES)
def test_any_scheduler_has_the_same_rates_and_bits(name: str) -> None:
    # Schedulers put a `step` of their own on the optimizer, and warn of one that was not called.
    results, rates = [], []
    for released in (True, False):
        net = model()
        optimizer = AdamW(net.parameters(), 0.01)
        release = GradientRelease(optimizer) if released else None
        # Of a loss of its own, added up until `step` is called.
        later = parameter(3, BF16)
        later.grad = torch.ones_like(later) if released else None
        optimizer.add_param_group({"params": [later]})
        with warnings.catch_warnings():
            # SequentialLR steps its parts as it is made, and later with a deprecated `epoch`.
            warnings.simplefilter("ignore")
            schedule = SCHEDULES[name](optimizer)
            for t in range(4):
                net(random((4, 8), BF16, t)).float().square().mean().backward()
                if not released:
                    optimizer.step()
                    optimizer.zero_grad()
                assert not optimizer.state.get(later)
                schedule.step(1.0) if name == "ReduceLROnPlateau" else schedule.step()
                rates.append(optimizer.param_groups[0]["lr"])
        assert {optimizer.state[p]["step"].item() for p in net.parameters()} == {4}
        assert (release is not None) == released
        later.grad = None
        results.append(stored(optimizer))
    assert_same(*results)
    assert rates[:4] == rates[4:]


def test_a_step_that_others_have_wrapped() -> None:
    # As accelerate and apex do; it is called by its user alone.
    net = model()
    optimizer = AdamW(net.parameters())
    GradientRelease(optimizer)
    calls: list[int] = []
    original = optimizer.step

    def step(*args: Any) -> Any:
        calls.append(1)
        return original(*args)

    optimizer.step = step  # type: ignore[method-assign, assignment]
    net(random((4, 8), BF16, 0)).sum().backward()
    assert calls == []
    assert {optimizer.state[p]["step"].item() for p in parameters(optimizer)} == {1}


def test_on_the_cpu_executor_and_after_loading() -> None:
    # Its prepared steps are kept between backward passes; a loaded state replaces all tensors.
    results = []
    for released in (True, False):
        net = model()
        optimizer = AdamW(net.parameters(), 0.01)
        release = GradientRelease(optimizer) if released else None
        with mcf.executor("numba"):
            for t in range(6):
                net(random((4, 8), BF16, t)).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if t == 3:
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                    optimizer.param_groups[0]["lr"] = 0.5
        assert (release is not None) == released
        results.append(stored(optimizer))
    assert_same(*results)


def test_random_numbers_are_those_of_the_place_among_all() -> None:
    # Equal parameters with equal gradients: were they numbered apart, all would round alike.
    results = []
    for released in (True, False):
        weights = [nn.Parameter(torch.ones(500, dtype=BF16)) for _ in range(3)]
        optimizer = AdamW([{"params": weights[:1]}, {"params": weights[1:]}], 1e-3,
                          precision="stochastic")  # fmt: skip
        release = GradientRelease(optimizer) if released else None
        for _ in range(2):
            torch.stack(weights).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert (release is not None) == released
        first, second, third = (p.detach() for p in weights)
        assert not torch.equal(first, second)
        assert not torch.equal(second, third)
        results.append(stored(optimizer))
    assert_same(*results)


def test_not_finite_names_the_parameter() -> None:
    net = model()
    optimizer = AdamW(net.parameters(), nonfinite="raise")
    GradientRelease(optimizer)
    before = stored(optimizer)
    with pytest.raises(NonFiniteGradientError, match=r"params\[7\] of param_groups\[0\]\.grad"):
        (net(random((4, 8), BF16, 0)).sum() * torch.inf).backward()
    for p in parameters(optimizer):
        p.grad = None
    assert_same(stored(optimizer), before)


def test_refused() -> None:
    def made(**options: Any) -> AdamW:
        return AdamW([nn.Parameter(torch.zeros(3))], **options)

    accumulating, twice = made(), made()
    GradientAccumulator(accumulating)
    GradientRelease(twice)
    for optimizer, what in (
        (made(max_grad_norm=1.0), "max_grad_norm"),
        (made(track_metrics=True), "track_metrics"),
        (accumulating, "an accumulator"),
        (twice, "another GradientRelease"),
    ):
        with pytest.raises(ValueError, match=f"does not go with {what}"):
            GradientRelease(optimizer)
    with pytest.raises(ValueError, match="GradientAccumulator does not go with gradient release"):
        GradientAccumulator(twice)
    with pytest.raises(TypeError, match="is a SGD; allowed are optimizers of"):
        GradientRelease(torch.optim.SGD([nn.Parameter(torch.zeros(3))]))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="does not go with a GradScaler"):
        scaler().step(twice)


# -- reducers --------------------------------------------------------------------------------------


WORDS = "does not go with DistributedDataParallel: each process would step on its own gradients"


@pytest.fixture
def group() -> Iterator[None]:
    with mcf.executor("torch"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("group")
def test_wrapped_before() -> None:
    net = plain_model()
    wrapped = nn.Sequential(DistributedDataParallel(net))
    optimizer = AdamW(wrapped.parameters())
    with pytest.raises(RuntimeError, match=WORDS):
        GradientRelease(optimizer)
    # As if it had not been asked.
    wrapped(random((2, 4), BF16, 0)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    optimizer.step()
    assert all(optimizer.state[p]["step"].item() == 1 for p in net.parameters())
    # Other parameters are no concern of it, nor is one that is no more.
    GradientRelease(AdamW(plain_model().parameters())).remove()
    del wrapped
    gc.collect()
    GradientRelease(optimizer).remove()


@pytest.mark.usefixtures("group")
def test_wrapped_after() -> None:
    net = plain_model()
    optimizer = AdamW(net.parameters())
    release = GradientRelease(optimizer)
    with pytest.raises(RuntimeError, match=rf"{WORDS}.*GradientRelease.remove\(\) ends"):
        DistributedDataParallel(net)
    net(random((2, 4), BF16, 0)).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    # Other modules may be wrapped, and this one when the release has ended.
    DistributedDataParallel(plain_model())
    release.remove()
    DistributedDataParallel(net)(random((2, 4), BF16, 0)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    optimizer.step()


@pytest.mark.usefixtures("group")
def test_parameters_that_it_leaves_alone() -> None:
    for after in (True, False):
        net = plain_model()
        own = [p for name, p in net.named_parameters() if name.startswith("2.")]
        names = [name for name, _ in net.named_parameters() if name.startswith("2.")]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, names)
        if not after:
            wrapped = DistributedDataParallel(net)
        release = GradientRelease(AdamW(own))
        if after:
            wrapped = DistributedDataParallel(net)
        wrapped(random((2, 4), BF16, 0)).sum().backward()
        assert [p.grad is None for p in net.parameters()] == [False, False, True, True]
        release.remove()


def test_a_flattened_parameter() -> None:
    p = nn.Parameter(torch.zeros(4))
    # FSDP's mark.
    p._is_flat_param = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"params\[0\] of param_groups\[0\] is a flattened"):
        GradientRelease(AdamW([p]))


@pytest.mark.slow
@pytest.mark.usefixtures("group")
def test_sums_in_two_components_are_refused() -> None:
    words = "GradientAccumulator does not go with DistributedDataParallel"
    net = plain_model()
    wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = AdamW(net.parameters())
    with pytest.raises(RuntimeError, match=words):
        GradientAccumulator(optimizer)
    del wrapped
    gc.collect()
    accumulator = GradientAccumulator(optimizer)
    with pytest.raises(RuntimeError, match=rf"{words}.*GradientAccumulator.close\(\) ends it"):
        DistributedDataParallel(net)
    accumulator.close()
    DistributedDataParallel(net)
