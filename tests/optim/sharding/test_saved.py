"""torch.distributed.checkpoint: a run on any processes goes on on any others, with its bits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict as states

import mcf.optim
from mcf.optim import PRECISIONS
from mcf.optim.sharding.shards import is_sharded, local
from tests.helpers.processes import World
from tests.optim.sharding import engines
from tests.optim.sharding.engines import Engine, quiet
from tests.optim.sharding.layouts import digest, whole

# An optimizer's class and options.
Given = tuple[str, dict[str, Any]]


def made(engine: str, options: dict[str, Any], given: Given) -> tuple[Engine, Any]:
    """An engine and an optimizer without states."""
    found = getattr(engines, engine)(**options)
    return found, getattr(mcf.optim, given[0])(found.named(), **given[1])


@functools.cache
def uninterrupted(everything: bool, steps: int) -> Any:
    """Digests of one plain process."""
    found = []
    for given in ALL if everything else EVERYDAY:
        engine, optimizer = made("plain", {}, given)
        optimizer.init_state()
        engine.train(optimizer, steps)
        found.append(engine.digests(optimizer))
    return found


def stage(
    engine: str,
    options: dict[str, Any],
    several: list[Given],
    steps: tuple[int, int],
    before: str | None,
    after: str,
    filled: bool,
    later: bool = False,
) -> list[dict[str, str]]:
    """Go on from the files of one stage to those of the next, for each of some optimizers.

    Args:
        engine: of this stage.
        options: the engine's.
        several: optimizers.
        steps: the first and the end.
        before: the folder of the last stage's files.
        after: that of this one's.
        filled: whether the new optimizer is given states before; else torch makes a step for them.
        later: whether files are written beside the training (`async_save`).
    """
    found = []
    with quiet():
        for k, given in enumerate(several):
            mine, optimizer = made(engine, options, given)
            if filled or before is None:
                optimizer.init_state()
            if before is not None:
                state = _state(mine, optimizer)
                checkpoint.load(state, checkpoint_id=f"{before}/{k}")
                states.set_model_state_dict(mine.model, state["model"])
                states.set_optimizer_state_dict(mine.model, optimizer, state["optimizer"])
            mine.train(optimizer, range(*steps))
            state, where = _state(mine, optimizer), f"{after}/{k}"
            if later:
                checkpoint.async_save(state, checkpoint_id=where).result()
            else:
                checkpoint.save(state, checkpoint_id=where)
            found.append(mine.digests(optimizer))
    return found


def _state(engine: Engine, optimizer: Any) -> dict[str, Any]:
    return {
        "model": states.get_model_state_dict(engine.model),
        "optimizer": states.get_optimizer_state_dict(engine.model, optimizer),
    }


def fake_step(engine: str, options: dict[str, Any], several: list[Given]) -> list[bool]:
    """Whether the weights stay when torch makes a step to fill a new optimizer."""
    found = []
    with quiet():
        for given in several:
            mine, optimizer = made(engine, options, given)
            before = [digest(whole(p.detach())) for _, p in mine.named()]
            states.get_optimizer_state_dict(mine.model, optimizer)
            found.append(before == [digest(whole(p.detach())) for _, p in mine.named()])
    return found


def handed_over(
    first: tuple[str, dict[str, Any]],
    second: tuple[str, dict[str, Any]],
    several: list[Given],
    flags: dict[str, bool],
) -> list[dict[str, str]]:
    """Three steps under one engine, its states in memory, two steps under another."""
    from torch import distributed

    how = states.StateDictOptions(**{k: v for k, v in flags.items() if k != "broadcast_from_rank0"})
    into = states.StateDictOptions(**flags)
    found = []
    with quiet():
        for given in several:
            mine, optimizer = made(*first, given)
            optimizer.init_state()
            mine.train(optimizer, 3)
            both = states.get_state_dict(mine.model, optimizer, options=how)
            model, optim = both
            _only_bytes(optim)
            if flags.get("broadcast_from_rank0") and distributed.get_rank():
                model, optim = {}, {}
            other, again = made(*second, given)
            # Not `set_state_dict`, for which a process without weights has no model to load.
            states.set_model_state_dict(other.model, model, options=into)
            states.set_optimizer_state_dict(other.model, again, optim, options=into)
            other.train(again, range(3, 5))
            found.append(other.digests(again))
    return found


def _only_bytes(state: Any) -> None:
    """No tensor is of a dtype that a backend does not move."""
    if isinstance(state, dict):
        for value in state.values():
            _only_bytes(value)
    elif isinstance(state, Tensor):
        assert state.dtype != torch.int16


def converted(
    engine: str, options: dict[str, Any], given: Given, target: str, how: str
) -> dict[str, str]:
    """Steps under one strategy, then under another: the optimizer or its checkpoint converted."""
    with quiet():
        mine, optimizer = made(engine, options, given)
        mine.train(optimizer, 2)
        if how == "convert":
            optimizer, report = mcf.optim.convert(optimizer, target)
        else:
            saved = optimizer.state_dict()
            name, rest = given
            optimizer = getattr(mcf.optim, name)(mine.named(), **{**rest, "precision": target})
            report = mcf.optim.load_converted(optimizer, saved)
        mine.train(optimizer, range(2, 4))
        return {**mine.digests(optimizer), "report": str(report)}


def homes(engine: str, options: dict[str, Any], given: Given) -> list[Any]:
    """Compare device, layout and shape of each state with its parameter's."""
    with quiet():
        mine, optimizer = made(engine, options, given)
        mine.train(optimizer, 1)
        found = []
        for _, p in mine.named():
            for name, t in optimizer.state.get(p, {}).items():
                if name == "step":
                    assert not is_sharded(t)
                    continue
                found.append(
                    t.device == p.device
                    and is_sharded(t) == is_sharded(p)
                    and t.shape == p.shape
                    and local(t).shape == local(p).shape
                    and (not is_sharded(p) or t.placements == p.placements)  # type: ignore[attr-defined]
                )
        return found


