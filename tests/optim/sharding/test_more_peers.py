"""More that failed in other optimizers over shared parameters; docs/distributed.md has the list."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import mcf.optim
from mcf.optim.rules import muon
from mcf.optim.sharding import shards
from tests.helpers.processes import World
from tests.optim.helpers import random
from tests.optim.sharding import decisions, engines, layouts, saved
from tests.optim.sharding.engines import quiet
from tests.optim.sharding.layouts import Layout

BF16 = torch.bfloat16


# In the executor that compiles nothing: this is about what is asked of it.
def on_torch(function: Any, *args: Any) -> Any:
    with mcf.executor("torch"):
        return function(*args)


def formats(layout: Layout | None, shape: tuple[int, ...]) -> Any:
    """Digests of two steps, and the dtype of each state."""
    options = {"lr": 1e-3, "precision": "8bit"}

    def kinds(optimizer: Any) -> list[str]:
        states = next(iter(optimizer.state.values()))
        return [f"{name} {t.dtype}" for name, t in sorted(states.items())]

    return layouts.trained(layout, "AdamW", options, BF16, 2, (shape,), "torch", look=kinds)


@pytest.mark.parametrize("mesh", [(2, 1), (1, 2)], ids=str)
def test_torchao_4912_a_mesh_does_not_choose_formats(world: World, mesh: tuple[int, int]) -> None:
    """Its AdamW8bit has 8-bit states for 6,144 elements, float32 ones for two halves."""
    shape = (6, 1024)
    expected = formats(None, shape)
    assert [k for k in expected[1] if k.startswith("exp_avg ")] != ["exp_avg torch.float32"]
    for found in world.run(2, formats, Layout("mesh", mesh, (None, 0)), shape):
        assert found == expected


def test_torchtune_1978_rows_that_processes_do_not_divide(world: World) -> None:
    """Its step with AdamW8bit raises for a matrix of 1,601 rows on four processes."""
    shape = (1601, 4)
    expected = formats(None, shape)
    for found in world.run(4, formats, Layout("rows4", (4,), (0,)), shape):
        assert found == expected


def test_deepspeed_8035_an_infinity_of_one_part_reaches_nothing(world: World) -> None:
    """In bf16 it let an infinity of one process's part into that part's states and weights."""
    spoiled = ("block.down.weight", math.inf, -1)
    for with_it, without in world.run(2, on_torch, decisions.skipped, "fsdp", {}, *spoiled):
        assert with_it == without


def sizes() -> list[bool]:
    """Of each state whether it is laid out as its parameter, and of the shard's size."""
    with quiet(), mcf.executor("torch"):
        made = engines.fsdp()
        optimizer = mcf.optim.AdamW(made.named(), lr=2e-2, precision="plus")
        optimizer.init_state()
        found = []
        for _, p in made.named():
            for name, t in optimizer.state[p].items():
                if name != "step":
                    here, own = shards.local(t), shards.local(p)
                    found.append(shards.same_place(p, t) and here.shape == own.shape)
                    found.append(here.untyped_storage().nbytes() == own.numel() * t.itemsize)
        return found


def test_transformer_engine_2424_states_have_the_size_of_shards(world: World) -> None:
    """Its FusedAdam made states of the whole parameter's shape on every process, and plain ones."""
    for found in world.run(2, sizes):
        assert len(found) >= 24
        assert all(found)


# No number of bf16.
COUNT = 9999


def counted(folder: str, load: bool) -> Any:
    """States of a late step to a checkpoint, or from there; digests, and the steps counted."""
    from torch.distributed import checkpoint

    given = ("AdamW", {"lr": 2e-2, "precision": "fp32_states"})
    with quiet(), mcf.executor("torch"):
        made, optimizer = saved.made("fsdp", {}, given)
        optimizer.init_state()
        if load:
            state = saved._state(made, optimizer)
            checkpoint.load(state, checkpoint_id=folder)
            saved.states.set_model_state_dict(made.model, state["model"])
            saved.states.set_optimizer_state_dict(made.model, optimizer, state["optimizer"])
        else:
            made.train(optimizer, 1)
            for entry in optimizer.state.values():
                entry["step"].fill_(COUNT)
            checkpoint.save(saved._state(made, optimizer), checkpoint_id=folder)
        before = made.digests(optimizer)
        made.train(optimizer, [1])
        return before, made.digests(optimizer)


def test_speculators_899_steps_and_moments_are_saved_as_they_are(
    world: World, tmp_path: Any
) -> None:
    """It saved optimizer states in bf16, in which steps from 9,952 to 10,016 are 9,984."""
    folder = str(tmp_path / "files")
    first, second = world.run(2, counted, folder, False)
    assert first == second
    assert world.run(3, counted, folder, True) == [first] * 3


def orthogonalised(shard: bool) -> Any:
    """Two Muon steps of layers with 7 rows and with one; how many matrices were turned here."""
    from torch.distributed.fsdp import fully_shard

    net = nn.Sequential(nn.Linear(6, 7, bias=False), nn.Linear(7, 1, bias=False)).to(BF16)
    with quiet(), torch.no_grad(), mcf.executor("torch"):
        for k, p in enumerate(net.parameters()):
            p.copy_(random(p.shape, BF16, k))
        if shard:
            fully_shard(net)
        named = list(net.named_parameters())
        optimizer = mcf.optim.Muon(named, lr=0.01, precision="light")
        right = muon.Halves._turned
        with mock.patch.object(muon.Halves, "_turned", autospec=True) as turned:
            turned.side_effect = right
            for t in range(2):
                layouts.set_gradients(named, t)
                optimizer.step()
        return layouts.digests(named, optimizer), turned.call_count


def test_speculators_821_megatron_5533_muon_of_uneven_parts_and_of_one_row(world: World) -> None:
    """torch's Muon raises under FSDP2 for a matrix of one row; Megatron-FSDP had none for parts."""
    expected, every = orthogonalised(False)
    found = world.run(3, orthogonalised, True)
    assert [bits for bits, _ in found] == [expected] * 3
    assert sum(count for _, count in found) == every == 4
