"""transformers' Trainer trains bf16 models with our optimizers, and goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mcf.optim
from tests.integrations.packages import package
from tests.integrations.training import assert_equal, kept, llama, rows

transformers = package("transformers")
package("accelerate")

BF16 = torch.bfloat16


def trainer(folder: Path, options: dict[str, Any], make: Any = None, **arguments: Any) -> Any:
    given = {
        "output_dir": str(folder), "max_steps": 6, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "learning_rate": 1e-2, "weight_decay": 0.1,
        "lr_scheduler_type": "cosine", "warmup_steps": 2, "logging_steps": 1, "save_strategy": "no",
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False,
    }  # fmt: skip
    return transformers.Trainer(
        model=llama(),
        args=transformers.TrainingArguments(**{**given, **arguments}),
        train_dataset=rows(32),
        optimizer_cls_and_kwargs=(make or mcf.optim.AdamW, {"lr": 1e-2, **options}),
    )


def result(run: Any) -> dict[str, Any]:
    return kept(run.model, run.optimizer)


@pytest.mark.parametrize("precision", ["plus", "split16_sr", "8bit"])
def test_goes_on_to_the_same_bits(tmp_path: Path, precision: str) -> None:
    options = {"precision": precision}
    whole = trainer(tmp_path / "whole", options)
    whole.train()
    losses = [row["loss"] for row in whole.state.log_history if "loss" in row]
    assert losses[-1] < losses[0]
    assert {p.dtype for p in whole.model.parameters()} == {BF16}
    trainer(tmp_path / "cut", options, save_strategy="steps", save_steps=3).train()
    again = trainer(tmp_path / "cut", options, save_strategy="steps", save_steps=3)
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-3"))
    assert again.state.global_step == 6
    assert_equal(result(again), result(whole))


def test_weight_decay_by_parameter(tmp_path: Path) -> None:
    run = trainer(tmp_path, {"precision": "plus"}, max_steps=1)
    run.train()
    assert [group["weight_decay"] for group in run.optimizer.param_groups] == [0.1, 0.0]
    steps = {int(state["step"]) for state in run.optimizer.state.values()}
    assert steps == {1}


def test_clipping_in_the_step(tmp_path: Path) -> None:
    """The Trainer's clipping off, ours on: gradients as they are, their exact norm."""
    options = {"precision": "plus", "max_grad_norm": 0.01}
    run = trainer(tmp_path / "in", options, max_grad_norm=0.0, max_steps=2)
    run.train()
    assert run.optimizer.optimizer.grad_norm.item() > 0.01
    # The Trainer's own clipping writes bf16 gradients, and is not refused.
    by_trainer = trainer(tmp_path / "by", {"precision": "plus"}, max_grad_norm=0.01, max_steps=2)
    by_trainer.train()
    assert {int(state["step"]) for state in by_trainer.optimizer.state.values()} == {2}


def test_micro_batches_in_float32(tmp_path: Path) -> None:
    """bf16 weights whose gradients autograd adds up in float32; the Trainer clips those."""
    if not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("grad_dtype came with torch 2.10")
    run = trainer(tmp_path, {"precision": "plus"}, gradient_accumulation_steps=4, max_steps=2)
    for p in run.model.parameters():
        p.grad_dtype = torch.float32
    seen = set()

    class Look(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, model: Any, **kwargs: Any) -> None:
            seen.update(p.grad.dtype for p in model.parameters())

    run.add_callback(Look())
    run.train()
    assert seen == {torch.float32}
    assert {p.dtype for p in run.model.parameters()} == {BF16}


def test_an_accumulator_refuses_its_clipping(tmp_path: Path) -> None:
    """The Trainer multiplies gradients by min(1, c / norm) even where it only reads the norm."""
    run = trainer(tmp_path, {"precision": "plus"}, max_steps=1, max_grad_norm=0.0)
    mcf.optim.GradientAccumulator(run.create_optimizer())
    with pytest.raises(RuntimeError, match=r"grad_dtype = torch.float32"):
        run.train()


def test_schedule_free_is_told_to_evaluate(tmp_path: Path) -> None:
    run = trainer(
        tmp_path, {}, mcf.optim.ScheduleFreeAdamW, lr_scheduler_type="constant", warmup_steps=0
    )
    run.train()
    training = run.evaluate(rows(4))["eval_loss"]
    run.optimizer.train()
    run.optimizer.eval()
    assert run.evaluate(rows(4))["eval_loss"] == training


def test_metrics_in_its_log(tmp_path: Path) -> None:
    """As docs/how_to/transformers.md shows it: `Trainer.log` takes the flat metrics."""

    class Logged(transformers.Trainer):
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if "loss" in logs:
                logs |= self.optimizer.optimizer.metrics(flat=True)
            super().log(logs, *args, **kwargs)

    run = trainer(tmp_path, {"precision": "plus", "track_metrics": True}, warmup_steps=0)
    run.__class__ = Logged
    run.train()
    logged = [row for row in run.state.log_history if "loss" in row]
    assert len(logged) == 6
    assert all(0.9 < row["edq_ratio"] <= 1.1 and "groups/1/edq" in row for row in logged)
