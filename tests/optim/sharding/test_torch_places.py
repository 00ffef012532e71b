"""Where torch.distributed.checkpoint believes the parts of FSDP + tensor parallelism to be.

`compute_local_shape_and_global_offset` divides some uneven dimensions otherwise than `fully_shard`
does (three processes of data and two of tensor parallelism, 7 rows). What follows is recorded here,
and told in docs/distributed.md: no wrong bits, but checkpoints that cannot be saved or loaded.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from mcf.optim.sharding import shards
from mcf.optim.sharding.shards import local, part
from tests.helpers.processes import World
from tests.optim.sharding.engines import quiet

# Processes of data, of tensor parallelism; rows that torch saves, cannot load, cannot save.
MESH, GOOD, UNREADABLE, REFUSED = (3, 2), (8, 12), 7, 13


def rows(count: int) -> torch.Tensor:
    return torch.arange(3.0 * count).view(count, 3)


def places(count: int, mesh: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Of each process the rows that `fully_shard` gives it, and those that torch says it has."""
    from torch.distributed.tensor import Shard, _utils
    from torch.distributed.tensor.placement_types import _StridedShard

    cut = (_StridedShard(0, split_factor=mesh[1]), Shard(0))
    found = []
    for at in itertools.product(*map(range, mesh)):
        own = shards._indices((count, 3), mesh, at, cut)[0]
        (told, _), (first, _) = _utils._compute_local_shape_and_global_offset(
            (count, 3), mesh, list(at), cut
        )
        found.append((len(own), told, first - own[0] if len(own) == told > 0 else 0))
    return found


def saved(count: int, folder: str) -> tuple[Any, str]:
    """The rows here of a layer under both engines, and what became of a checkpoint of them."""
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", MESH, mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(3, count, bias=False))
    with quiet(), torch.no_grad():
        model[0].weight.copy_(rows(count))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
        p = model[0].weight.detach()
        assert torch.equal(local(p), part(p, rows(count)))
        # Its bits can be had at once, if not from files.
        assert torch.equal(p.full_tensor(), rows(count))  # type: ignore[attr-defined]
        said = "not saved"
        try:
            checkpoint.save({"weight": p}, checkpoint_id=folder)
            whole = {"weight": torch.full((count, 3), -1.0)}
            said = "not loaded"
            checkpoint.load(whole, checkpoint_id=folder)
            said = "the same" if torch.equal(whole["weight"], rows(count)) else "others"
        except BaseException as error:
            # torch's CheckpointException is no Exception.
            said = f"{said}: {type(error).__name__}"
        return len(local(p)), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "said"),
    [
        *((count, "the same") for count in GOOD),
        (UNREADABLE, "not loaded: CheckpointException"),
        (REFUSED, "not saved: CheckpointException"),
    ],
)
def test_what_becomes_of_a_checkpoint(world: World, tmp_path: Any, count: int, said: str) -> None:
    found = world.run(6, saved, count, str(tmp_path / "files"))
    assert [mine for mine, _ in found] == [own for own, *_ in places(count, MESH)]
    assert {words for _, words in found} == {said}


@pytest.mark.parametrize("most", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_no_part_is_put_elsewhere_in_silence(most: int) -> None:
    """Where torch says otherwise, it gives some process another number of rows.

    So a file's parts do not have the sizes that its index says, which saving or loading finds.
    """
    wrong = []
    for *mesh, count in itertools.product(
        range(2, most + 1), range(2, most + 1), range(1, 8 * most)
    ):
        found = places(count, (mesh[0], mesh[1]))
        if any(own != told or shift for own, told, shift in found):
            assert any(own != told for own, told, _ in found)
            wrong.append((*mesh, count))
    assert (*MESH, UNREADABLE) in wrong
    assert (*MESH, REFUSED) in wrong
    # Never with two processes of data, and never where tensor parallelism divides rows evenly.
    assert all(data > 2 and count % tensor for data, tensor, count in wrong)
