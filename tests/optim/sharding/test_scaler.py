"""GradScaler under DistributedDataParallel: an infinity on one process skips the step on all.

Gradients are multiples of powers of two, so that their mean over processes is exact and one
process that sees both batches has the same bits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import mcf.optim
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.engines import quiet

STEPS = 4
# In this step one process has an infinity.
BAD = 1


def model() -> nn.Linear:
    """A layer with weights that bf16 holds."""
    made = nn.Linear(6, 5).bfloat16()
    with torch.no_grad():
        for k, p in enumerate(made.parameters()):
            p.copy_(torch.arange(1 + k, 1 + k + p.numel()).reshape(p.shape) / 64)
    return made


def batch(rank: int, step: int) -> torch.Tensor:
    """The input of a process: small whole numbers."""
    return ((torch.arange(12) * (step + 1) + rank) % 5 - 2).reshape(2, 6).bfloat16()


def trained(precision: str, rank: int | None) -> tuple[list[str], list[float], int]:
    """Train as one of two processes, or alone on both batches (rank None).

    Returns:
        A digest of the weights after each step, the scales, and how many steps were made.
    """
    layer = model()
    net: Any = layer if rank is None else nn.parallel.DistributedDataParallel(layer)
    optimizer = mcf.optim.AdamW(
        layer.named_parameters(), lr=0.01, precision=precision, fused=True, max_grad_norm=1.0
    )
    scaler = GradScaler("cpu", init_scale=2.0**8)
    found, scales = [], []
    for step in range(STEPS):
        losses = []
        for of in (0, 1) if rank is None else (rank,):
            loss = net(batch(of, step)).float().sum()
            losses.append(loss * float("inf") if (of, step) == (1, BAD) else loss)
        scaler.scale(sum(losses) / len(losses)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append(layouts.digest(torch.cat([p.detach().flatten() for p in layer.parameters()])))
        scales.append(scaler.get_scale())
    return found, scales, int(optimizer.state[layer.weight]["step"])


def member(precision: str) -> tuple[list[str], list[float], int]:
    """Train as a process of a group."""
    from torch import distributed

    with quiet(), mcf.executor("torch"):
        return trained(precision, distributed.get_rank())


@pytest.mark.parametrize("precision", ["plus", "split16_sr"])
def test_one_infinity_skips_the_step_of_all(world: World, precision: str) -> None:
    first, second = world.run(2, member, precision)
    assert first == second
    weights, scales, count = first
    assert weights[BAD] == weights[BAD - 1]
    assert len(set(weights)) == STEPS - 1
    assert scales == [2.0**8, 2.0**7, 2.0**7, 2.0**7]
    assert count == STEPS - 1
    with mcf.executor("torch"):
        assert trained(precision, None) == first
