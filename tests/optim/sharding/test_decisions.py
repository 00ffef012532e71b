"""Norms, infinities, metrics and scales under real engines: decided over all processes, alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding import decisions

# Each with the number of processes; the last are what torch's `clip_grad_norm_` cannot do.
ENGINES: list[tuple[str, dict[str, Any], int]] = [
    ("ddp", {}, 2),
    ("fsdp", {}, 3),
    ("fsdp", {}, 4),
    ("fsdp_ignored", {}, 2),
    ("tensor_parallel", {"sequence": True}, 2),
    ("hsdp", {"shape": (2, 2)}, 4),
    ("fsdp_tensor_parallel", {"shape": (2, 2)}, 4),
    ("fsdp_tensor_parallel", {"shape": (2, 2), "sequence": True}, 4),
]

# By default a few.
CASES = everyday(
    ENGINES,
    [ENGINES[1], ENGINES[7]],
    id=lambda *case: f"{case[0]}-{ENGINES.index(case)}-{case[2]}",
)
# Where what one process has is not what all have.
CUT = [case for case in CASES if not str(case.id).startswith("ddp")]

each = pytest.mark.parametrize(("engine", "options", "size"), CASES)


@functools.cache
def one(function: Callable[..., Any], *args: Any) -> Any:
    return function("plain", {}, *args)


@pytest.mark.slow
@each
def test_clipping(world: World, engine: str, options: dict[str, Any], size: int) -> None:
    for found in world.run(size, decisions.clipped, engine, options):
        assert found == one(decisions.clipped)


# In the last element, which some processes have, and in the first.
VALUES = [(math.nan, -1), pytest.param(math.inf, 0, marks=pytest.mark.slow)]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("engine", "options", "size"), CUT)
@pytest.mark.parametrize(("value", "index"), VALUES, ids=str)
def test_skip(
    world: World, engine: str, options: dict[str, Any], size: int, value: float, index: int
) -> None:
    name = "block.down.weight"
    for spoiled, without in world.run(size, decisions.skipped, engine, options, name, value, index):
        assert spoiled == without == one(decisions.skipped, name, value, index)[1]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("engine", "options", "size"), CUT)
@pytest.mark.parametrize(("value", "index"), VALUES, ids=str)
def test_raise(
    world: World, engine: str, options: dict[str, Any], size: int, value: float, index: int
) -> None:
    name = "block.down.weight"
    found = world.run(size, decisions.refused, engine, options, name, value, index)
    assert len(set(found)) == 1
    text, unchanged = found[0]
    assert "block.down.weight" in text
    assert "holds an infinity or NaN" in text
    assert unchanged


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("engine", "options", "size"), CUT)
def test_nan_goes_through_the_norm(
    world: World, engine: str, options: dict[str, Any], size: int
) -> None:
    for found in world.run(size, decisions.spread, engine, options, math.nan, -1):
        assert found == ("nan", False)


@pytest.mark.sampled(every=2)
@each
def test_metrics(world: World, engine: str, options: dict[str, Any], size: int) -> None:
    expected = one(decisions.measured)
    for found in world.run(size, decisions.measured, engine, options):
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                if "lost" in name:
                    assert mine[name] == value, name
                # `metrics` promises sums to 1e-4: float32 registers keep them over blocks of
                # elements, which parts cut elsewhere. A quotient of two, each on both sides.
                assert mine[name] == pytest.approx(value, rel=4e-4, nan_ok=True), name


# torch's own scaler takes gradients of one mesh alone, and no plain ones beside them.
@pytest.mark.slow
@pytest.mark.parametrize("fused", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("engine", "options", "size"),
    [("fsdp", {}, 3), ("fsdp", {}, 4), ("hsdp", {"shape": (2, 2)}, 4)],
)
def test_scaler(world: World, engine: str, options: dict[str, Any], size: int, fused: bool) -> None:
    expected = one(decisions.scaled, -1, fused)
    for found in world.run(size, decisions.scaled, engine, options, -1, fused):
        assert found == expected
