"""accelerate prepares, wraps, saves and loads our optimizers without a bit's difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mcf.optim
from tests.integrations.packages import package
from tests.integrations.training import Model, assert_equal, kept, tokens

accelerate = package("accelerate")


def run(precision: str, **options: Any) -> tuple[Any, Any, Any, Any, Any]:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Model()
    optimizer = mcf.optim.AdamW(
        model.named_parameters(), 1e-2, precision=precision, max_grad_norm=1.0, **options
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=8)
    data = torch.utils.data.DataLoader(tokens(32), batch_size=2)
    return accelerator, *accelerator.prepare(model, optimizer, data, schedule)


def train(accelerator: Any, model: Any, optimizer: Any, data: Any, schedule: Any) -> None:
    """Eight updates of two micro-batches each."""
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("precision", ["plus", "split16_sr", "4bit"])
def test_state_is_saved_and_loaded(tmp_path: Path, precision: str) -> None:
    first = run(precision)
    train(*first)
    _, model, optimizer, _, schedule = first
    assert {int(s["step"]) for s in optimizer.state.values()} == {8}
    assert schedule.get_last_lr() == pytest.approx([1e-3])
    first[0].save_state(str(tmp_path))
    before = kept(model, optimizer)
    train(*first)
    second = run(precision)
    second[0].load_state(str(tmp_path))
    assert_equal(kept(second[1], second[2]), before)
    train(*second)
    assert_equal(kept(second[1], second[2]), kept(model, optimizer))


def test_what_is_prepared_trains_as_the_optimizer_alone() -> None:
    accelerator, model, optimizer, data, schedule = run("plus")
    train(accelerator, model, optimizer, data, schedule)
    alone = Model()
    plain = mcf.optim.AdamW(alone.named_parameters(), 1e-2, precision="plus", max_grad_norm=1.0)
    rates = torch.optim.lr_scheduler.LinearLR(plain, 1.0, 0.1, total_iters=8)
    rows = tokens(32)
    for k in range(0, 32, 4):
        for micro in (rows[k : k + 2], rows[k + 2 : k + 4]):
            (alone(micro) / 2).backward()
        plain.step()
        rates.step()
        plain.zero_grad()
    assert_equal(kept(model, optimizer), kept(alone, plain))


@pytest.mark.parametrize("cls", [mcf.optim.AdamW, torch.optim.AdamW], ids=["ours", "torch"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_skips_the_step(cls: Any, fused: bool) -> None:
    """AcceleratedOptimizer replaces `optimizer.step` for the time of `scaler.step`.

    It takes a step that was called for one that was made, which those that skip inside do not bear
    out: `step_was_skipped` is wrong of every optimizer with `fused=True`, torch's too.
    """
    from accelerate.optimizer import AcceleratedOptimizer

    accelerate.Accelerator(cpu=True)
    model = Model(dtype=torch.float32)
    optimizer = cls(model.parameters(), 1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1)
    wrapped = AcceleratedOptimizer(optimizer, scaler=scaler)
    for bad in (False, True, False):
        scaler.scale(model(tokens(4))).backward()
        if bad:
            model.head.bias.grad[0] = torch.inf
        wrapped.step()
        assert wrapped.step_was_skipped is (bad and not fused)
        wrapped.zero_grad()
    assert {int(s["step"]) for s in optimizer.state.values()} == {2}
