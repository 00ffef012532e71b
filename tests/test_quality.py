"""`benchmarks/quality.py`: rows that an interrupted study resumes to, and what is reported of them.

By default one task for a few steps on the torch executor, which compiles nothing.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mcf

TINY = ["--steps", "6", "--stack", "2", "--seeds", "4", "--beta2", "0.99", "0.999"]


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("filelock", reason="an extra of the examples and benchmarks")
    folder = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    # By its file: a clone's folder may have this name, too.
    spec = importlib.util.spec_from_file_location("quality_study", folder / "quality.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def study(quality: ModuleType, path: Path, *more: str) -> list[dict[str, Any]]:
    with mcf.executor("torch"):
        quality.main([*TINY, "--results", str(path), *more])
    rows = quality.read(path)
    return sorted(({**row, "cpu_seconds": None} for row in rows), key=lambda row: json.dumps(row))


@pytest.mark.slow
def test_a_study_resumes_to_the_same_rows(
    quality: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tasks", "pieces", "--strategies", "master", "8bit", "no such"]
    whole = study(quality, tmp_path / "whole.jsonl", *options)
    assert len(whole) == 2 * 4 * 2
    assert "no such is left out" in capsys.readouterr().out
    assert all(row["device"] and row["torch"] and row["torchao"] for row in whole)
    # Cut inside the second stack; a strategy comes later than the other.
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(line for line in lines[:11] if '"variant": "master"' in line))
    assert study(quality, cut, *options) == whole
    # What is there is not trained again.
    before = cut.read_text()
    study(quality, cut, *options)
    assert cut.read_text() == before


def test_what_is_reported(quality: ModuleType) -> None:
    rows = [
        {"task": "text", "steps": 6, "beta2": b, "variant": v, "seed": s, "val_loss": loss}
        for b, v, s, loss in [
            ("0.9", "master", "0", 1.0), ("0.9", "master", "1", 2.0), ("0.99", "master", "0", 4.0),
            ("0.9", "8bit", "0", 1.5), ("0.9", "8bit", "1", 2.25), ("0.99", "8bit", "0", 3.0),
            # No pair.
            ("0.9", "8bit", "2", 7.0), ("0.99", "8bit", "1", 7.0),
        ]
    ]  # fmt: skip
    found = quality.report.differences(rows)
    columns = [found["8bit", f"text, 6 steps, beta2={b}"] for b in ("0.9", "0.99")]
    assert columns == [{"0": 0.5, "1": 0.25}, {"0": -1.0}]
    # (.5 + .25) / 2, and sqrt(2) * .125 / sqrt(2).
    assert quality.report.told([0.5, 0.25]) == "+0.3750 ± 0.1250 (2)"
    assert quality.report._pooled(columns).startswith("-0.2500 ± nan (1)")


def test_stacks_are_whole(quality: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        quality.main(["--seeds", "12"])
    assert "--seeds 12 must be multiples of --stack 8" in capsys.readouterr().err


@pytest.mark.slow
def test_both_tasks_and_the_strategies_of_others(quality: ModuleType, tmp_path: Path) -> None:
    rows = study(quality, tmp_path / "all.jsonl")
    names = {row["variant"] for row in rows}
    assert {"master", "plus", "bf16_sr", "8bit", "torch fp32", "torch bf16"} <= names
    assert len(rows) == 2 * 2 * 4 * len(names)
