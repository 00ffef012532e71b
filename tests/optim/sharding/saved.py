"""Runs that go on from torch.distributed's checkpoints, each stage under an engine of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict as states

import mcf.optim
from mcf.optim.sharding.shards import is_sharded, local
from tests.optim.sharding import engines
from tests.optim.sharding.engines import Engine, quiet
from tests.optim.sharding.layouts import digest, whole

# An optimizer's class and options.
Given = tuple[str, dict[str, Any]]


def made(engine: str, options: dict[str, Any], given: Given) -> tuple[Engine, Any]:
    """An engine and an optimizer without states."""
    found = getattr(engines, engine)(**options)
    return found, getattr(mcf.optim, given[0])(found.named(), **given[1])


def uninterrupted(several: list[Given], steps: int) -> list[dict[str, str]]:
    """Digests of one plain process."""
    found = []
    for given in several:
        engine, optimizer = made("plain", {}, given)
        optimizer.init_state()
        engine.train(optimizer, steps)
        found.append(engine.digests(optimizer))
    return found


def weights(engine: Engine) -> list[str]:
    """Digests of all weights."""
    return [digest(whole(p.detach())) for _, p in engine.named()]


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


def fake_step(engine: str, options: dict[str, Any], several: list[Given]) -> list[Any]:
    """The weights before and after torch makes a step to fill a new optimizer; all counts."""
    found = []
    with quiet():
        for given in several:
            mine, optimizer = made(engine, options, given)
            before = weights(mine)
            states.get_optimizer_state_dict(mine.model, optimizer)
            counts = {int(s["step"]) for s in optimizer.state.values()}
            found.append((before == weights(mine), sorted(counts)))
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
    """Of each state of a parameter's shape: device, layout and shape beside the parameter's."""
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
