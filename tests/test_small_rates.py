"""`benchmarks/small_rates.py` and `grpo.py`: their rows, resumed runs, and what is told of them.

By a few steps of small models on the torch executor, which compiles nothing.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mcf

ROOT = Path(__file__).resolve().parents[1]
STUDIES = {"small_rates": "loss", "grpo": "right"}
PRECISIONS = ["master", "split16_sr", "bf16_sr", "plain"]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("matplotlib", "tqdm", "filelock"):
        pytest.importorskip(package, reason="an extra of the examples and benchmarks")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def report(benchmarks: None) -> ModuleType:
    return importlib.import_module("paired_report")


def study(name: str, path: Path, *more: str) -> list[dict[str, Any]]:
    """Run a study with a page and a picture beside its results; return its rows."""
    module, report = importlib.import_module(name), importlib.import_module("paired_report")
    page = path.with_suffix(".md")
    page.write_text("above\n" + "\nplaceholder\n".join(report.markers(name)) + "\nbelow\n")
    files = ["--results", path, "--out", path.parent, "--page", page]
    with mcf.executor("torch"):
        module.main(
            ["--quick", *map(str, files), "--image", str(path.with_suffix(".png")),
             "--rates", "1e-6", "--seeds", "0", "--precisions", *PRECISIONS, *more]
        )  # fmt: skip
    rows = importlib.import_module("strategy_report").read(path)
    return [{**row, "seconds": None, "date": None} for row in rows]


@pytest.mark.parametrize("name", list(STUDIES))
def test_study_cut_short_resumes_to_the_same_rows(
    name: str, tmp_path: Path, report: ModuleType
) -> None:
    whole = study(name, tmp_path / "whole.csv")
    assert [row["precision"] for row in whole] == PRECISIONS
    assert all(row[k] for row in whole for k in ("commit", "device", "torch", "python", "numba"))
    assert report.shares(whole, "served", STUDIES[name])["master", 1e-6] == [1.0]
    assert float(whole[0]["distance"]) == 0
    unbiased, plain = whole[1], whole[3]
    assert float(plain["served_changed"]) < float(unbiased["stored_changed"])
    assert float(unbiased["distance"]) < 0.01 < 0.9 < float(plain["distance"])
    page = (tmp_path / "whole.md").read_text()
    assert page.startswith("above\n")
    assert page.endswith("\nbelow\n")
    assert "`split16_sr`" in page
    assert "placeholder" not in page
    assert (tmp_path / "whole.png").stat().st_size > 0

    # The rows of the second and third training are there; the start is read from its file.
    lines = (tmp_path / "whole.csv").read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.csv"
    cut.write_text("".join([lines[0], *lines[2:4]]))
    resumed = study(name, cut)
    assert [row["precision"] for row in resumed] == ["split16_sr", "bf16_sr", "master", "plain"]
    assert sorted(resumed, key=str) == sorted(whole, key=str)

    # A row that training does not give again is of another machine.
    other = tmp_path / "other.csv"
    other.write_text("".join(lines[:2]).replace(whole[0]["start"], "0" * 12))
    with pytest.raises(SystemExit, match=r"master at rate 1e-06, seed 0 has start 0{12}, and"):
        study(name, other)
    assert len(other.read_text().splitlines()) == 2


def test_sample_with_uniform_numbers_draws_by_the_distribution(benchmarks: None) -> None:
    """The tokens of 0, 1/2 and 1 - 2^-53 are the first, one in the middle and the last."""
    import torch

    grpo = importlib.import_module("grpo")
    from pretraining import model, options

    gpt = model.build(options.parse(grpo.QUICK), grpo.VOCABULARY, 0, torch.device("cpu"))
    with torch.no_grad():
        for p in gpt.parameters():
            p.zero_()  # All tokens have the same probability.
    uniform = torch.tensor([[0.0, 0.5 + 2**-20, 1 - 2**-53], [1 / 12 + 2**-20, 0.25, 0.75]])
    prompts = grpo.sums()[[1234, 9999], :6]
    assert prompts.tolist() == [[1, 2, 10, 3, 4, 11], [9, 9, 10, 9, 9, 11]]
    assert grpo.sums()[[1234, 9999], 6:].tolist() == [[0, 4, 6], [1, 9, 8]]
    found = grpo.sample(gpt, prompts, uniform.double())
    assert found[:, :6].tolist() == prompts.tolist()
    assert found[0, 6:].tolist() == [0, 6, 11]
    assert found[1, 6].item() == 1


def test_shares_of_paired_rows_have_standard_errors(report: ModuleType) -> None:
    def row(precision: str, seed: str, served: float, start: str = "a") -> dict[str, Any]:
        return {"precision": precision, "rate": "1e-06", "seed": seed, "start": start,
                "start_loss": "2.0", "served_loss": str(served)}  # fmt: skip

    rows = [
            row("master", "0", 1.5), row("master", "1", 1.0), row("plain", "0", 1.75),
            row("plain", "1", 1.25), row("plain", "2", 0.0), row("plain", "0", 0.0, "b")
    ]  # fmt: skip
    found = report.shares(rows, "served", "loss")
    assert found == {("master", 1e-6): [1.0, 1.0], ("plain", 1e-6): [0.5, 0.75]}
    # sqrt(2) * 0.125 / sqrt(2).
    assert report.mean_with_error(found["plain", 1e-6]) == "0.62 ± 0.12"
    assert report.mean_with_error([0.5, 0.75], sign="+") == "+0.62 ± 0.12"
    assert report.mean_with_error([0.5]) == "0.5000"
    assert report.mean_with_error([0.25, 0.25 + 2**-20]) == "0.2500 ± 0.0000"


@pytest.mark.parametrize("name", list(STUDIES))
def test_page_has_the_tables_of_its_rows(name: str, report: ModuleType) -> None:
    page = (ROOT / "docs" / "small_rates.md").read_text()
    begin, end = report.markers(name)
    text = page.split(begin)[1].split(end)[0]
    path = ROOT / "docs" / re.findall(r"\((\.\./benchmarks/results/\S+\.csv)\)", text)[0]
    rows = importlib.import_module("strategy_report").read(path)
    made = {"small_rates": report.fine_tuning_text, "grpo": report.rewards_text}[name]
    assert text.strip() == made(rows, path).strip()
