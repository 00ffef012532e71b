"""The README runs as pasted, and its table is that of the results' files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import statistics
from pathlib import Path
from typing import Any

import torch

import mcf.optim
from mcf import plan
from tests.helpers.pages import BLOCK

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
NAMES = ("split16_sr", "bf16_sr", "8bit")


def row(title: str) -> list[str]:
    """Return the cells of a line of the table, without its title."""
    (line,) = (x for x in TEXT.splitlines() if x.startswith(f"| {title}"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_one_screen_of_lines() -> None:
    assert len(TEXT.splitlines()) <= 130


def test_blocks_run_in_one_namespace_and_print_their_comments() -> None:
    blocks = [match[1] for match in BLOCK.finditer(TEXT)]
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    comments = re.findall(r"^print\(.*\)  # (.*)$", "".join(blocks), re.MULTILINE)
    assert len(comments) > 1
    assert said.getvalue().splitlines() == comments


def test_bytes_are_those_that_a_step_leaves() -> None:
    found = []
    for name in NAMES:
        p = torch.nn.Parameter(torch.ones(2, 4, dtype=torch.bfloat16))
        p.grad = torch.ones_like(p)
        optimizer = mcf.optim.AdamW([("p", p)], precision=name)
        optimizer.step()
        states = [t for t in optimizer.state[p].values() if t.dim()]
        found.append(sum(t.nbytes for t in [p, p.grad, *states]) / p.numel())
    planned = {r.name: r for r in plan.rows(7e9)}
    found.insert(0, planned[plan.FLOAT32].per_param)
    assert found[1:] == [planned[name].per_param for name in NAMES]
    assert row("bytes per parameter, gradient included") == [f"{b:g}" for b in found]
    # A gradient is float32 in the first column.
    without = [b - (2 if k else 4) for k, b in enumerate(found)]
    assert row("bytes per parameter, without") == [f"{b:g}" for b in without]
    assert row("weights, gradients and states") == [f"{7 * b:g} GB" for b in found]


def test_losses_are_those_of_the_study() -> None:
    lines = (RESULTS / "quality-amd-epyc-26-2-avx512.jsonl").read_text().splitlines()
    runs = [r for r in map(json.loads, lines) if r["task"] == "text" and r["beta2"] == "0.999"]
    losses = {(r["variant"], r["seed"]): r["val_loss"] for r in runs}
    found = ["0"]
    for name in NAMES:
        gaps = [x - losses["master", s] for (v, s), x in losses.items() if v == name]
        assert len(gaps) == 24
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        found.append(f"{statistics.fmean(gaps):+.4f} ± {error:.4f}")
    assert row("validation loss minus") == found


def test_times_are_those_of_the_benchmark() -> None:
    path = RESULTS / "optimizer_step-amd-epyc-26-2-avx512.csv"
    assert path.relative_to(ROOT).as_posix() in TEXT
    lines = [x for x in path.read_text().splitlines() if not x.startswith("#")]
    ratios = {
        r["variant"]: float(r["ratio to fused fp32"])
        for r in csv.DictReader(lines)
        if r["size"] == "300x"
    }
    found = ["1", *(f"{ratios[name]:g}" for name in NAMES)]
    assert row("time of a step on a CPU, 300 tensors") == found
