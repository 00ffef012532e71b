"""torch.distributed.checkpoint: a run on any processes goes on on any others, with its bits."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from mcf.optim import PRECISIONS
from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding import saved
from tests.optim.sharding.saved import Given

EVERYDAY: list[Given] = [
    ("AdamW", {"lr": 2e-2, "precision": "plus"}),
    ("AdamW", {"lr": 2e-2, "precision": "split16", "max_grad_norm": 1.0}),
    ("AdamW", {"lr": 2e-2, "precision": "stochastic"}),
    # Two numbers to a byte.
    ("AdamW", {"lr": 2e-2, "precision": "4bit"}),
]
ALL: list[Given] = [("AdamW", {"lr": 2e-2, "precision": p}) for p in PRECISIONS] + [
    ("NAdam", {"lr": 2e-2, "precision": "split8"}),
    ("SGD", {"lr": 2e-3, "momentum": 0.9, "precision": "light", "low": "stochastic"}),
    ("Lion", {"lr": 2e-3, "precision": "light"}),
    ("Adam", {"lr": 2e-2, "precision": "plus", "amsgrad": True}),
]

# The number of processes of each stage, and its engine.
CHAINS: dict[str, list[tuple[int, str, dict[str, Any]]]] = {
    "fsdp-plain-fsdp_tp-ddp": [
        (2, "fsdp", {}),
        (1, "plain", {}),
        (4, "fsdp_tensor_parallel", {"shape": (2, 2)}),
        (3, "ddp", {}),
    ],
    "fsdp-fsdp_tp-plain": [
        (3, "fsdp", {}),
        (4, "fsdp_tensor_parallel", {"shape": (2, 2), "sequence": True}),
        (1, "plain", {}),
    ],
    "tp-hsdp-offload": [
        (2, "tensor_parallel", {"sequence": True}),
        (4, "hsdp", {"shape": (2, 2)}),
        (3, "fsdp_offload", {}),
    ],
}


@functools.cache
def _uninterrupted(all_of_them: bool, steps: int) -> Any:
    return saved.uninterrupted(ALL if all_of_them else EVERYDAY, steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "filled",
    [pytest.param(True, id="init_state"), pytest.param(False, id="torch", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "chain",
    everyday(CHAINS, list(CHAINS)[:1]),
)
def test_chain(world: World, tmp_path: Any, chain: str, everything: bool, filled: bool) -> None:
    several = ALL if everything else EVERYDAY
    before = None
    for k, (size, engine, options) in enumerate(CHAINS[chain]):
        after = str(tmp_path / str(k))
        found = world.run(
            size, saved.stage, engine, options, several, (2 * k, 2 * k + 2), before, after, filled
        )
        before = after
        for mine in found:
            assert mine == _uninterrupted(everything, 2 * k + 2)


def test_async_save(world: World, tmp_path: Any) -> None:
    folders = [str(tmp_path / name) for name in "ab"]
    world.run(2, saved.stage, "fsdp", {}, EVERYDAY, (0, 2), None, folders[0], True, True)
    found = world.run(3, saved.stage, "fsdp", {}, EVERYDAY, (2, 4), *folders, True, True)
    for mine in found:
        assert mine == _uninterrupted(False, 4)


@pytest.mark.parametrize("several", [EVERYDAY, pytest.param(ALL, marks=pytest.mark.slow)], ids=len)
def test_a_fake_step_changes_no_weight(world: World, several: list[Given]) -> None:
    for found in world.run(2, saved.fake_step, "fsdp", {}, several):
        assert all(same for same, _ in found)


# With `full_state_dict` and `cpu_offload` torch gives all to the first process, nothing to others.
FLAGS: list[dict[str, bool]] = [
    {},
    {"cpu_offload": True},
    {"full_state_dict": True},
    {"full_state_dict": True, "broadcast_from_rank0": True},
    {"full_state_dict": True, "cpu_offload": True, "broadcast_from_rank0": True},
    {"flatten_optimizer_state_dict": True},
    {"strict": False},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    # By default what moves states between processes, and what names them otherwise.
    everyday(FLAGS, [FLAGS[3], FLAGS[5], *FLAGS[7:]]),
    ids=lambda f: "-".join(f) or "none",
)
@pytest.mark.parametrize("layout", everyday(["fsdp", "fsdp_tp", "fsdp_offload"], ["fsdp"]))
def test_options(world: World, flags: dict[str, bool], layout: str) -> None:
    size = 3 if layout == "fsdp" else 4
    engine: tuple[str, dict[str, Any]] = (layout, {})
    if layout == "fsdp_tp":
        engine = ("fsdp_tensor_parallel", {"shape": (2, 2)})
    for found in world.run(size, saved.handed_over, engine, engine, EVERYDAY, flags):
        assert found == _uninterrupted(False, 5)


@pytest.mark.slow
def test_full_states_from_one_layout_to_another(world: World) -> None:
    flags = {"full_state_dict": True, "broadcast_from_rank0": True}
    second = ("fsdp_tensor_parallel", {"shape": (2, 2)})
    for found in world.run(4, saved.handed_over, ("fsdp", {}), second, EVERYDAY, flags):
        assert found == _uninterrupted(False, 5)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("how", ["convert", "load_converted"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("split16", "light"),
        pytest.param("plus", "split16", marks=pytest.mark.slow),
        pytest.param("stochastic", "master", marks=pytest.mark.slow),
    ],
)
def test_conversion(world: World, source: str, target: str, how: str) -> None:
    given = ("AdamW", {"lr": 2e-2, "precision": source})
    expected = saved.converted("plain", {}, given, target, how)
    engine = ("fsdp_tensor_parallel", {"shape": (2, 2)})
    for found in world.run(4, saved.converted, *engine, given, target, how):
        assert found == expected


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("size", "engine", "options"),
    [
        (3, "fsdp_offload", {}),
        # Some processes have no part of some parameters.
        (4, "fsdp", {}),
        (4, "fsdp_tensor_parallel", {"shape": (2, 2), "sequence": True}),
        (4, "fsdp_ignored", {}),
    ],
)
def test_states_are_where_parameters_are(
    world: World, size: int, engine: str, options: dict[str, Any]
) -> None:
    for found in world.run(size, saved.homes, engine, options, EVERYDAY[1]):
        assert len(found) >= 24
        assert all(found)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("size", "engine", "options"),
    [
        (2, "ddp", {}),
        (4, "fsdp", {}),
        (4, "fsdp_tensor_parallel", {"shape": (2, 2), "sequence": True}),
    ],
)
def test_float32_weights(world: World, size: int, engine: str, options: dict[str, Any]) -> None:
    expected = saved.exported("plain", {}, EVERYDAY)
    for found in world.run(size, saved.exported, engine, options, EVERYDAY):
        assert found == expected
    for weights, fit in expected:
        assert fit
        assert all(t.startswith("torch.float32") for t in weights.values())
