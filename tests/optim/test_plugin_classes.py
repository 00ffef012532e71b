"""Classes of others under `collage`: what they keep in their groups and in dtypes of their own.

Mutants these tests catch: a count in a group that begins anew in every step, one that counts
parameters, a state that comes back in another dtype.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import collage
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, parameters, random

pytestmark = pytest.mark.usefixtures("on_torch")


class Counting(torch.optim.Optimizer):
    """As pytorch-optimizer's: the count of steps is the group's, matrices lie in lists."""

    def __init__(self, params: Any, lr: float = 0.125, own: torch.dtype = FP32) -> None:
        super().__init__(params, {"lr": lr, "own": own})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p, dtype=group["own"])
                    state["lists"] = [torch.zeros(2), []]
                # In bf16 torch itself would refuse what has become another dtype.
                state["average"].lerp_(p.grad.to(group["own"]), 0.5)
                state["lists"][0] += 1
                p -= group["lr"] / group["step"] * state["average"]
                p += state["lists"][0].sum() * 2.0**-10


class Together(Counting):
    """Keeps a sum over all parameters of a group, as Prodigy does."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            total = sum(float(p.grad.sum()) for p in group["params"])
            group["d"] = group.get("d", 0.0) + total


class Asking(Counting):
    """Reads its groups before torch has made any, as pytorch-optimizer's Muon."""

    def __init__(self, params: Any, lr: float = 0.125) -> None:
        assert all("use_muon" in group for group in params)
        super().__init__(params, lr)


def run(optimizer: torch.optim.Optimizer, start: int, count: int) -> None:
    for t in range(start, start + count):
        for k, p in enumerate(parameters(optimizer)):
            p.grad = random(p.shape, BF16, 10 * t + k).to(p.dtype)
        with torch.no_grad():
            optimizer.step()


@pytest.mark.parametrize("own", [FP32, BF16], ids=str)
def test_the_bits_of_the_class(own: torch.dtype) -> None:
    start = [random((8,), BF16, k) for k in range(3)]
    theirs = [Parameter(t.float()) for t in start]
    right = Counting([{"params": theirs[:2]}, {"params": theirs[2:], "lr": 0.25}], own=own)
    run(right, 0, 6)
    mine = [Parameter(t.clone()) for t in start]
    groups = [{"params": mine[:2]}, {"params": mine[2:], "lr": 0.25}]
    optimizer = collage(Counting, groups, precision="master", own=own)
    run(optimizer, 0, 3)
    # A checkpoint has all of it.
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer = collage(Counting, groups, precision="master", own=own)
    optimizer.load_state_dict(saved)
    run(optimizer, 3, 3)
    assert [group["step"] for group in optimizer.param_groups] == [6, 6]
    for p, q in zip(mine, theirs, strict=True):
        assert_same_bits(optimizer.master_weight(p), q.detach())


def test_what_is_kept_of_all_parameters_is_refused() -> None:
    p = Parameter(torch.zeros(3, dtype=BF16))
    with pytest.raises(ValueError, match="Together keeps d of all parameters of a group together"):
        collage(Together, [p])
    with pytest.raises(TypeError, match="Asking cannot be made for a list of parameters: Runtime"):
        collage(Asking, [p])
