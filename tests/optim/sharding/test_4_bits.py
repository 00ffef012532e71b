"""First moments of 4 bits, two to a byte, of parameters that processes share."""

from __future__ import annotations

import pytest
import torch

from mcf.optim import AdamW
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import Layout

# Rows of any number, and columns that are cut between bytes; one with a dimension of one, one of
# three dimensions, vectors, one with nothing in it, one that is odd.
SHAPES = ((7, 8), (5,), (1, 16), (12, 10), (3, 4, 8), (0, 4), (5, 3))
OPTIONS = {"lr": 0.01, "precision": "4bit", "max_grad_norm": 0.5}
LAYOUTS = (
    Layout("rows2", (2,), (0,)),
    Layout("mixed2", (2,), [(-1,), (0,), (-1,), (0,), (-1,)]),
)
LARGER = (
    Layout("grid", (2, 2), [(0, -1), (0, 0), (None, -1), (0, None), (0, -1)]),
    Layout("strided", (2, 2), [((-1, 2), -1), (0, 0), ((-1, 2), -1), ((0, 2), 0)]),
)


def all_of(several: tuple[Layout, ...], executor: str) -> list[dict[str, str]]:
    how = {"shapes": SHAPES, "executor": executor}
    return [layouts.trained(x, "AdamW", OPTIONS, **how)[0] for x in several]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("several", "executor"),
    [(LAYOUTS, "numba"), pytest.param(LARGER, "torch", marks=pytest.mark.slow)],
    ids=["2", "4"],
)
def test_one_process_has_the_same_bits(
    world: World, several: tuple[Layout, ...], executor: str
) -> None:
    expected = layouts.trained(None, "AdamW", OPTIONS, shapes=SHAPES, executor=executor)[0]
    size = several[0].size
    for found in world.run(size, all_of, several, executor):
        for layout, theirs in zip(several, found, strict=True):
            assert theirs == expected, layout.name


def refused(layout: Layout) -> str:
    mesh = layouts.mesh_of(layout)
    p = torch.nn.Parameter(layouts.shared(torch.ones(4, 6).bfloat16(), mesh, layout.places))
    with pytest.raises(ValueError, match=r"cut by .* between two columns") as error:
        AdamW([p], precision="4bit")
    return str(error.value)


@pytest.mark.slow
def test_a_cut_through_bytes_is_refused(world: World) -> None:
    first, second = world.run(2, refused, Layout("columns2", (2,), (-1,)))
    assert first == second
