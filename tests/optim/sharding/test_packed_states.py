"""States with several numbers to an element of a tensor, handed from one optimizer to another."""

from __future__ import annotations

import pytest

import mcf
from tests.helpers.processes import World
from tests.optim.sharding import saved
from tests.optim.sharding.saved import Given

FOUR: list[Given] = [("AdamW", {"lr": 2e-2, "precision": "4bit"})]


def handed_over(first: str, second: str) -> list[dict[str, str]]:
    options = {"fsdp_tensor_parallel": {"shape": (2, 2)}}
    engines = [(name, options.get(name, {})) for name in (first, second)]
    flags = {"full_state_dict": first != second}
    with mcf.executor("torch"):
        return saved.handed_over(engines[0], engines[1], FOUR, flags)


@pytest.mark.parametrize(
    ("size", "first", "second"),
    [
        (2, "fsdp", "fsdp"),
        pytest.param(4, "fsdp", "fsdp_tensor_parallel", marks=pytest.mark.slow),
        pytest.param(4, "fsdp_tensor_parallel", "fsdp_tensor_parallel", marks=pytest.mark.slow),
    ],
)
def test_they_keep_their_shape(world: World, size: int, first: str, second: str) -> None:
    with mcf.executor("torch"):
        expected = saved.uninterrupted(FOUR, 5)
    for found in world.run(size, handed_over, first, second):
        assert found == expected
