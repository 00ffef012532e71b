"""Muon over processes with the same plain parameters: each matrix worked on once in the world."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch

import mcf.optim
from mcf.optim.rules import muon
from tests.helpers.processes import World
from tests.optim.sharding import engines, layouts
from tests.optim.sharding.engines import quiet

SHAPES = ((7, 6), (1, 9), (12, 10), (0, 3), (6, 7), (4, 4), (3, 5))
OPTIONS = {"lr": 0.01, "weight_decay": 0.1, "precision": "light", "low": "stochastic"}


def world_group() -> Any:
    from torch import distributed

    return distributed.group.WORLD


def trained(together: bool, count: int = 3, executor: str = "torch") -> Any:
    """Digests after some steps, and how many matrices were worked on here in each."""
    with mcf.executor(executor):
        named = layouts.params(None, None, torch.bfloat16, SHAPES)
        group = world_group() if together else None
        optimizer = mcf.optim.Muon(named, process_group=group, **OPTIONS)
        right = muon.Halves._turned
        with mock.patch.object(muon.Halves, "_turned", autospec=True) as turned:
            turned.side_effect = right
            for t in range(count):
                layouts.set_gradients(named, t)
                optimizer.step()
        return layouts.digests(named, optimizer), turned.call_count / count


@pytest.mark.parametrize(
    ("size", "executor"),
    [
        (2, "numba"),
        pytest.param(3, "torch", marks=pytest.mark.slow),
        pytest.param(4, "numba", marks=pytest.mark.slow),
    ],
)
def test_each_matrix_once_and_the_same_bits(world: World, size: int, executor: str) -> None:
    expected, every = trained(False, executor=executor)
    assert every == len(SHAPES)
    found = world.run(size, trained, True, 3, executor)
    assert [digests for digests, _ in found] == [expected] * size
    counts = [count for _, count in found]
    assert sum(counts) == len(SHAPES)
    assert max(counts) == -(-len(SHAPES) // size)


def beside_shared(together: bool) -> tuple[dict[str, str], int]:
    """Matrices cut by rows or columns, had by all, and plain, in one group."""
    layout = next(x for x in layouts.LAYOUTS if x.name == "mixed") if together else None
    with mcf.executor("torch"):
        mesh = layouts.mesh_of(layout) if layout else None
        named = layouts.params(layout, mesh, torch.bfloat16, (*SHAPES, *SHAPES))
        group = world_group() if together else None
        optimizer = mcf.optim.Muon(named, process_group=group, **OPTIONS)
        right = muon.Halves._turned
        with mock.patch.object(muon.Halves, "_turned", autospec=True) as turned:
            turned.side_effect = right
            for t in range(2):
                layouts.set_gradients(named, t)
                optimizer.step()
        return layouts.digests(named, optimizer), turned.call_count


@pytest.mark.slow
def test_beside_shared_matrices(world: World) -> None:
    expected, every = beside_shared(False)
    found = world.run(3, beside_shared, True)
    assert [digests for digests, _ in found] == [expected] * 3
    assert sum(count for _, count in found) == every


def under_ddp(together: bool) -> dict[str, str]:
    """Three steps of the matrices of a model, the rest left as it is."""
    with quiet(), mcf.executor("torch"):
        made = engines.ddp() if together else engines.plain()
        matrices = [(n, p) for n, p in made.named() if p.ndim == 2]
        group = made.model.process_group if together else None
        optimizer = mcf.optim.Muon(matrices, process_group=group, **OPTIONS)
        made.train(optimizer, 3)
        return made.digests(optimizer)


@pytest.mark.slow
def test_distributed_data_parallel(world: World) -> None:
    expected = under_ddp(False)
    for found in world.run(3, under_ddp, True):
        assert found == expected


def resumed() -> list[bool]:
    """A checkpoint names no processes: it is that of one, and either goes on from the other's."""
    digests, states = [], []
    saved: dict[str, Any] = {}
    for first, second in ((True, True), (False, False), (True, False), (False, True)):
        named = layouts.params(None, None, torch.bfloat16, SHAPES)
        for t, together in enumerate((first, second)):
            group = world_group() if together else None
            optimizer = mcf.optim.Muon(named, process_group=group, **OPTIONS)
            if t:
                optimizer.load_state_dict(saved)
            layouts.set_gradients(named, t)
            optimizer.step()
            saved = copy.deepcopy(optimizer.state_dict())
        states.append(repr(saved["param_groups"]))
        # A copy is for the same processes.
        other = copy.deepcopy(optimizer)
        theirs = [(n, q) for (n, _), q in zip(named, other.param_groups[0]["params"], strict=True)]
        layouts.set_gradients(theirs, 2)
        other.step()
        digests.append(layouts.digests(theirs, other))
    return [x == digests[0] for x in digests] + [x == states[0] for x in states]


@pytest.mark.slow
def test_checkpoints_and_copies(world: World) -> None:
    with mcf.executor("torch"):
        assert world.run(2, resumed) == [[True] * 8] * 2


def refused() -> list[str]:
    """What is said of groups that are none of this process, and of processes that differ."""
    from torch import distributed

    said = []
    named = layouts.params(None, None, torch.bfloat16, SHAPES)
    rank = distributed.get_rank()
    first = distributed.new_group([0])
    for wrong in ("world", 3, first):
        if wrong is first and rank == 0:
            continue
        with pytest.raises((TypeError, ValueError)) as error:
            mcf.optim.Muon(named, process_group=wrong)
        said.append(str(error.value))
    optimizer = mcf.optim.Muon(named, process_group=world_group(), **OPTIONS)
    layouts.set_gradients(named, 0)
    before = layouts.digests(named, optimizer)
    if rank == 1:
        named[2][1].grad = None
    with pytest.raises(ValueError, match="process_group has processes with other") as error:
        optimizer.step()
    assert layouts.digests(named, optimizer) == before
    said.append(str(error.value))
    # Nobody hangs, and the next step is as any.
    layouts.set_gradients(named, 0)
    optimizer.step()
    return said


def test_wrong_groups(world: World) -> None:
    first, second = world.run(2, refused)
    for said in (first, second):
        assert said[0].endswith("ProcessGroup or None, got str")
        assert said[1].endswith("ProcessGroup or None, got int")
        assert "process 0 has 7, process 1 6, and they differ" in said[-1]
    assert len(first) == 3
    assert "does not have this process (rank 1)" in second[2]


def test_not_initialized() -> None:
    named = layouts.params(None, None, torch.bfloat16, SHAPES[:1])
    with pytest.raises(RuntimeError, match=r"process_group was given, and .* not initialized"):
        mcf.optim.Muon(named, process_group="world")
