"""What an optimizer returns as its state is what it takes, of parameters that processes share."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import mcf
from mcf.optim.sharding import shards
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout

# With a parameter of no dimensions, which every process has.
SHAPES = (*layouts.SHAPES[:-1], ())
PLACES = [(0,), (-1,), (0,), (0,), (0,), (-1,), (0,), (None,)]


def loaded(layout: Layout, precisions: tuple[str, ...]) -> list[bool]:
    """Whether another optimizer goes on with the state as the first one does."""
    mesh, answers = layouts.mesh_of(layout), []
    for precision in precisions:
        named = layouts.params(layout, mesh, torch.bfloat16, SHAPES)
        options: dict[str, Any] = {"lr": 0.01, "precision": precision}
        with mcf.executor("torch"):
            optimizer = mcf.optim.AdamW(named, **options)
            layouts.set_gradients(named, 0)
            optimizer.step()
            saved = copy.deepcopy(optimizer.state_dict())
            before = layouts.digests(named, optimizer)
            other = mcf.optim.AdamW(named, **options)
            other.load_state_dict(saved)
            answers.append(layouts.digests(named, other) == before)
            for _, p in named:
                for t in other.state[p].values():
                    assert t.ndim == 0 or shards.same_place(p, t)
            layouts.set_gradients(named, 1)
            other.step()
    return answers


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["one", "rows2"])
def test_loaded(world: World, name: str) -> None:
    """16-bit integers too, which it has as bytes."""
    layout = next(x for x in LAYOUTS if x.name == name)
    layout = Layout(layout.name, layout.mesh, PLACES)
    precisions = ("split16", "split8", "light")
    assert world.run(layout.size, loaded, layout, precisions) == [[True] * 3] * layout.size
