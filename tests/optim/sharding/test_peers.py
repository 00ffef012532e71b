"""What failed in other optimizers over shared parameters, done with these.

Of others' failures that are not here: TransformerEngine #2795 (states that are no DTensors) is in
`test_saved.test_states_are_where_parameters_are`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.processes import World
from tests.optim.sharding import engines, saved
from tests.optim.sharding.test_saved import EVERYDAY


def test_torchao_1189_uneven_and_empty_shards_are_stepped(world: World) -> None:
    """Low-bit optimizers of torchao do not run under FSDP2 with them."""
    expected = engines.trained("plain", {}, EVERYDAY)
    for found in world.run(4, engines.trained, "fsdp", {}, EVERYDAY):
        assert found == expected


@pytest.mark.slow
def test_flashoptim_3_the_first_step_after_a_round_trip(world: World, tmp_path: Any) -> None:
    """Its restored states were corrupted, and the loss exploded."""
    folders = [str(tmp_path / name) for name in "ab"]
    world.run(2, saved.stage, "fsdp", {}, EVERYDAY, (0, 2), None, folders[0], True)
    found = world.run(2, saved.stage, "fsdp", {}, EVERYDAY, (2, 3), *folders, True)
    for mine in found:
        assert mine == saved.uninterrupted(EVERYDAY, 3)


@pytest.mark.slow
def test_flashoptim_5_6_uneven_shards_are_exported_and_offloaded_ones_stepped(world: World) -> None:
    """Its export raised for shards of uneven sizes, and its step for shards on the CPU."""
    engine: tuple[str, dict[str, Any]] = ("fsdp_offload", {})
    flags = {"full_state_dict": True}
    for found in world.run(4, saved.handed_over, engine, engine, EVERYDAY, flags):
        assert found == saved.uninterrupted(EVERYDAY, 5)


def test_transformer_engine_3207_a_process_with_nothing_of_a_parameter(world: World) -> None:
    """Its FusedAdam takes no empty shards; here they have states, and are in every checkpoint."""
    for found in world.run(4, saved.homes, "fsdp", {}, EVERYDAY[1]):
        assert len(found) >= 24
        assert all(found)
