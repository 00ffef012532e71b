"""No mesh outlives what is shared over it: each has its own connections and threads."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from tests.helpers.processes import World, forget_layouts
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS

GRID = next(x for x in LAYOUTS if x.name == "mixed_grid")


def mesh_of(optimizer: Any) -> Any:
    params = optimizer.param_groups[0]["params"]
    return weakref.ref(next(p.device_mesh for p in params if hasattr(p, "device_mesh")))


def left(make: str, options: dict[str, Any]) -> bool:
    """Whether a mesh is still there when nothing is left of a training over it."""
    shapes = ((7, 6), (12, 10))
    _, mesh = layouts.trained(GRID, make, options, shapes=shapes, executor="torch", look=mesh_of)
    forget_layouts()
    gc.collect()
    return mesh() is not None


@pytest.mark.slow
def test_meshes_go(world: World) -> None:
    """Mutants: layouts, and groups of owners, that a dictionary keeps by the mesh's address."""
    for rule in ("AdamW", "Muon"):
        options = {"precision": "light", "max_grad_norm": 0.5}
        assert world.run(GRID.size, left, rule, options) == [False] * GRID.size
