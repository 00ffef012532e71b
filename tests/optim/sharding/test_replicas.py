"""An infinity or NaN that one of several replicas has alone: all skip the step, or raise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf.optim
from mcf.optim.sharding import processes
from mcf.optim.sharding.shards import local
from tests.helpers.processes import World
from tests.optim.sharding import engines
from tests.optim.sharding.engines import quiet

# Each with who spoils its gradient: of a part that another process has too.
ENGINES: dict[str, tuple[dict[str, Any], str]] = {
    "hsdp": ({"shape": (2, 2)}, "head.weight"),
    # One shard, which is all replicas.
    "hsdp_whole": ({"shape": (4, 1)}, "head.weight"),
    "fsdp_tensor_parallel": ({"shape": (2, 2), "sequence": True}, "block.norm.weight"),
}
OPTIONS = {"lr": 2e-2, "precision": "plus", "max_grad_norm": 1.0}


def _made(engine: str, **given: Any) -> Any:
    options, name = ENGINES[engine]
    made = getattr(engines, engine.removesuffix("_whole"))(**options)
    with mcf.executor("torch"):
        return made, mcf.optim.AdamW(made.named(), **OPTIONS, **given), name


def _spoil(made: Any, name: str, value: float) -> None:
    """Put a value into the gradient of one process."""
    from torch import distributed

    if distributed.get_rank() == 0:
        (p,) = (p for own, p in made.named() if own == name)
        assert processes.has_replicas(p)
        local(p.grad).view(-1)[0] = value


def alike(engine: str, how: str, value: float) -> Any:
    """Digests after a step, a spoiled one and another; on this process alone, not put together."""
    with quiet(), mcf.executor("torch"):
        if how == "scaler":
            return _scaled(engine, value)
        made, optimizer, name = _made(engine, nonfinite=how)
        for t in range(3):
            optimizer.zero_grad()
            made.backward(t)
            if t == 1:
                _spoil(made, name, value)
            if t == 1 and how == "raise":
                with pytest.raises(mcf.optim.NonFiniteGradientError, match=name):
                    optimizer.step()
            else:
                optimizer.step()
        return _here(made, optimizer)


def _scaled(engine: str, value: float) -> Any:
    made, optimizer, name = _made(engine)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for t in range(2):
        optimizer.zero_grad()
        scaler.scale(torch.zeros(()))
        made.backward(t, scale=scaler.get_scale())
        if t == 1:
            _spoil(made, name, value)
        scaler.step(optimizer)
        scaler.update()
    return _here(made, optimizer)


def _here(made: Any, optimizer: Any) -> dict[str, tuple[float, bytes]]:
    """Of each parameter its steps, and the bits that are here."""
    found = {}
    for name, p in made.named():
        state = optimizer.state.get(p, {})
        bits = local(p.detach()).contiguous().view(torch.uint8).numpy().tobytes()
        found[name] = (float(state["step"]) if state else 0.0, bits)
    return found


SLOW = pytest.mark.slow
CASES = [
    pytest.param("hsdp", "skip", math.nan),
    pytest.param("hsdp", "raise", math.inf, marks=SLOW),
    pytest.param("hsdp", "scaler", math.inf, marks=SLOW),
    pytest.param("hsdp_whole", "skip", math.inf, marks=SLOW),
    pytest.param("fsdp_tensor_parallel", "skip", math.inf, marks=SLOW),
    pytest.param("fsdp_tensor_parallel", "raise", math.nan, marks=SLOW),
]


@pytest.mark.parametrize(("engine", "how", "value"), CASES, ids=str)
def test_all_skip_or_raise(world: World, engine: str, how: str, value: float) -> None:
    found = world.run(4, alike, engine, how, value)
    steps = 1.0 if how == "scaler" else 2.0
    for mine in found:
        assert {count for count, _ in mine.values()} <= {0.0, steps}
    # Replicas of a shard have the same bits.
    if engine == "hsdp":
        assert found[0] == found[2] != found[1] == found[3]
    if engine == "hsdp_whole":
        assert found[0] == found[1] == found[2] == found[3]
