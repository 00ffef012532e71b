"""The GPU day: its rows, its time limits, its page; in small, where there is no GPU."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mcf
from mcf import report
from mcf.kernels import registry

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="process groups and inherited pipes are those of POSIX"
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in ("examples", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module


def test_parts_take_four_and_five_minutes(load: Any) -> None:
    day = load("gpu_day")
    for part, limit in ((1, 240), (2, 300)):
        seconds = sum(s.seconds for s in day.SECTIONS.values() if s.part == part)
        assert seconds + day.COMPILE_SECONDS <= limit


def rows_of(path: Path) -> dict[tuple[str, str, str], str]:
    """Return the last value of each section, case and quantity."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return {tuple(line.split(",")[:3]): line.split(",")[3] for line in lines[1:]}  # type: ignore[misc]


ROW = 'print(\'["a", "ms", 1.5]\', flush=True)\n'


def test_rows_are_in_the_file_before_their_section_ends(load: Any, tmp_path: Path) -> None:
    day = load("gpu_day")
    results = day.Results(tmp_path / "day.csv", {"commit": "c"})
    results.begin("steps")
    command = [sys.executable, "-c", f"{ROW}import time; time.sleep(60)"]
    found = day.in_process("steps", command, 2, tmp_path / "errors", os.environ)
    results.add("steps", *next(found))
    known = rows_of(tmp_path / "day.csv")
    assert known == {("steps", "a", "ms"): "1.5", ("steps", "steps", "ended"): "cut off"}
    assert ("steps", "ended", "time was up") in list(found)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (ROW + "print('a word')", [("steps", "ended", "complete")]),
        (
            ROW + "raise ValueError('some reason')",
            [("steps", "error", "ValueError: some reason"), ("steps", "ended", "exit status 1")],
        ),
    ],
)
def test_in_process_tells_how_a_section_ended(
    load: Any, tmp_path: Path, program: str, told: list[tuple[str, str, str]]
) -> None:
    log = tmp_path / "errors"
    log.write_text("an earlier section's\n")
    command = [sys.executable, "-c", program]
    *rows, seconds = load("gpu_day").in_process("steps", command, 60, log, os.environ)
    assert rows == [("a", "ms", 1.5), *told]
    assert seconds[:2] == ("steps", "seconds")


