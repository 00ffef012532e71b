"""A model whose states are kept elsewhere, by copies that are made as late as they may be."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mcf.optim import CPUOffloadOptimizer
from mcf.optim.companions.transit import Transfers
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, random


class Late(Transfers):
    """Tensors of the CPU as if they were elsewhere; nothing is copied before somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        # In the order of a stream: what is copied where.
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.sent = 0

    def is_away(self, p: Tensor) -> bool:
        return True

    def host_like(self, t: Tensor) -> Tensor:
        return torch.full_like(t, torch.nan)

    def download(self, there: Tensor, here: Tensor) -> Any:
        here.fill_(torch.nan)
        mine = (there, here)
        self.waiting.append(mine)
        self.sent += 1
        return lambda: self._until(mine)

    def upload(self, here: Tensor, there: Tensor) -> None:
        # What was there before is not to be read any more; and torch counts the writing.
        with torch.no_grad():
            there.fill_(torch.nan)
        self.waiting.append((here, there))

    def join(self) -> None:
        self._until(None)

    def settle(self) -> None:
        self._until(None)

    def _until(self, last: Any) -> None:
        """As a stream does: what was asked for before comes before."""
        if last is not None and not any(last is each for each in self.waiting):
            return
        while self.waiting:
            there, here = first = self.waiting.pop(0)
            here.data.copy_(there)
            if first is last:
                return


# Of the model's parameters those that stay are none, or some.
ALL, SMALL = {"minimal_size": 0}, {"minimal_size": 20}


class Offload(CPUOffloadOptimizer):
    _transfers_class = Late


def model() -> nn.Module:
    layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
    with torch.no_grad():
        for k, p in enumerate(layers.parameters()):
            p.copy_(random(p.shape, FP32, k, 0.3))
    net = layers.to(BF16)
    net[2].to(FP32)
    return net


def backward(net: nn.Module, t: int) -> None:
    x = net[1](net[0](random((4, 8), BF16, t)))
    net[3](net[2](x.float()).to(BF16)).float().square().mean().backward()


def groups(net: nn.Module) -> list[dict[str, Any]]:
    named = list(net.named_parameters())
    return [{"params": named[:3]}, {"params": named[3:], "lr": 0.05}]


def train(make: Any, micro: int = 1, clip: float | None = None, count: int = 3) -> dict[str, Any]:
    """The weights, states and rates after some steps, of as many micro-batches each."""
    net = model()
    optimizer = make(groups(net))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for t in range(count):
        for k in range(micro):
            backward(net, 10 * t + k)
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return found(net, optimizer)


def found(net: nn.Module, optimizer: Any) -> dict[str, Any]:
    state = optimizer.state_dict()
    return {
        **{n: p.detach().clone() for n, p in net.named_parameters()},
        **{f"{k}.{n}": copy.deepcopy(t) for k, e in state["state"].items() for n, t in e.items()},
        "rates": torch.tensor([g["lr"] for g in optimizer.param_groups]),
        "saved rates": torch.tensor([g["lr"] for g in state["param_groups"]]),
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, t in a.items():
        assert_same_bits(t, b[name], name)
