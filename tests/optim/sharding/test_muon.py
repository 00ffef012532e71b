"""Muon over processes: each matrix is orthogonalised once in the world, with one process's bits."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch

import mcf
import mcf.optim
from mcf.optim.rules import muon
from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding import engines, layouts
from tests.optim.sharding.engines import quiet
from tests.optim.sharding.layouts import LAYOUTS, Layout, steps

BF16 = torch.bfloat16
SHAPES = ((7, 6), (1, 9), (12, 10), (0, 3), (6, 7), (4, 4), (3, 5))
OPTIONS = {"lr": 0.01, "weight_decay": 0.1, "precision": "light", "low": "stochastic"}


def world_group() -> Any:
    from torch import distributed

    return distributed.group.WORLD


def optimized(named: Any, together: bool = True) -> Any:
    group = world_group() if together else None
    return mcf.optim.Muon(named, process_group=group, **OPTIONS)


def plain_params() -> Any:
    return layouts.params(None, None, BF16, SHAPES)


def trained(where: Layout | None, together: bool, count: int, executor: str = "torch") -> Any:
    """Digests after some steps, and the shapes of the matrices that were worked on here."""
    found: list[tuple[int, ...]] = []
    right = muon.Halves._turned

    def turned(self: Any, x: torch.Tensor) -> torch.Tensor:
        found.append(tuple(x.shape))
        return right(self, x)

    with mcf.executor(executor), mock.patch.object(muon.Halves, "_turned", turned):
        mesh = None if where is None else layouts.mesh_of(where)
        # Cut by rows or columns, had by all, and plain, in one group.
        shapes = SHAPES if where is None and count > 1 else (*SHAPES, *SHAPES)
        named = layouts.params(where, mesh, BF16, shapes)
        optimizer = optimized(named, together)
        steps(named, optimizer, range(count))
        return layouts.digests(named, optimizer), found


def assert_shared(found: list[Any], expected: Any) -> None:
    digests, every = expected
    assert [mine for mine, _ in found] == [digests] * len(found)
    assert sorted(shape for _, mine in found for shape in mine) == sorted(every)


@pytest.mark.parametrize(
    ("size", "executor"), everyday([(2, "numba"), (3, "torch"), (4, "numba")], [(2, "numba")])
)
def test_replicated_matrices_are_shared_out(world: World, size: int, executor: str) -> None:
    found = world.run(size, trained, None, True, 3, executor)
    assert_shared(found, trained(None, False, 3, executor))
    # In round robin: nobody has more than its share.
    assert max(len(mine) for _, mine in found) == 3 * -(-len(SHAPES) // size)


@pytest.mark.slow
def test_replicated_and_cut_matrices_are_shared_out(world: World) -> None:
    where = next(x for x in LAYOUTS if x.name == "mixed")
    assert_shared(world.run(3, trained, where, True, 1), trained(None, False, 1))


SQUARES = tuple((k + 2, 12 - k) for k in range(7))


def turns(several: list[Layout]) -> list[list[tuple[int, ...]]]:
    """The shapes of the matrices that were orthogonalised here, for each layout."""
    found = []
    for layout in several:
        right = muon.Halves._turned
        with mock.patch.object(muon.Halves, "_turned", autospec=True) as turned:
            turned.side_effect = right
            layouts.trained(layout, "Muon", {"lr": 0.01}, 1, SQUARES)
        found.append([tuple(call.args[1].shape) for call in turned.call_args_list])
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_cut_matrices_are_shared_out_in_every_layout(world: World, size: int) -> None:
    several = [x for x in LAYOUTS if "mixed" not in x.name and x.size == size]
    for every in zip(*world.run(size, turns, several), strict=True):
        assert sorted(shape for mine in every for shape in mine) == sorted(SQUARES)
        assert max(map(len, every)) == -(-len(SQUARES) // size)


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
    assert world.run(3, under_ddp, True) == [under_ddp(False)] * 3


def resumed() -> list[bool]:
    """A checkpoint names no processes: it is that of one, and either goes on from the other's."""
    digests, states = [], []
    saved: dict[str, Any] = {}
    for both in ((True, True), (False, False), (True, False), (False, True)):
        named = plain_params()
        for t, together in enumerate(both):
            optimizer = optimized(named, together)
            if t:
                optimizer.load_state_dict(saved)
            steps(named, optimizer, [t])
            saved = copy.deepcopy(optimizer.state_dict())
        states.append(repr(saved["param_groups"]))
        # A copy is for the same processes.
        other = copy.deepcopy(optimizer)
        theirs = [(n, q) for (n, _), q in zip(named, other.param_groups[0]["params"], strict=True)]
        steps(theirs, other, [2])
        digests.append(layouts.digests(theirs, other))
    return [x == digests[0] for x in digests] + [x == states[0] for x in states]


@pytest.mark.slow
def test_checkpoints_and_copies(world: World) -> None:
    with mcf.executor("torch"):
        assert world.run(2, resumed) == [[True] * 8] * 2


def refused() -> list[str]:
    """Return the refusals of groups without this process, and of processes that differ."""
    from torch import distributed

    said = []
    named, rank = plain_params(), distributed.get_rank()
    first = distributed.new_group([0])
    for wrong in ("world", 3, first):
        if wrong is first and rank == 0:
            continue
        with pytest.raises((TypeError, ValueError)) as error:
            mcf.optim.Muon(named, process_group=wrong)
        said.append(str(error.value))
    optimizer = optimized(named)
    layouts.set_gradients(named, 0)
    before = layouts.digests(named, optimizer)
    if rank == 1:
        named[2][1].grad = None
    with pytest.raises(ValueError, match="process_group has processes with other") as error:
        optimizer.step()
    assert layouts.digests(named, optimizer) == before
    said.append(str(error.value))
    # Nobody hangs, and the next step is as any.
    steps(named, optimizer, [0])
    return said


def test_wrong_groups_are_refused(world: World) -> None:
    first, second = world.run(2, refused)
    for said in (first, second):
        assert said[0].endswith("ProcessGroup or None, got str")
        assert said[1].endswith("ProcessGroup or None, got int")
        assert "process 0 has 7, process 1 6, and they differ" in said[-1]
    assert len(first) == 3
    assert "does not have this process (rank 1)" in second[2]
    with pytest.raises(RuntimeError, match=r"process_group was given, and .* not initialized"):
        mcf.optim.Muon(plain_params(), process_group="world")
