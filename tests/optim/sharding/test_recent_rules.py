"""AdEMAMix, Adan and schedule-free AdamW on shared parameters have one process's bits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout
from tests.optim.variants import RECENT_RULES


def shared(layout: Layout | None) -> list[Any]:
    found = []
    for variant in RECENT_RULES:
        options = {**variant.options, "precision": "plus", "low": "stochastic"}
        name = variant.make.__name__
        found.append(layouts.trained(layout, name, options, executor="torch")[0])
    return found


def shared_by(several: list[Layout]) -> list[Any]:
    return [shared(x) for x in several]


@pytest.mark.slow
@pytest.mark.parametrize("size", sorted({x.size for x in LAYOUTS}))
def test_shared_parameters(world: World, size: int) -> None:
    right = shared(None)
    several = [x for x in LAYOUTS if x.size == size]
    for found in world.run(size, shared_by, several):
        for layout, theirs in zip(several, found, strict=True):
            assert theirs == right, layout.name
