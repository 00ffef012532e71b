"""`examples/pretrain.py` as a whole: what a run of it leaves behind."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from pretraining import model, options, report, train

import mcf
from tests.examples.tiny import TINY, torch_restored, write_texts

ALL = options.STRATEGIES
# Stored bytes per bf16 parameter with a bf16 gradient (docs: one storage format per tensor).
BYTES = {"plain": 8, "8bit": 6, "bf16_sr": 8, "split16_sr": 10, "plus": 12, "master": 16}


# A run knows nothing of a strategy but its name and options; each trains in tests of its own.
FEW = ("plain", "plus", "master")


@pytest.fixture(
    scope="module", params=[FEW, pytest.param(ALL, marks=pytest.mark.slow)], ids=["few", "all"]
)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, tuple[str, ...]]:
    """One run of some strategies with two seeds: its folder, what it printed, and they."""
    from pretrain import main

    folder = tmp_path_factory.mktemp("finished")
    texts = write_texts(folder / "texts")
    printed = io.StringIO()
    arguments = [
        *TINY,
        f"--data={texts}/*.txt",
        f"--out={folder}",
        "--name=run",
        "--seeds",
        "0",
        "3",
        "--strategies",
        *request.param,
    ]
    # Of several strategies here; that it runs on the default executor is seen of one elsewhere.
    with torch_restored(), contextlib.redirect_stdout(printed), mcf.executor("torch"):
        code = main(arguments)
    assert code == 0
    return folder / "run", printed.getvalue(), request.param


def test_a_run_leaves_metrics_table_and_plots(finished):
    """One test for all files, since the run is the expensive part."""
    folder, printed, strategies = finished
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    expected = [(s, seed, step) for seed in (0, 3) for s in strategies for step in range(1, 8)]
    assert [(row["strategy"], row["seed"], row["step"]) for row in lines] == expected
    for row in lines:
        assert ("val_loss" in row) == (row["step"] in (3, 6, 7))
        assert 0 < row["train_loss"] < 10
        assert 0 < row["update_norm"]
        assert 0 <= row["lost_param"] <= 1
        assert 0 <= row["lost_exp_avg_sq"] <= 1
        assert row["edq_ratio"] == pytest.approx(row["edq"] / row["update_norm"], rel=1e-5)

    with (folder / "summary.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["strategy"], row["seed"]) for row in table] == [
        (s, seed) for seed in ("0", "3") for s in strategies
    ]
    for row in table:
        own = [
            x for x in lines if (x["strategy"], str(x["seed"])) == (row["strategy"], row["seed"])
        ]
        assert float(row["val_loss"]) == own[-1]["val_loss"]
        assert float(row["perplexity"]) == pytest.approx(math.exp(own[-1]["val_loss"]))
        assert float(row["edq_ratio"]) == pytest.approx(np.mean([x["edq_ratio"] for x in own]))
        assert float(row["lost_param"]) == pytest.approx(np.mean([x["lost_param"] for x in own]))
        # Besides the tensors of the parameter's size there is one int64 counter a tensor.
        tensors = 12
        others = 8 * tensors
        # Six of the 12 tensors are vectors of 16 elements, whose moments stay in bf16.
        others += 2 * 6 * 16 * (row["strategy"] == "8bit")
        stored = BYTES[row["strategy"]] + others / int(row["parameters"])
        assert float(row["bytes_per_param"]) == pytest.approx(stored)
        assert float(row["step_ns_per_param"]) > 0

    for strategy in strategies:
        assert f"\n{strategy} " in printed
    assert "master's seed-to-seed spread" in printed
    assert (folder / "summary.txt").read_text() in printed
    for name in ("loss.png", "edq.png"):
        image = matplotlib.image.imread(folder / name)
        assert min(image.shape[:2]) > 300
        # Curves and labels in several colours; an empty axes has black on white only.
        pixels = (image * 255).round().astype(np.uint8).view(np.uint32)
        assert len(np.unique(pixels)) > 100
    assert not list(folder.rglob("*.tmp"))
    assert not (folder / "holder.json").exists()


def test_strategies_share_initial_weights_and_first_batch(finished):
    """The first loss of a seed is the same for all strategies, and another for another seed."""
    rows = list(report.read_lines((finished[0] / "metrics.jsonl").read_text()))
    first = {seed: {r["train_loss"] for r in rows if (r["seed"], r["step"]) == (seed, 1)}
             for seed in (0, 3)}  # fmt: skip
    assert len(first[0]) == len(first[3]) == 1
    assert first[0] != first[3]


def test_precision_matters(finished):
    """The strategies differ in what the weights took: float32 master weights lose nothing."""
    rows = list(report.read_lines((finished[0] / "metrics.jsonl").read_text()))
    error = {
        s: np.mean([abs(1 - r["edq_ratio"]) for r in rows if r["strategy"] == s])
        for s in finished[2]
    }
    assert error["master"] < 1e-3
    assert error["plus"] < 1e-2 < error["plain"]


def parsed(*arguments: str) -> options.Options:
    return options.parse(["--layers=1", "--width=16", "--heads=2", "--context=8", *arguments])


def test_initial_weights_are_float32_draws_rounded_once():
    gpt = model.build(parsed(), 256, seed=4, device=torch.device("cpu"))
    drawn = torch.empty(256, 16).normal_(0, 0.02, generator=torch.Generator().manual_seed(4))
    assert gpt.tokens.weight.dtype == torch.bfloat16
    assert torch.equal(gpt.tokens.weight, drawn.bfloat16())


def test_cpu_forward_upcasts_and_gradients_are_bf16():
    """The loss is exactly that of a float32 model with the same weights; gradients are bf16."""
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu"))
    windows = torch.randint(256, (3, 9), generator=torch.Generator().manual_seed(0))
    loss = model.loss(gpt, windows)
    loss.backward()
    reference = model.build(parsed(), 256, seed=0, device=torch.device("cpu")).float()
    expected = torch.nn.functional.cross_entropy(
        reference(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
    )
    expected.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == expected.item()
    for weight, other in zip(gpt.parameters(), reference.parameters(), strict=True):
        assert weight.grad.dtype == torch.bfloat16
        assert torch.equal(weight.grad, other.grad.bfloat16())


def test_model_sees_only_the_past():
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu")).float()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5:] = 200
    before, after = gpt(tokens), gpt(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_learning_rate_rises_linearly_and_falls_to_a_tenth():
    chosen = parsed("--lr=1", "--steps=110", "--warmup=10")
    rates = [train.learning_rate(step, chosen) for step in range(1, 111)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[59] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))


def test_norm_layers_do_not_decay():
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu"))
    made = train.make_optimizer(gpt.parameters(), "plus", parsed(), track_metrics=False)
    assert [g["weight_decay"] for g in made.param_groups] == [0.1, 0]
    assert {w.dim() for w in made.param_groups[0]["params"]} == {2}
    assert {w.dim() for w in made.param_groups[1]["params"]} == {1}
    assert sum(len(g["params"]) for g in made.param_groups) == len(list(gpt.parameters()))


def test_compute_dtype_reaches_only_the_strategies_that_have_it():
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu"))
    chosen = parsed("--compute-dtype=bfloat16")
    for strategy in ALL:
        made = train.make_optimizer(gpt.parameters(), strategy, chosen, track_metrics=False)
        expected = torch.bfloat16 if strategy in ("plain", "plus") else torch.float32
        assert all(g["compute_dtype"] == expected for g in made.param_groups), strategy


def test_the_count_of_parameters_needs_no_model():
    """It is what the model is refused by that no machine can hold."""
    chosen = parsed("--layers=3", "--width=24", "--heads=3", "--context=7")
    gpt = model.build(chosen, 300, seed=0, device=torch.device("cpu"))
    assert model.parameters(chosen, 300) == sum(w.numel() for w in gpt.parameters())


def test_clip_bounds_the_gradient(pretrain, bare):
    """AdamW's eps keeps a gradient of norm 1e-12 from being blown up to a full step."""
    norms = []
    for clip in ("1", "1e-12"):
        folder = pretrain("--strategies=plus", f"--clip={clip}", name=f"clip{clip}")[1]
        norms.append(report.read_lines((folder / "metrics.jsonl").read_text())[0]["update_norm"])
    assert norms[1] < 0.1 * norms[0]
