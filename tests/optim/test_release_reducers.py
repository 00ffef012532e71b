"""Gradient release where gradients are reduced over processes: refused, whichever comes first."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mcf
from mcf.optim import AdamW, GradientAccumulator, GradientRelease
from tests.optim.helpers import BF16, assert_same, random, stored

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")

WORDS = "does not go with DistributedDataParallel: each process would step on its own gradients"


@pytest.fixture
def group() -> Iterator[None]:
    with mcf.executor("torch"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(BF16)
    with torch.no_grad():
        for k, p in enumerate(made.parameters()):
            p.copy_(random(p.shape, BF16, k))
    return made


class Subclass(DistributedDataParallel):
    pass


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    "wrap", [DistributedDataParallel, pytest.param(Subclass, marks=pytest.mark.slow)]
)
def test_wrapped_before(wrap: Callable[[nn.Module], nn.Module]) -> None:
    net = model()
    wrapped = nn.Sequential(wrap(net))
    optimizer = AdamW(wrapped.parameters())
    with pytest.raises(RuntimeError, match=WORDS):
        GradientRelease(optimizer)
    # As if it had not been asked.
    wrapped(random((2, 4), BF16, 0)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    optimizer.step()
    assert all(optimizer.state[p]["step"].item() == 1 for p in net.parameters())
    # Other parameters are no concern of it, nor is one that is no more.
    GradientRelease(AdamW(model().parameters())).remove()
    del wrapped
    gc.collect()
    GradientRelease(optimizer).remove()


@pytest.mark.usefixtures("group")
def test_wrapped_after() -> None:
    net = model()
    optimizer = AdamW(net.parameters())
    release = GradientRelease(optimizer)
    with pytest.raises(RuntimeError, match=rf"{WORDS}.*GradientRelease.remove\(\) ends"):
        DistributedDataParallel(net)
    net(random((2, 4), BF16, 0)).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    # Other modules may be wrapped, and this one when the release has ended.
    DistributedDataParallel(model())
    release.remove()
    DistributedDataParallel(net)(random((2, 4), BF16, 0)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    optimizer.step()


@pytest.mark.usefixtures("group")
def test_parameters_that_it_leaves_alone() -> None:
    for after in (True, False):
        net = model()
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


def test_a_release_that_has_ended_leaves_nothing() -> None:
    hooks = torch.nn.modules.module._global_module_registration_hooks
    before = list(hooks)
    release = GradientRelease(AdamW(model().parameters()))
    assert len(hooks) == len(before) + 1
    release.remove()
    assert list(hooks) == before


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_a_flattened_parameter() -> None:
    p = nn.Parameter(torch.zeros(4))
    # FSDP's mark.
    p._is_flat_param = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"params\[0\] of param_groups\[0\] is a flattened"):
        GradientRelease(AdamW([p]))


def trained(net: nn.Module, batches: list[torch.Tensor], **options: Any) -> Any:
    optimizer = AdamW(net.parameters(), 1e-2, precision="stochastic", **options)
    for x in batches:
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return stored(optimizer)


def process(rank: int, path: str, target: Callable[[], nn.Module]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mcf.set_executor("torch")
    net = target()
    wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True)
    with pytest.raises(RuntimeError, match=WORDS):
        GradientRelease(AdamW(net.parameters()))
    # What the message advises: the bits of one process with the batches of both.
    x = [random((2, 4), BF16, t).sign() for t in range(6)]
    found = trained(wrapped, x[rank::2])
    alone = target()
    for p in alone.parameters():
        p.register_hook(lambda g: g / 2)
    assert_same(found, trained(alone, [torch.cat(x[t : t + 2]) for t in (0, 2, 4)]))
    dist.destroy_process_group()


def linear() -> nn.Module:
    # Gradients of a sum are sums of inputs, of whole numbers here: exact in every order.
    made = nn.Linear(4, 3).to(BF16)
    with torch.no_grad():
        for k, p in enumerate(made.parameters()):
            p.copy_(random(p.shape, BF16, k))
    return made


@pytest.mark.slow
def test_two_processes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, (f"{folder}/store", linear), nprocs=2)


@pytest.mark.slow
@pytest.mark.usefixtures("group")
def test_sums_in_two_components_are_refused() -> None:
    words = "GradientAccumulator does not go with DistributedDataParallel"
    net = model()
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
