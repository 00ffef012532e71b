"""The GPU day: its rows, its time limits, its page; in small, where there is no GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("gpu_day"), importlib.import_module("gpu_sections")


def test_steps_of_a_small_day(parts: tuple[ModuleType, ModuleType]) -> None:
    _, sections = parts
    size = sections.SMALL._replace(precisions=("plus", "4bit"), rounds=1)
    found = {(r.case, r.quantity): r.value for r in sections.steps(torch.device("cpu"), size)}
    assert found["plus", "bytes/param"] == 12
    assert found["4bit", "bytes/param"] == 5.5
    for name in ("plus", "4bit"):
        assert found[name, "ns/param"] == pytest.approx(found[name, "ms"] * 1e6 / size.params)
        assert found[name, "share of the copy's speed"] > 0


def test_a_day_takes_less_than_eight_minutes(parts: tuple[ModuleType, ModuleType]) -> None:
    assert sum(seconds for _, seconds in parts[1].SECTIONS.values()) < 480


@pytest.mark.parametrize(
    ("program", "seconds", "ended"),
    [
        ("print('[\"a\", \"ms\", 1.5]'); print('a word')", 60, "complete"),
        ('print(\'["a", "ms", 1.5]\', flush=True); import time; time.sleep(60)', 3, "time was up"),
        ('print(\'["a", "ms", 1.5]\', flush=True); raise SystemExit(7)', 60, "exit status 7"),
    ],
)
def test_what_a_section_found_is_kept(
    parts: tuple[ModuleType, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program: str,
    seconds: float,
    ended: str,
) -> None:
    day, _ = parts
    (tmp_path / "section.py").write_text(program)
    monkeypatch.setattr(day, "__file__", str(tmp_path / "section.py"))
    rows = {(r["case"], r["quantity"]): r["value"] for r in day.in_process("copy", True, seconds)}
    assert rows["a", "ms"] == "1.5"
    assert rows["copy", "ended"] == ended


def test_page_shows_results(parts: tuple[ModuleType, ModuleType]) -> None:
    pytest.importorskip("triton", reason="the page's estimate is of Triton's machine code")
    page = importlib.import_module("gpu_page")
    path = page.ROOT / "benchmarks" / "results" / "gpu-day-of-a-test.csv"
    rows = [
        {"section": "steps", "case": "plus", "quantity": "ms", "value": "7.5"},
        {"section": "steps", "case": "apex", "quantity": "left out", "value": "no such module"},
        {"section": "steps", "case": "steps", "quantity": "ended", "value": "time was up"},
        {"section": "steps", "case": "steps", "quantity": "seconds", "value": "90.1"},
    ]
    try:
        importlib.import_module("harness").save_csv(
            path, rows, {"device": "a GPU", "command": "some", "commit": "c"}
        )
        text = page.measured(path)
    finally:
        path.unlink()
    assert "**steps**: time was up, 90.1 s." in text
    assert "| plus | 7.5 |                |" in text
    assert "| apex |     | no such module |" in text
    # What a machine wrote into the page stands between marks.
    stands = page.PAGE.read_text(encoding="utf-8")
    assert stands.count(page.BEGIN) == stands.count(page.END) == 1
