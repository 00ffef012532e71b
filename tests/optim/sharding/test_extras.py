"""Companions of a step: gradients released, added up, or summed over processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mcf
from mcf.optim import AdamW, GradientAccumulator, GradientRelease, MomentAccumulator
from tests.helpers.processes import World
from tests.optim.helpers import random
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout

BF16 = torch.bfloat16
OPTIONS: dict[str, Any] = {
    "lr": 0.01,
    "precision": "plus",
    "low": "stochastic",
    "nonfinite": "skip",
}


def model() -> nn.Module:
    # Outputs and gradients are sums of whole numbers, exact in every order.
    made = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to(BF16)
    with torch.no_grad():
        for k, p in enumerate(made.parameters()):
            p.copy_(random(p.shape, torch.float32, k).sign())
    return made


def batch(t: int) -> torch.Tensor:
    return random((4, 6), torch.float32, 50 + t).sign().to(BF16)


def released(shard: bool, release: bool) -> dict[str, str]:
    """One step, in the backward pass or after it; of what the loss's sum over all rows gives."""
    from torch.distributed import get_rank, get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, rank, count = model(), 0, 1
    if shard:
        rank, count = get_rank(), get_world_size()
        mesh = init_device_mesh("cpu", (count,))
        for layer in net:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    with mcf.executor("torch"):
        named = list(net.named_parameters())
        optimizer = AdamW(named, **OPTIONS)
        if release:
            GradientRelease(optimizer)
        for t in range(2):
            with torch.no_grad():
                # The same inputs for every layer's gradients in all steps.
                for k, p in enumerate(net.parameters()):
                    full = random(p.shape, torch.float32, k + t).sign().to(BF16)
                    mine = layouts.shards.part(p, full)
                    layouts.shards.local(p).copy_(mine)
            optimizer.reload_model_params()
            # fully_shard averages over the processes.
            net(batch(t)[rank::count]).sum().mul(count).backward()
            optimizer.step()
            optimizer.zero_grad()
        return layouts.digests(named, optimizer)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_release(world: World, size: int) -> None:
    """Every bit of one process's step after the backward pass."""
    right = released(False, False)
    for each in world.run(size, released, True, True):
        assert each == right


def taken(shard: bool) -> dict[str, str]:
    """Make two steps of two backward passes whose gradients go into the moments."""
    from torch.distributed import get_rank, get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # Of one layer, whose gradients do not depend on its weights.
    net, rank, count = model()[:1], 0, 1
    if shard:
        rank, count = get_rank(), get_world_size()
        fully_shard(net, mesh=init_device_mesh("cpu", (count,)))
    with mcf.executor("torch"):
        named = list(net.named_parameters())
        optimizer = AdamW(named, lr=0.01, precision="8bit", eps=1.0)
        MomentAccumulator(optimizer)
        for t in range(2):
            for k in range(2):
                net(batch(2 * t + k)[rank::count]).sum().mul(count).backward()
            optimizer.step()
            optimizer.zero_grad()
        return layouts.digests(named, optimizer)


def test_moments_take_gradients(world: World) -> None:
    right = taken(False)
    for each in world.run(2, taken, True):
        assert each == right


def accumulated() -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(TypeError) as found:
        GradientAccumulator(AdamW(net.parameters()))
    return str(found.value)


def test_accumulator(world: World) -> None:
    (text,) = world.run(1, accumulated)
    assert text.startswith("params[0] of param_groups[0] is a DTensor, to whose gradient fully_sha")
    assert "reduce_dtype=torch.float32" in text


def outside() -> list[str]:
    """A step of a process that is in no place of the mesh, and of one that is."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate

    mesh = DeviceMesh("cpu", torch.tensor([0]))
    found = []
    for make in ("AdamW", "Muon"):
        there = mesh.get_coordinate() is not None
        full = random((4, 3) if there else (0,), BF16, 1)
        how = {"run_check": False, "shape": torch.Size((4, 3)), "stride": (3, 1)}
        p = nn.Parameter(DTensor.from_local(full, mesh, [Replicate()], **how))
        p.grad = DTensor.from_local(torch.ones_like(full), mesh, [Replicate()], **how)
        with mcf.executor("torch"):
            getattr(mcf.optim, make)([p], lr=0.01, nonfinite="skip").step()
        found.append(layouts.digest(layouts.shards.local(p.detach())))
    return found


def test_a_process_outside_the_mesh(world: World) -> None:
    first, second = world.run(2, outside)
    assert first != second
    assert len(set(second)) == 1


def with_summands() -> dict[str, str]:
    """Make a step on gradients of which each process has a summand."""
    from torch.distributed.tensor import DTensor, Partial

    mesh = layouts.mesh_of(next(x for x in LAYOUTS if x.name == "rows2"))
    named = layouts.params(Layout("same", (2,), (None,)), mesh, BF16, ((4, 6), (3,)))
    with mcf.executor("torch"):
        optimizer = AdamW(named, lr=0.01)
        for k, (_, p) in enumerate(named):
            full = layouts.gradient(p.shape, p.dtype, 0, k)
            # Halves, which add up exactly.
            p.grad = DTensor.from_local(full / 2, mesh, [Partial()], run_check=False)
        optimizer.step()
        return layouts.digests(named, optimizer)


def test_summands_of_gradients_are_summed_in_the_step(world: World) -> None:
    named = layouts.params(None, None, BF16, ((4, 6), (3,)))
    with mcf.executor("torch"):
        optimizer = AdamW(named, lr=0.01)
        layouts.set_gradients(named, 0)
        optimizer.step()
    assert world.run(2, with_summands) == [layouts.digests(named, optimizer)] * 2
