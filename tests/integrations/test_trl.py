"""TRL's SFTTrainer fine-tunes a bf16 model with our optimizer."""

from __future__ import annotations

from pathlib import Path

import torch

import mcf.optim
from tests.integrations.packages import package
from tests.integrations.training import VOCABULARY, llama, tokens

package("transformers")
trl = package("trl")
datasets = package("datasets")
tokenizers = package("tokenizers")


def test_fine_tunes(tmp_path: Path) -> None:
    import transformers

    words = {f"w{k}": k for k in range(VOCABULARY)}
    model = tokenizers.models.WordLevel(words, unk_token="w0")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), pad_token="w0", eos_token="w1"
    )
    rows = datasets.Dataset.from_dict({"input_ids": tokens(16).tolist()})
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, logging_steps=1,
        report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no",
        gradient_checkpointing=False, dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    run = trl.SFTTrainer(
        model=llama(),
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=(mcf.optim.AdamW, {"lr": 1e-2, "precision": "split16_sr"}),
    )
    run.train()
    losses = [row["loss"] for row in run.state.log_history if "loss" in row]
    assert losses[-1] < losses[0]
    assert {p.dtype for p in run.model.parameters()} == {torch.bfloat16}
    assert {int(s["step"]) for s in run.optimizer.state.values()} == {3}
