"""Lightning's automatic and manual optimization, its bf16 precision, clipping and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mcf.optim
from tests.integrations.packages import package
from tests.integrations.training import Model, assert_equal, kept, tokens

lightning = package("lightning")


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """The small model in float32, which `precision="bf16-true"` makes bf16."""

    def __init__(self, manual: bool = False, **options: Any) -> None:
        super().__init__()
        self.model = Model(dtype=torch.float32)
        self.automatic_optimization = not manual
        self.options = options

    def training_step(self, batch: torch.Tensor, _: int) -> Any:
        loss = self.model(batch)
        if self.automatic_optimization:
            self.log("loss", loss)
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()
        return None

    def configure_optimizers(self) -> Any:
        optimizer = mcf.optim.AdamW(self.named_parameters(), 1e-2, **self.options)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=8)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def optimizer_step(self, epoch: int, batch: int, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure)
        if self.options.get("track_metrics"):
            self.log_dict(optimizer.metrics(flat=True))


def fit(module: Module, folder: Path, steps: int, ckpt: Path | None = None, **more: Any) -> Any:
    trainer = lightning.Trainer(
        **{"accelerator": "cpu", "precision": "bf16-true", **more},
        max_steps=steps,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # One batch again and again: which one comes after a resume is Lightning's to know, not ours.
    data = torch.utils.data.DataLoader(tokens(4).repeat(4, 1), batch_size=4)
    trainer.fit(module, data, ckpt_path=ckpt, weights_only=None if ckpt is None else True)
    return trainer


def result(module: Module, trainer: Any) -> dict[str, Any]:
    return kept(module, trainer.optimizers[0])


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
@pytest.mark.parametrize("precision", ["plus", "split16_sr"])
def test_goes_on_to_the_same_bits(tmp_path: Path, precision: str, manual: bool) -> None:
    whole = Module(manual, precision=precision)
    expected = result(whole, fit(whole, tmp_path, 8))
    assert {p.dtype for p in whole.parameters()} == {torch.bfloat16}
    first = Module(manual, precision=precision)
    fit(first, tmp_path, 4).save_checkpoint(tmp_path / "cut.ckpt")
    again = Module(manual, precision=precision)
    found = result(again, fit(again, tmp_path, 8, tmp_path / "cut.ckpt"))
    assert_equal(found, expected)


def test_metrics_and_accumulation_and_clipping(tmp_path: Path) -> None:
    """Lightning's clipping writes the gradients; the closure of its step is ours to call."""
    module = Module(precision="plus", track_metrics=True)
    more = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    trainer = fit(module, tmp_path, 3, **more)
    assert {int(s["step"]) for s in trainer.optimizers[0].state.values()} == {3}
    assert trainer.logged_metrics["edq_ratio"] > 0.9
    assert "groups/0/lost_param" in trainer.logged_metrics


def test_mixed_precision_clips_unless_fused(tmp_path: Path) -> None:
    """`fused=True` says that the step unscales itself, so Lightning leaves clipping to it."""
    module = Module(precision="plus", max_grad_norm=0.5, fused=True)
    trainer = fit(module, tmp_path, 2, precision="bf16-mixed")
    assert trainer.optimizers[0].grad_norm.item() > 0