def exported(engine: str, options: dict[str, Any], several: list[Given]) -> list[Any]:
    """Digests of the weights that are given to others, and whether files can hold them."""
    found = []
    with quiet():
        for given in several:
            mine, optimizer = made(engine, options, given)
            mine.train(optimizer, 2)
            weights = mcf.optim.float32_weights(mine.model, optimizer)
            places = {t.untyped_storage().data_ptr() for t in weights.values()}
            fit = len(places) == len(weights) and all(
                type(t) is Tensor and t.is_contiguous() and t.device.type == "cpu"
                for t in weights.values()
            )
            found.append(({name: digest(t) for name, t in sorted(weights.items())}, fit))
    return found


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


@pytest.mark.slow
@pytest.mark.parametrize("filled", [True, False], ids=["init_state", "torch"])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_chain(world: World, tmp_path: Any, chain: str, everything: bool, filled: bool) -> None:
    several = ALL if everything else EVERYDAY
    before = None
    for k, (size, engine, options) in enumerate(CHAINS[chain]):
        after = str(tmp_path / str(k))
        found = world.run(
            size, stage, engine, options, several, (2 * k, 2 * k + 2), before, after, filled
        )
        before = after
        for mine in found:
            assert mine == uninterrupted(everything, 2 * k + 2)


def test_async_save(world: World, tmp_path: Any) -> None:
    folders = [str(tmp_path / name) for name in "ab"]
    world.run(2, stage, "fsdp", {}, EVERYDAY, (0, 2), None, folders[0], True, True)
    found = world.run(3, stage, "fsdp", {}, EVERYDAY, (2, 4), *folders, True, True)
    for mine in found:
        assert mine == uninterrupted(False, 4)


@pytest.mark.parametrize("several", [EVERYDAY, pytest.param(ALL, marks=pytest.mark.slow)], ids=len)
def test_fake_step_changes_no_weight(world: World, several: list[Given]) -> None:
    assert world.run(2, fake_step, "fsdp", {}, several) == [[True] * len(several)] * 2


# With `full_state_dict` and `cpu_offload` torch gives all to the first process, nothing to others.
FULL = {"full_state_dict": True, "broadcast_from_rank0": True}
FLAGS: list[dict[str, bool]] = [
    {},
    {"cpu_offload": True},
    {"full_state_dict": True},
    FULL,
    {"full_state_dict": True, "cpu_offload": True, "broadcast_from_rank0": True},
    {"flatten_optimizer_state_dict": True},
    {"strict": False},
]


GRID: tuple[str, dict[str, Any]] = ("fsdp_tensor_parallel", {"shape": (2, 2)})
# From one engine to another, on some processes.
HANDED: dict[str, tuple[int, Any, Any]] = {
    "fsdp": (3, ("fsdp", {}), ("fsdp", {})),
    "fsdp_tp": (4, GRID, GRID),
    "fsdp_offload": (4, ("fsdp_offload", {}), ("fsdp_offload", {})),
    "fsdp-fsdp_tp": (4, ("fsdp", {}), GRID),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "flags"),
    # Whole states alone go from one layout to another.
    [(x, f) for x in list(HANDED)[:3] for f in FLAGS] + [("fsdp-fsdp_tp", FULL)],
    ids=str,
)
def test_states_in_memory_go_on(world: World, layout: str, flags: dict[str, bool]) -> None:
    size, first, second = HANDED[layout]
    found = world.run(size, handed_over, first, second, EVERYDAY, flags)
    assert found == [uninterrupted(False, 5)] * size


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
    expected = converted("plain", {}, given, target, how)
    engine = ("fsdp_tensor_parallel", {"shape": (2, 2)})
    for found in world.run(4, converted, *engine, given, target, how):
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
    for found in world.run(size, homes, engine, options, EVERYDAY[1]):
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
    expected = exported("plain", {}, EVERYDAY)
    for found in world.run(size, exported, engine, options, EVERYDAY):
        assert found == expected
    for weights, fit in expected:
        assert fit
        assert all(t.startswith("torch.float32") for t in weights.values())
