"""Bits of one process over NCCL, on all GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("AdamW", {"lr": 0.01, "precision": "plus", "low": "stochastic", "max_grad_norm": 0.5}),
    ("AdamW", {"lr": 0.01, "precision": "split16", "nonfinite": "skip", "capturable": True}),
    ("AdamW", {"lr": 0.01, "precision": "stochastic", "track_metrics": True}),
)


def all_of(several: list[Layout]) -> list[list[dict[str, str]]]:
    how: dict[str, Any] = {"executor": "triton", "device": "cuda"}
    return [[layouts.trained(x, make, o, **how) for make, o in OPTIONS] for x in several]


@pytest.mark.parametrize(
    "size",
    [pytest.param(n, marks=pytest.mark.gpu(count=n)) for n in sorted({x.size for x in LAYOUTS})],
)
def test_layouts(world: World, size: int) -> None:
    several = [x for x in LAYOUTS if x.size == size]
    # The bits of plain tensors in torch operations on a CPU.
    expected = [layouts.trained(None, make, o) for make, o in OPTIONS]
    for found in world.run(size, all_of, several):
        for layout, theirs in zip(several, found, strict=True):
            assert theirs == expected, layout.name
