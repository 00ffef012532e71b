"""What the tests of this folder are for: each of these mistakes changes bits, or is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf.optim.parameters import randomness
from mcf.optim.sharding import processes, shards
from mcf.optim.step import norm
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout


def layout(name: str) -> Layout:
    return next(x for x in LAYOUTS if x.name == name)


@contextmanager
def local_index() -> Iterator[None]:
    """Every part's random numbers begin anew."""

    def alone(p: Tensor) -> Any:
        count = shards.local(p).numel()
        return shards.Stretches(*(np.array([x] if count else []) for x in (0, count, 0)))

    with mock.patch.object(shards, "stretches", alone):
        yield


@contextmanager
def one_stretch() -> Iterator[None]:
    """A part that is cut by columns counts on from its first element."""
    with mock.patch.object(randomness, "in_one", return_value=True):
        yield


@contextmanager
def local_norm() -> Iterator[None]:
    """Gradients are clipped by the norm of what is here."""
    right = norm.total_norm
    with mock.patch("mcf.optim.step.gradient_scaling.total_norm", lambda g, *_: right(g)):
        yield


@contextmanager
def lost_rank() -> Iterator[None]:
    """A process without elements takes no part in a sum, as if it had the numbers of none."""
    right = processes.Across.reduce

    def reduce(self: Any, t: Tensor, operation: str) -> Tensor:
        found = right(self, t, operation)
        last = self.mesh.get_coordinate()[0] == self.mesh.size(0) - 1
        return t if last else found

    with mock.patch.object(processes.Across, "reduce", reduce):
        yield


@contextmanager
def replicas_added() -> Iterator[None]:
    """What several processes have alike is summed over all of them."""

    def everywhere(p: Tensor) -> Any:
        if not shards.is_sharded(p):
            return None
        mesh: Any = p.device_mesh  # type: ignore[attr-defined]
        return processes.Across(mesh, tuple(range(mesh.ndim)))

    with (
        mock.patch("mcf.optim.step.run.across", everywhere),
        mock.patch.object(processes, "across", everywhere),
    ):
        yield


STOCHASTIC = {"lr": 0.01, "precision": "stochastic"}
CLIPPED = {"lr": 0.01, "precision": "light", "max_grad_norm": 0.5}


def broken(wrong: Callable[[], Any], where: Layout, options: dict[str, Any]) -> dict[str, str]:
    with wrong():
        return layouts.trained(where, "AdamW", options, executor="torch")[0]


@pytest.mark.parametrize(
    ("wrong", "name", "options"),
    [
        (local_index, "rows2", STOCHASTIC),
        (one_stretch, "columns2", STOCHASTIC),
        (local_norm, "rows2", CLIPPED),
        (lost_rank, "rows4", CLIPPED),
        (replicas_added, "hybrid", CLIPPED),
    ],
)
def test_found(world: World, wrong: Callable[[], Any], name: str, options: dict[str, Any]) -> None:
    right = layouts.trained(None, "AdamW", options, executor="torch")[0]
    where = layout(name)
    assert all(x == right for x in world.run(where.size, broken, nothing, where, options))
    assert any(x != right for x in world.run(where.size, broken, wrong, where, options))


@contextmanager
def nothing() -> Iterator[None]:
    """Nothing is wrong."""
    yield


def with_summands(taken_as_it_is: bool) -> dict[str, str]:
    """A step on gradients of which each process has a summand."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    where = layout("rows2")
    mesh = layouts.mesh_of(where)
    named = layouts.params(Layout("same", (2,), (None,)), mesh, torch.bfloat16, ((4, 6), (3,)))
    with mcf.executor("torch"):
        optimizer = mcf.optim.AdamW(named, lr=0.01)
        for k, (_, p) in enumerate(named):
            full = layouts.gradient(p.shape, p.dtype, 0, k)
            # Halves, which add up exactly.
            place = Replicate() if taken_as_it_is else Partial()
            p.grad = DTensor.from_local(full / 2, mesh, [place], run_check=False)
        optimizer.step()
        return layouts.digests(named, optimizer)


def test_summands(world: World) -> None:
    named = layouts.params(None, None, torch.bfloat16, ((4, 6), (3,)))
    with mcf.executor("torch"):
        optimizer = mcf.optim.AdamW(named, lr=0.01)
        layouts.set_gradients(named, 0)
        optimizer.step()
    right = layouts.digests(named, optimizer)
    assert world.run(2, with_summands, False) == [right] * 2
    assert world.run(2, with_summands, True) != [right] * 2
