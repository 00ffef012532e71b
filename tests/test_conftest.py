"""The rules of tests/conftest.py hold: poison, GPU skips, deselection, strictness.

Each inner run below fails when its rule is taken out of conftest.py or pyproject.toml.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.helpers.gpu_waits import no_waiting

ROOT = Path(__file__).resolve().parents[1]

INNER = """
import warnings
import pytest

@pytest.mark.gpu
def test_device():
    pass

@pytest.mark.gpu
def test_two_devices():
    pytest.skip("one device only")

@pytest.mark.gpu(count=3)
def test_three_devices():
    pass

@pytest.mark.gpu(count=2)
def test_both_devices():
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.nightly
def test_nightly():
    pass

@pytest.mark.xfail(reason="passes although it must not")
def test_unexpected_pass():
    pass

def test_warns():
    warnings.warn("a warning")

@pytest.mark.sampled
@pytest.mark.parametrize("x", range(3))
@pytest.mark.parametrize("y", "ab")
def test_values(x, y):
    pass

@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("z", range(6))
def test_fourth(z):
    pass

@pytest.mark.slow
@pytest.mark.sampled(slow=2)
@pytest.mark.parametrize("z", range(3))
def test_second(z):
    pass

@pytest.mark.sampled(every=3, slow=3)
@pytest.mark.parametrize("z", range(6))
def test_third(z):
    pass
"""
# So few that each value of each parameter is used, and each fourth; the others are slow.
SAMPLED = {"values[a-0]", "values[b-1]", "values[a-2]", "fourth[0]", "fourth[4]"}
SAMPLED |= {"third[0]", "third[3]"}
OTHERS = {"values[b-0]", "values[a-1]", "values[b-2]", *(f"fourth[{k}]" for k in (1, 2, 3, 5))}
# With `slow=n` each n-th of the others; what is left runs only with every test.
OTHERS |= {"second[0]", "second[2]", "third[1]", "third[5]"}
NIGHTLY = {"nightly", "second[1]", "third[2]", "third[4]"}


# What `make test-slow` asks for.
SLOW = re.search(r"^test-slow:.*\n.* -m '(.*)'", (ROOT / "Makefile").read_text(), re.M)[1]


def passed(names: set[str]) -> dict[str, str]:
    return {f"test_{name}": "PASSED" for name in names}


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with our settings, our conftest and the tests above, with and without a device."""
    folder = tmp_path_factory.mktemp("inner")
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (folder / "tests").mkdir()
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    (folder / "tests" / "conftest.py").write_text(
        conftest
        + "\n\ntorch.cuda.is_available = lambda: 'INNER_GPU' in os.environ"
        + "\ntorch.cuda.device_count = lambda: 2\n"
    )
    (folder / "tests" / "test_inner.py").write_text(INNER)
    return folder


# Each run in a child of a process that has imported torch, which takes longer than the run.
CHILDREN = """
import json, os, sys
import pytest, torch

for number, arguments in enumerate(json.loads(sys.argv[1])):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    out = os.open(f"{number}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    pytest.main(["-v", "-p", "no:cacheprovider", *arguments])
    sys.stdout.flush()
    os._exit(0)
"""


def outcomes(folder: Path, *runs: list[str], gpu: bool = False) -> list[dict[str, str]]:
    """Run pytest in `folder` with several arguments in turn: the outcome of each test that ran."""
    env = os.environ | ({"INNER_GPU": "1"} if gpu else {})
    command = [sys.executable, "-c", CHILDREN, json.dumps(runs)]
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    every = []
    for number in range(len(runs)):
        said = (folder / f"{number}.out").read_text()
        lines = [line.split("::")[1].split() for line in said.splitlines() if "py::" in line]
        found = {line[0]: line[1] for line in lines if len(line) > 1 and line[1].isupper()}
        assert found, said
        every.append(found)
    return every


@pytest.mark.slow
def test_what_runs(inner: Path) -> None:
    default, slow, nightly = outcomes(inner, [], ["-m", SLOW], ["-m", "nightly"])
    assert default == {
        "test_device": "SKIPPED",
        "test_two_devices": "SKIPPED",
        "test_three_devices": "SKIPPED",
        "test_both_devices": "SKIPPED",
        "test_unexpected_pass": "FAILED",
        "test_warns": "FAILED",
        **passed(SAMPLED),
    }
    assert slow == passed({"slow"} | OTHERS)
    assert nightly == passed(NIGHTLY)


@pytest.mark.slow
def test_require_gpu_turns_gpu_skips_into_failures(inner: Path) -> None:
    # Without a device the setup of each errs; with two, a skip inside a test is a failure, and a
    # test of three devices still skips.
    arguments = ["--require-gpu", "-m", "gpu"]
    names = ("device", "two_devices", "three_devices", "both_devices")
    [found] = outcomes(inner, arguments)
    assert found == {f"test_{name}": "ERROR" for name in names}
    [found] = outcomes(inner, arguments, gpu=True)
    words = ("PASSED", "FAILED", "SKIPPED", "PASSED")
    assert found == {f"test_{name}": word for name, word in zip(names, words, strict=True)}


@pytest.mark.slow
def test_unknown_marker_is_an_error(inner: Path, tmp_path: Path) -> None:
    test = tmp_path / "test_marker.py"
    test.write_text("import pytest\n\n@pytest.mark.gpuu\ndef test_typo():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-c", str(inner / "pyproject.toml"), str(test)]
    run = subprocess.run(command, cwd=inner, capture_output=True, text=True, timeout=120)
    assert "'gpuu' not found in `markers` configuration option" in run.stdout
    assert run.returncode == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_empty_is_nan(dtype: torch.dtype) -> None:
    x = torch.zeros(5, dtype=dtype)
    for made in (
        torch.empty(5, dtype=dtype),
        torch.empty_like(x),
        x.new_empty(5),
        torch.empty_strided((5,), (1,), dtype=dtype),
    ):
        assert made.isnan().all()


def test_empty_integers_are_poisoned() -> None:
    assert (torch.empty(5, dtype=torch.int16) == torch.iinfo(torch.int16).max).all()


def test_hypothesis_is_derandomized() -> None:
    # True under --hypothesis-profile=nightly only if that profile draws new examples.
    profile = hypothesis.settings.get_current_profile_name()
    assert hypothesis.settings().derandomize == (profile == "ci")


def test_a_warning_of_the_mode_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it: it sets the mode, and warns once; a second time it does not."""
    modes, warned = ["default"], []

    def set_mode(mode: str) -> None:
        modes.append(mode)
        if not warned:
            warned.append(mode)
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    for _ in range(2):
        with no_waiting():
            assert modes[-1] == "error"
        assert modes[-1] == "default"
    assert warned
