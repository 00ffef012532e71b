"""Shards whose addresses are 4, 8 and 12 bytes off 16, under torch's own engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.optim.sharding.shards import like, local
from tests.helpers.processes import World
from tests.optim.sharding import engines
from tests.optim.sharding.engines import Engine, quiet

SEVERAL: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"lr": 2e-2, "precision": "plus", "max_grad_norm": 1.0}),
    ("AdamW", {"lr": 2e-2, "precision": "stochastic"}),
]


def off(t: Tensor, count: int) -> Tensor:
    """A copy whose address is so many bytes above a multiple of 16."""
    words = torch.empty(t.numel() + 16, dtype=t.dtype)
    start = (count - words.data_ptr()) % 16 // t.element_size()
    return words[start : start + t.numel()].view(t.shape).copy_(t)


def moved(made: Engine) -> set[int]:
    """Give a model of `fully_shard` parts at odd addresses; how far they are off."""
    state = {}
    for k, (name, p) in enumerate(made.named()):
        state[name] = like(p, off(local(p.detach()), 4 * (k % 3 + 1)))
    # The engine takes what is assigned as its own, unless it has to be padded.
    made.model.load_state_dict(state, assign=True)
    return {local(p.detach()).data_ptr() % 16 for _, p in made.named()}


def trained(several: list[tuple[str, dict[str, Any]]]) -> Any:
    """Digests after three steps, and how far parameters and gradients were off 16."""
    found, params, grads = [], set(), set()
    with quiet(), mcf.executor("numba"):
        for make, given in several:
            made = engines.fsdp()
            params |= moved(made)
            optimizer = getattr(mcf.optim, make)(made.named(), **given)
            made.train(optimizer, 3)
            grads |= {local(p.grad).data_ptr() % 16 for _, p in made.named() if p.grad is not None}
            found.append(made.digests(optimizer))
    return found, sorted(params), sorted(grads)


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_the_bits_of_one_process(world: World, size: int) -> None:
    with mcf.executor("numba"):
        expected = engines.trained("plain", {}, SEVERAL)
    every = world.run(size, trained, SEVERAL)
    assert [found for found, *_ in every] == [expected] * size
    # What this is about was there: parameters where they were put, gradients as the engine cuts
    # its buffer.
    assert {4, 8, 12} <= {x for _, params, _ in every for x in params}
    assert {4, 8, 12} & {x for *_, grads in every for x in grads}
