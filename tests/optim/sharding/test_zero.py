"""torch's ZeroRedundancyOptimizer around these optimizers: each process steps some parameters."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import mcf.optim
from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.engines import quiet
from tests.optim.sharding.layouts import steps

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"precision": "plus"},
    {"precision": "stochastic"},
    {"precision": "8bit"},
)


def weights(named: Any) -> list[str]:
    return [layouts.digest(p.detach()) for _, p in named]


def plain(given: dict[str, Any]) -> list[str]:
    """Four steps of one process."""
    with mcf.executor("torch"):
        named = layouts.params(None, None, torch.bfloat16, layouts.SHAPES)
        steps(named, mcf.optim.AdamW(named, lr=0.01, **given), range(4))
        return weights(named)


def divided(given: dict[str, Any]) -> tuple[list[str], list[str] | None, int]:
    """Four steps of all processes; two of one that goes on from the states of all; states here."""
    from torch import distributed
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with quiet(), mcf.executor("torch"):
        named = layouts.params(None, None, torch.bfloat16, layouts.SHAPES)
        for name, p in named:
            mcf.optim.set_stream(p, name)
        # Shapes of several sizes, so that each process has some.
        optimizer = ZeroRedundancyOptimizer(
            [p for _, p in named], mcf.optim.AdamW, lr=0.01, **given
        )
        steps(named, optimizer, range(2))
        optimizer.consolidate_state_dict(0)
        alone = None
        if distributed.get_rank() == 0:
            saved = optimizer.state_dict()
            other = [(name, torch.nn.Parameter(p.detach().clone())) for name, p in named]
            # The checkpoint says that streams are told by places, which are those of a process.
            for name, p in other:
                mcf.optim.set_stream(p, name)
            again = mcf.optim.AdamW(other, lr=0.01, **given)
            again.load_state_dict(saved)
            steps(other, again, range(2, 4))
            alone = weights(other)
        steps(named, optimizer, range(2, 4))
        return weights(named), alone, len(optimizer.optim.state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("size", "given"),
    everyday(itertools.product((2, 3), STRATEGIES), [(2, STRATEGIES[1])]),
    ids=str,
)
def test_the_same_bits(world: World, size: int, given: dict[str, Any]) -> None:
    expected = plain(given)
    found = world.run(size, divided, given)
    assert [bits for bits, *_ in found] == [expected] * size
    # One process goes on from a consolidated checkpoint.
    assert found[0][1] == expected
    # Each parameter's states are in one process.
    counts = [count for *_, count in found]
    assert sum(counts) == len(layouts.SHAPES)
    assert min(counts) > 0
