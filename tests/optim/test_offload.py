"""States in the CPU's memory: the bits of the optimizer alone, whatever order copies are made in.

There need not be an accelerator: the copies of `Late` are made when somebody waits for them and not
before, so that what is used too early, or written while it travels, has other bits.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, CPUOffloadOptimizer, Lion, Muon, ScheduleFreeAdamW, StableAdamW
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, parameter, random
from tests.optim.offloading import (
    ALL,
    SMALL,
    Offload,
    assert_same,
    backward,
    found,
    groups,
    model,
    train,
)
from tests.optim.test_amp import scaler

pytestmark = pytest.mark.usefixtures("on_torch")

CASES: list[tuple[Any, dict[str, Any]]] = [
    (AdamW, {}),
    (AdamW, {"precision": "bf16_sr"}),
    (AdamW, {"precision": "4bit", "weight_decay": 0.1}),
    (AdamW, {"max_grad_norm": 0.1}),
    (AdamW, {"nonfinite": "skip", "track_metrics": True}),
    (AdamW, {"precision": "plus", "low": "stochastic", "stream_by": "place"}),
    (SGD, {"momentum": 0.9, "precision": "split16"}),
    (StableAdamW, {}),
]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(("make", "options"), CASES, ids=str)
def test_same_bits(make: Any, options: dict[str, Any], offload: bool) -> None:
    """Some parameters with copies, some small ones without; one and three micro-batches."""
    options = {"lr": 0.01, **options}
    for micro in (1, 3):
        alone = train(lambda g: make(g, **options), micro)
        for size in (ALL, SMALL) if micro == 1 else (SMALL,):
            how = {"offload_gradients": offload, **size}
            assert_same(train(lambda g: Offload(g, make, **how, **options), micro), alone)  # noqa: B023


def test_on_numba() -> None:
    with mcf.executor("numba"):
        alone = train(lambda g: AdamW(g, 0.01))
        assert_same(train(lambda g: Offload(g, AdamW, **SMALL, lr=0.01)), alone)


def test_gradients_that_are_changed_after_backward() -> None:
    alone = train(lambda g: AdamW(g, 0.01), 2, clip=0.01)
    assert_same(train(lambda g: Offload(g, AdamW, **ALL, lr=0.01), 2, clip=0.01), alone)


def test_each_gradient_travels_once_and_is_freed() -> None:
    for offload in (False, True):
        net = model()
        optimizer = Offload(net.parameters(), AdamW, lr=0.01, **SMALL, offload_gradients=offload)
        for t in range(3):
            backward(net, t)
            away = [p for p in net.parameters() if p.numel() >= 20]
            assert all((p.grad is None) == offload for p in away)
            optimizer.step()
            optimizer.zero_grad()
        assert optimizer._transfers.sent == 3 * len(away)
        # The second step made no new memory.
        assert {len(some) for some in optimizer._gradients._free.values()} == {1}


def test_a_gradient_that_is_set_or_taken_away() -> None:
    p, q = parameter((4, 4), BF16, 1), parameter((4, 4), BF16, 2)
    a, b = Parameter(p.detach().clone()), Parameter(q.detach().clone())
    alone = AdamW([a, b], 0.01)
    optimizer = Offload([p, q], AdamW, **ALL, lr=0.01)
    for t in range(3):
        for x, y in ((p, q), (a, b)):
            (x * y).sum().backward()
            x.grad = random((4, 4), BF16, t)
            if t == 1:
                y.grad = None
        for each in (optimizer, alone):
            each.step()
            # Again, with the gradients that are there.
            each.step()
            each.zero_grad()
    assert_same_bits(p.detach(), a.detach())
    assert_same_bits(q.detach(), b.detach())
    assert optimizer.state_dict()["state"][1]["step"] == 4


def test_weights_that_others_write() -> None:
    """What is written is what the next step begins with."""
    results = []
    for make in (
        lambda g: AdamW(g, 0.01, precision="plain"),
        lambda g: Offload(g, AdamW, **ALL, lr=0.01, precision="plain"),
    ):
        net = model()
        optimizer = make(groups(net))
        for t in range(3):
            backward(net, t)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                net[0].weight.mul_(0.5)
            if t == 1:
                net[0].weight.data[0, 0] = 2.0
                optimizer.reload_model_params()
        p = net[0].weight
        results.append({**found(net, optimizer), "stored": optimizer.master_weight(p)})
    assert_same(*results)


@pytest.mark.parametrize("there", [False, True])
def test_checkpoints_with_and_without(there: bool) -> None:
    """Of either, loaded into the other."""

    def offloaded(g: Any) -> Any:
        return Offload(g, AdamW, **SMALL, lr=0.01, precision="bf16_sr")

    def alone(g: Any) -> Any:
        return AdamW(g, 0.01, precision="bf16_sr")

    first, second = (alone, offloaded) if there else (offloaded, alone)
    net = model()
    optimizer = first(groups(net))
    expected = train(alone, count=4)
    for t in range(4):
        if t == 2:
            saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
            net = model()
            optimizer = second(groups(net))
            net.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        backward(net, 10 * t)
        optimizer.step()
        optimizer.zero_grad()
        if t % 2:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
    mine = found(net, optimizer)
    assert_same({n: mine[n] for n in expected}, expected)


def test_groups_that_are_added() -> None:
    results = []
    for make in (lambda g: AdamW(g, 0.01), lambda g: Offload(g, AdamW, **ALL, lr=0.01)):
        net = model()
        first, second = groups(net)
        optimizer = make([first])
        with pytest.raises(ValueError, match=r"Invalid learning rate: -1\.0"):
            optimizer.add_param_group({**second, "lr": -1.0})
        optimizer.add_param_group(second)
        for t in range(2):
            backward(net, t)
            optimizer.step()
            optimizer.zero_grad()
        results.append(found(net, optimizer))
    assert_same(*results)


def test_zero_grad_forgets_what_travels() -> None:
    net = model()
    optimizer = Offload(net.parameters(), AdamW, **ALL, lr=0.01, offload_gradients=True)
    before = [p.detach().clone() for p in net.parameters()]
    backward(net, 0)
    optimizer.zero_grad()
    optimizer.step()
    for p, old in zip(net.parameters(), before, strict=True):
        assert_same_bits(p.detach(), old)
    backward(net, 0)
    optimizer.remove()
    backward(net, 1)
    assert all(p.grad is not None for p in net.parameters())


def test_under_a_scaler() -> None:
    results = []
    for make in (
        lambda g: SGD(g, 0.01, 0.9),
        lambda g: Offload(g, SGD, lr=0.01, momentum=0.9, **SMALL),
    ):
        net = model()
        optimizer, scale = make(groups(net)), scaler()
        for t in range(4):
            loss = net[3](net[2](net[1](net[0](random((4, 8), BF16, t))).float()).to(BF16))
            total = loss.float().square().mean() * (torch.inf if t == 2 else 1.0)
            scale.scale(total).backward()
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
        results.append(found(net, optimizer))
    assert_same(*results)


def test_on_a_cpu_nothing_travels() -> None:
    net = model()
    optimizer = CPUOffloadOptimizer(groups(net), AdamW, lr=0.01, **ALL)
    assert not optimizer._copies.of
    assert_same(
        train(lambda g: CPUOffloadOptimizer(g, AdamW, lr=0.01)), train(lambda g: AdamW(g, 0.01))
    )


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"optimizer_class": torch.optim.AdamW}, TypeError, "allowed are those of mcf.optim"),
    ({"optimizer_class": ScheduleFreeAdamW}, TypeError, "without train and eval modes"),
    ({"minimal_size": -1}, ValueError, "Invalid minimal_size: -1"),
    ({"offload_gradients": 1}, TypeError, "offload_gradients must be True or False"),
    ({"capturable": True}, ValueError, "capturable=True.*allowed is False"),
    ({"lr": -1.0}, ValueError, "Invalid learning rate: -1.0"),
]


@pytest.mark.parametrize(("options", "error", "words"), REFUSED, ids=str)
def test_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Offload([parameter((2, 2), BF16)], **{"optimizer_class": AdamW, **options})


def test_refused_in_use() -> None:
    p = parameter((2, 2), BF16)
    optimizer = Offload([p], Lion, lr=0.01, **ALL, offload_gradients=True)
    with pytest.raises(RuntimeError, match=r"step\(closure\).*loss.backward\(\) before step"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        copy.deepcopy(optimizer)
    optimizer.found_inf = torch.zeros(1)
    with pytest.raises(RuntimeError, match="offload_gradients=True under a GradScaler"):
        optimizer.step()
    pair = mcf.tensor([1.0, 2.0], terms=2, dtype=BF16)
    with pytest.raises(TypeError, match="an expansion tensor; allowed are plain tensors"):
        Offload([Parameter(pair)], AdamW)


def test_muon() -> None:
    options = {"lr": 0.01, "weight_decay": 0.1}
    results = []
    for make in (
        lambda p: Muon(p, **options),
        lambda p: Offload(p, Muon, **ALL, **options),
    ):
        p = parameter((8, 4), BF16, 1)
        optimizer = make([p])
        for t in range(3):
            (p * random((8, 4), BF16, t)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(p.detach())
    assert_same_bits(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("micro", [1, 3])
def test_on_a_gpu(micro: int, offload: bool) -> None:
    """Real streams, and the kernels of both: the bits of the optimizer on the GPU."""
    wide, results = 1024, []
    options = {"lr": 0.01, "precision": "bf16_sr"}
    how = {"offload_gradients": offload, "minimal_size": 2048}
    for make in (
        lambda p: AdamW(p, **options),
        lambda p: CPUOffloadOptimizer(p, AdamW, **how, **options),
    ):
        params = [Parameter(random((wide, wide), BF16, k, 0.03).cuda()) for k in range(6)] + [
            Parameter(random(wide, BF16, 9).cuda())
        ]
        with mcf.executor("auto"):
            optimizer = make(params)
            for t in range(4 * micro):
                x = random((wide, wide), BF16, 20 + t).cuda()
                for p in params:
                    x = torch.tanh(x @ p) if p.dim() == 2 else x * p
                x.float().square().mean().backward()
                if t % micro == micro - 1:
                    optimizer.step()
                    optimizer.zero_grad()
        results.append([p.detach().cpu() for p in params])
    for mine, theirs in zip(*results, strict=True):
        assert_same_bits(mine, theirs)
