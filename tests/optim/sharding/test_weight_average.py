"""Averages and float32 starts of shared parameters have one process's bits."""

from __future__ import annotations

import pytest
import torch

import mcf
from mcf.optim import AdamW, WeightAverage, load_float32_weights
from tests.helpers.processes import World
from tests.optim.helpers import random
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout


def run(layout: Layout | None) -> list[str]:
    """Digests of averages, before and after a checkpoint of them is loaded, and of weights."""
    mesh = None if layout is None else layouts.mesh_of(layout)
    with mcf.executor("torch"):
        named = layouts.params(layout, mesh, torch.bfloat16, layouts.SHAPES)
        optimizer = AdamW(named, 0.01, precision="split16")
        average = WeightAverage(optimizer, 0.9)
        net = torch.nn.Module()
        for name, p in named:
            net.register_parameter(name.replace(".", "_"), p)
        start = {n: random(p.shape, torch.float32, 7) for n, p in net.named_parameters()}
        report = load_float32_weights(net, optimizer, start)
        assert report.exact
        for t in range(2):
            layouts.set_gradients(named, t)
            optimizer.step()
        saved = average.state_dict()
        average = WeightAverage(optimizer)
        average.load_state_dict(saved)
        layouts.set_gradients(named, 2)
        optimizer.step()
        found = [t for _, p in named for t in average.weight(p, exact=True)]
        with average.swapped():
            digests = [layouts.digest(t) for t in layouts.wholes([p.detach() for _, p in named])]
        whole = average.float32_weights(net)
    digests += map(layouts.digest, layouts.wholes(found))
    return digests + list(map(layouts.digest, whole.values()))


def runs(several: list[Layout]) -> list[list[str]]:
    return [run(x) for x in several]


# By default one of three processes that has every kind of part.
EVERYDAY = [x for x in LAYOUTS if x.name == "mixed"]
SIZES = sorted({x.size for x in LAYOUTS})


@pytest.mark.parametrize(
    "several",
    [
        pytest.param(EVERYDAY, id="mixed"),
        *(
            pytest.param([x for x in LAYOUTS if x.size == n], id=str(n), marks=pytest.mark.slow)
            for n in SIZES
        ),
    ],
)
def test_same_bits(world: World, several: list[Layout]) -> None:
    right = run(None)
    for found in world.run(several[0].size, runs, several):
        for layout, theirs in zip(several, found, strict=True):
            assert theirs == right, layout.name