def test_day_keeps_rows_of_failed_and_earlier_sections(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = load("gpu_day")
    monkeypatch.setattr(day, "HERE", tmp_path)
    path = tmp_path / "day.csv"
    (tmp_path / "gpu_sections.py").write_text(f"{ROW}raise ValueError('some reason')")
    assert day.day(["steps", "tests"], True, path, {"commit": "one"}, tmp_path)
    # The second command: what failed was mended, and the tests' rows are those of the first.
    (tmp_path / "gpu_sections.py").write_text(f'{ROW}print(\'["b", "ms", 2]\')')
    assert not day.day(["steps"], True, path, {"commit": "two"}, tmp_path)
    rows = rows_of(path)
    assert rows["tests", "a", "ms"] == "1.5"
    assert rows["tests", "tests", "error"] == "ValueError: some reason"
    assert rows["steps", "steps", "ended"] == "complete"
    assert rows["steps", "b", "ms"] == "2"
    assert ("steps", "steps", "error") not in rows
    assert path.read_text().startswith("# commit: two; other rows one")


def test_day_starts_from_a_bare_checkout(tmp_path: Path) -> None:
    # Neither .pth files, nor PYTHONPATH, nor the folder of the program, nor the current one.
    program = f"""
import runpy, sys
sys.path.append({sysconfig.get_paths()["purelib"]!r})
day = runpy.run_path({str(ROOT / "benchmarks" / "gpu_day.py")!r})
sections = runpy.run_path({str(ROOT / "benchmarks" / "gpu_sections.py")!r})
import mcf, mcf.optim
print(mcf.__file__, mcf.optim.__file__)
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    expected = [str(ROOT / "mcf" / "__init__.py"), str(ROOT / "optim" / "__init__.py")]
    assert run.stdout.split() == expected


def test_commit_is_of_the_environment_git_or_a_file(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = load("harness").commit
    monkeypatch.delenv("MCF_COMMIT", raising=False)
    assert commit(tmp_path) == "-"
    (tmp_path / ".whl").mkdir()
    (tmp_path / ".whl" / "commit").write_text("abc1234\n")
    assert commit(tmp_path) == "abc1234"
    monkeypatch.setenv("MCF_COMMIT", "def5678")
    assert commit(tmp_path) == "def5678"


def test_queued_calls_are_counted_and_timed(load: Any) -> None:
    calls: list[int] = []
    busy, host = load("harness").queued(lambda: calls.append(1), CPU, rounds=4, seconds=1.0)
    # Two to warm up, one to see how many calls fit, and four queues of twenty.
    assert len(calls) == 2 + 1 + 4 * 20
    assert len(busy.seconds) == 4
    # Without a GPU, both are the host's time.
    assert busy == host


def test_steps_of_a_small_day(load: Any) -> None:
    measure, steps = load("gpu_measure"), load("gpu_steps")
    size = measure.SMALL._replace(precisions=("plus", "4bit"))
    found: dict[tuple[str, str], Any] = {}
    with mcf.executor("torch"):
        for case in steps.steps(CPU, size):
            if case.name in ("copy of float32", "plus", "torch fused fp32", "4bit"):
                found |= {(r.case, r.quantity): r.value for r in measure.measured(case, CPU, size)}
    assert found["copy of float32", "GB/s"] > 0
    bytes_held = {"plus": 12, "4bit": 5.5, "torch fused fp32": 16}
    for name, held in bytes_held.items():
        assert found[name, "bytes/param"] == held
        assert found[name, "ns/param"] == pytest.approx(found[name, "ms"] * 1e6 / size.params)
        assert found[name, "share of the copy's speed"] > 0


def test_parameters_have_rows_of_zero_gradients(load: Any) -> None:
    shapes = [torch.Size((1000, 8))]
    (p,) = load("gpu_steps").parameters(shapes, torch.bfloat16, CPU, zero_rows=0.9)
    zero = (p.grad == 0).all(1).sum().item()
    # Binomial: 900 with a standard deviation of 9.5.
    assert 850 < zero < 950
    assert (p != 0).any(1).all()


def test_measured_case_that_raises_becomes_a_row(load: Any) -> None:
    cases, measure = load("gpu_cases"), load("gpu_measure")

    def wrong() -> Any:
        raise ValueError("some\nreason")

    def missing() -> Any:
        importlib.import_module("no_such_package")

    def all_of(section: Any) -> list[Any]:
        cases.CASES["some"] = section
        try:
            return list(cases.run("some", CPU, measure.SMALL))
        finally:
            del cases.CASES["some"]

    def section(device: torch.device, size: Any) -> Iterator[Any]:
        yield measure.Case("a", wrong)
        yield measure.Case("b", missing, ours=False)
        # An optimizer that could not step cannot train.
        yield measure.Case("gpt, b", missing, ours=False)
        yield measure.Case("c", lambda: measure.Work(lambda: None, lambda s: {"twice": 2 * s}))

    rows = all_of(section)
    assert rows[0] == ("a", "error", "ValueError: some")
    assert rows[1][:2] == ("b", "left out")
    assert "no_such_package" in rows[1][2]
    assert [r[:2] for r in rows[2:]] == [("c", "ms"), ("c", "twice")]


def test_names_of_cases_differ(load: Any) -> None:
    cases = load("gpu_cases")
    for name, section in cases.CASES.items():
        names = [case.name for case in section(CPU, load("gpu_measure").FULL)]
        assert len(set(names)) == len(names), name


def test_kernels_are_compiled_beforehand(load: Any) -> None:
    pytest.importorskip("triton", reason="triton has wheels for Linux only")
    compile_, measure = load("gpu_compile"), load("gpu_measure")
    size = measure.SMALL._replace(precisions=("plain",))
    tasks = compile_.tasks(["bits", "steps", "tests"], size)
    assert [t for t in tasks if t[0] == "steps"] == [
        ("steps", "plain"), ("steps", "plain, 90 % zero rows")
    ]  # fmt: skip
    assert {t for t in tasks if t[0] == "bits"} == {("bits", name) for name in report.WORK}
    target = compile_.target_of(CPU)
    hashes, error = compile_.compiled(("steps", "plain"), target, size)
    assert (len(hashes), error) == (1, "")
    hashes, error = compile_.compiled(("bits", "no such work"), target, size)
    assert (hashes, error) == (set(), "KeyError: 'no such work'")


@pytest.fixture
def some_work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Work that notes its device, and work that raises."""
    devices: list[str] = []

    def noted(device: str) -> list[torch.Tensor]:
        devices.append(device)
        return [torch.ones(3)]

    def wrong(device: str) -> list[torch.Tensor]:
        raise ValueError("some\nreason")

    work = {"wrong": (wrong, "0" * 16), "noted": (noted, report.digest([torch.ones(3)]))}
    monkeypatch.setattr(report, "WORK", work)
    return devices


def test_bits_errors_are_rows_of_their_executor(
    load: Any, some_work: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    known = {"torch": registry.EXECUTORS["torch"]}
    monkeypatch.setattr(registry, "EXECUTORS", known)
    assert list(load("gpu_sections").bits()) == [
        ("wrong, torch", "bits", "error: ValueError: some"),
        ("noted, torch", "bits", "as recorded"),
    ]
    assert report.main(["--no-speed"]) == 1
    assert "error: ValueError: some" in capsys.readouterr().out


def test_bits_of_a_gpu_come_first_and_for_the_interpreter(
    some_work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(report, "executors", lambda: {"torch": "", "numba": "no", "triton": ""})
    monkeypatch.setattr(mcf, "executor", contextlib.nullcontext)
    where = [executor for _, executor, _, _ in report.bits()]
    assert where == ["triton on cuda"] * 2 + ["torch"] * 2
    assert some_work == ["cuda", "cpu"]


def test_failures_of_tests_are_rows_with_their_last_line(load: Any, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert 1 + 1 == 3\n"
        "def test_fixture(nothing): pass\n"
        "def test_skipped(): pytest.skip('why')\n"
    )
    (tmp_path / "test_other.py").write_text("import no_such_package\n")
    # Names of tests are relative to this folder, wherever the checkout lies.
    arguments = [str(tmp_path), f"--rootdir={tmp_path}", "--continue-on-collection-errors"]
    rows = list(load("gpu_tests").running(arguments, tmp_path / "pytest.log"))
    failed = {case: value for case, quantity, value in rows if quantity == "failed"}
    assert failed["test_some.py::test_wrong"] == "assert (1 + 1) == 3"
    assert "no_such_package" in failed["test_other.py"]
    assert "nothing" in (tmp_path / "pytest.log").read_text()
    counts = {quantity: value for case, quantity, value in rows if case == "pytest"}
    assert counts == {"passed": 1, "failed": 3, "skipped": 1, "exit status": 1}
    assert (tmp_path / "pytest.xml").exists()


def test_tests_of_a_day_are_the_selection_for_gpus(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections, seen = load("gpu_sections"), []
    monkeypatch.setattr(sections.gpu_tests, "running", lambda *given: seen.append(given) or [])
    for slow in (False, True):
        assert list(sections.tests(False, slow, tmp_path)) == []
    assert seen == [
        (["@tests/gpu.args", "-m=gpu and not slow and not nightly"], tmp_path / "pytest.log"),
        (["@tests/gpu.args", "-m=gpu and slow and not nightly"], tmp_path / "pytest-slow.log"),
    ]


def test_clocks_are_read_while_the_gpu_is_busy(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["0, 345, 1593, 70.1, 30", "98, 1755, 2619, 512.5, 55", "[N/A], 1, 2, 3, 4"]
    tool = tmp_path / "nvidia-smi"
    tool.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines)]))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    clocks = load("gpu_day").Clocks(0.01)
    while not clocks._lines:
        time.sleep(0.01)
    rows = dict(clocks.rows())
    assert rows["SM MHz, median"] == rows["SM MHz, most"] == 1755
    assert rows["memory MHz, median"] == 2619
    assert rows["W, most"] == 512.5


def test_clocks_without_their_tool_are_no_rows(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    clocks = load("gpu_day").Clocks(0.0)
    assert list(clocks.rows()) == []


def test_page_shows_results(load: Any) -> None:
    pytest.importorskip("triton", reason="the page's estimate is of Triton's machine code")
    page = load("gpu_page")
    path = page.ROOT / "benchmarks" / "results" / "gpu-day-of-a-test.csv"
    rows = [
        {"section": "steps", "case": "steps", "quantity": "ended", "value": "cut off"},
        {"section": "steps", "case": "plus", "quantity": "ms", "value": "7.5"},
        {"section": "steps", "case": "apex", "quantity": "left out", "value": "no such module"},
        {"section": "steps", "case": "steps", "quantity": "ended", "value": "time was up"},
        {"section": "steps", "case": "steps", "quantity": "seconds", "value": "90.1"},
        {"section": "steps", "case": "steps", "quantity": "W, most", "value": "512.5"},
        {"section": "tests", "case": "tests", "quantity": "ended", "value": "cut off"},
    ]
    try:
        load("harness").save_csv(path, rows, {"device": "a GPU", "command": "some", "commit": "c"})
        text = page.measured(path)
    finally:
        path.unlink()
    assert "**steps**: ended time was up; seconds 90.1; W, most 512.5." in text
    assert "**tests**: ended cut off." in text
    assert "| plus | 7.5 |                |" in text
    assert "| apex |     | no such module |" in text
    # The page's own text stands outside these marks.
    stands = page.PAGE.read_text(encoding="utf-8")
    assert stands.count(page.BEGIN) == stands.count(page.END) == 1


def test_a_section_prints_its_rows_as_json(load: Any, monkeypatch: Any, capsys: Any) -> None:
    sections: ModuleType = load("gpu_sections")
    monkeypatch.setattr(sections, "rows", lambda *given: iter([sections.Row("a", "ms", 1.5)]))
    monkeypatch.setattr(sys, "argv", ["gpu_sections.py", "steps", "--small"])
    sections.main()
    assert json.loads(capsys.readouterr().out) == ["a", "ms", 1.5]
