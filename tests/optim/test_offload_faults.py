"""States in the CPU's memory when something goes wrong: signals, errors, copies read early."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import AdamW
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, parameter
from tests.optim.offloading import ALL, SMALL, Offload, backward, model

pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.mark.parametrize("whole", [False, True])
def test_an_interrupt_finds_the_step_done(whole: bool) -> None:
    """A signal when the first weight is sent back, or when the optimizer has stepped all copies."""

    class Interrupted(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise Interrupted

    options = {"lr": 0.01, "max_grad_norm": 1e6 if whole else None}
    nets = model(), model()
    optimizers = (
        Offload(nets[0].parameters(), AdamW, **ALL, **options),
        AdamW(nets[1].parameters(), **options),
    )
    for net in nets:
        backward(net, 0)
    inner = optimizers[0].optimizer
    inner.register_step_post_hook(lambda *_: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Interrupted):
            optimizers[0].step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    optimizers[1].step()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert_same_bits(p.detach(), q.detach())


@pytest.mark.sampled
@pytest.mark.parametrize("freed", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("where", ["upload", "kernel", "rest"])
def test_a_step_after_an_error_takes_the_others_alone(
    where: str, whole: bool, freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error when the third weight is sent back, or when a copy or what has none is stepped."""
    options = {"lr": 0.01, "max_grad_norm": 1e-2 if whole else None}
    nets = model(), model()
    mine = Offload(nets[0].parameters(), AdamW, **SMALL, offload_gradients=freed, **options)
    right = AdamW(nets[1].parameters(), **options)
    calls = []

    def failing(count: int, work: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == count:
                raise MemoryError
            return work(*args, **options)

        return call

    for net in nets:
        backward(net, 0)
    transfers = mine._transfers
    with monkeypatch.context() as patch:
        if where == "upload":
            patch.setattr(transfers, "upload", failing(2, transfers.upload))
        elif where == "kernel":
            patch.setattr(mine.optimizer, "_take", failing(1 if whole else 2, mine.optimizer._take))
        else:
            patch.setattr(mine.optimizer, "step", failing(1, mine.optimizer.step))
        with pytest.raises(MemoryError):
            mine.step()
        mine.step()
    right.step()
    for _ in range(2):
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            assert_same_bits(p.detach(), q.detach())
            assert_same_bits(mine.master_weight(p), right.master_weight(q))
        for net, optimizer in zip(nets, (mine, right), strict=True):
            optimizer.zero_grad()
            backward(net, 1)
            optimizer.step()


def test_nothing_is_left_by_a_constructor_that_raises() -> None:
    p = parameter((4, 4), BF16)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        Offload([p], AdamW, lr=-1.0, **ALL)
    whole = torch.zeros(8, 4, dtype=BF16)
    parts = [Parameter(whole[:5]), Parameter(whole[3:])]
    with pytest.raises(ValueError, match="shares memory with"):
        Offload(parts, AdamW, lr=0.1, **ALL)
    for each in (p, *parts):
        each.sum().backward()
        assert each.grad is not None
        assert not each._post_accumulate_grad_hooks
