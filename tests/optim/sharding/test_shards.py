"""Which elements a process has, against what torch itself puts there."""

from __future__ import annotations

import itertools

import pytest
import torch

from mcf.optim.parameters import randomness
from mcf.optim.sharding import shards
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, SHAPES, Layout


def check_places(layout: Layout) -> list[list[int]]:
    """Of every shape the indices that are here; each is asked in both ways."""
    mesh, found = layouts.mesh_of(layout), []
    for k, shape in enumerate(SHAPES):
        whole = torch.arange(torch.Size(shape).numel()).view(shape)
        t = layouts.shared(whole, mesh, layout.of(k))
        here = shards.local(t)
        assert torch.equal(shards.part(t, whole), here), (shape, here)
        again = shards.like(t, here)
        assert shards.same_place(t, again)
        if shards.is_sharded(t):
            assert torch.equal(again.full_tensor(), t.full_tensor())
        mine = shards.stretches(t)
        flat = here.reshape(-1).tolist()
        told: list[int] = []
        for start, length, first in zip(*mine, strict=True):
            assert length > 0
            assert start == len(told)
            told += range(first, first + length)
        assert told == flat, (shape, told, flat)
        # No two stretches could be one.
        ends = mine.first + mine.lengths
        assert not (ends[:-1] == mine.first[1:]).any()
        assert randomness.index_offset(t) == (flat[0] if flat else 0)
        assert randomness.in_one(t) == (len(mine.first) <= 1)
        # Tensors with a further dimension are laid out alike.
        more = torch.stack([whole, -whole], -1)
        wide = shards.like(t, shards.part(t, more), more.shape)
        assert wide.shape == more.shape
        if shards.is_sharded(t):
            assert torch.equal(wide.full_tensor(), more)
        found.append(flat)
    return found


def check_several(several: list[Layout]) -> list[list[list[int]]]:
    return [check_places(x) for x in several]


@pytest.mark.parametrize("size", sorted({x.size for x in LAYOUTS}))
def test_places(world: World, size: int) -> None:
    several = [x for x in LAYOUTS if x.size == size]
    for n, every in enumerate(zip(*world.run(size, check_several, several), strict=True)):
        for k, shape in enumerate(SHAPES):
            found = sorted({i for mine in every for i in mine[k]})
            assert found == list(range(torch.Size(shape).numel())), (several[n].name, shape)


def check_moves(layout: Layout) -> None:
    mesh = layouts.mesh_of(layout)
    for k, shape in enumerate(SHAPES):
        whole = torch.arange(torch.Size(shape).numel()).view(shape)
        there = layouts.shared(whole, mesh, layout.of(k))
        for other in ("plain", (0,) * len(layout.mesh), (None,) * len(layout.mesh)):
            t = layouts.shared(whole, mesh, other)
            found = shards.moved_like(there, t)
            assert shards.same_place(there, found)
            assert torch.equal(shards.local(found), shards.local(there)), (shape, other)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["rows3", "columns2", "strided", "mixed_grid"])
def test_moves(world: World, name: str) -> None:
    """From whole tensors and from other layouts, as checkpoints have them."""
    layout = next(x for x in LAYOUTS if x.name == name)
    world.run(layout.size, check_moves, layout)


@pytest.mark.parametrize("mesh", [(3, 2), (2, 3), (5, 4)])
def test_pieces_of_several_lengths(mesh: tuple[int, int]) -> None:
    """As `fully_shard` cuts what tensor parallelism has cut, also where a process gets nothing."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    data, tensor = mesh
    places = (_StridedShard(0, split_factor=tensor), Shard(0))
    for n in range(1, 30):
        whole = torch.arange(n)
        for at in itertools.product(range(data), range(tensor)):
            piece = layouts._chunk(whole, 0, tensor, at[1])
            expected = layouts._chunk(piece, 0, data, at[0]).tolist()
            found = shards._indices((n, 2), mesh, at, places)
            assert found[0].tolist() == expected, (n, at)
            assert found[1] is None
