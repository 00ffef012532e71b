"""The rules of tests/conftest.py hold: poison, GPU skips, deselection, strictness.

Each inner run below fails when its rule is taken out of conftest.py or pyproject.toml.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

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
"""

MARKER = "import pytest\n\n@pytest.mark.gpuu\ndef test_typo():\n    pass\n"


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with our settings, our conftest and the tests above, with and without a device."""
    folder = tmp_path_factory.mktemp("inner")
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (folder / "tests").mkdir()
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    (folder / "tests" / "conftest.py").write_text(
        conftest + "\n\ntorch.cuda.is_available = lambda: 'INNER_GPU' in os.environ\n"
    )
    (folder / "tests" / "test_inner.py").write_text(INNER)
    (folder / "unknown").mkdir()
    (folder / "unknown" / "test_marker.py").write_text(MARKER)
    return folder


# Runs pytest for each list of arguments. The imports that take seconds are made once: where there
# is a fork each run has a process of its own, elsewhere they share one.
RUNS = """
import json, os, sys
import hypothesis, pytest, torch

for gpu, args in json.loads(sys.argv[1]):
    print("run", flush=True)
    child = os.fork() if hasattr(os, "fork") else 0
    if child:
        os.waitpid(child, 0)
        continue
    os.environ.pop("INNER_GPU", None)
    if gpu:
        os.environ["INNER_GPU"] = "1"
    sys.path.insert(0, os.getcwd())
    pytest.main(["-v", "-p", "no:cacheprovider", *args])
    if hasattr(os, "fork"):
        sys.stdout.flush()
        os._exit(0)
"""
DEFAULT = (False, [])
WITHOUT_GPU = (False, ["--require-gpu", "-m", "gpu"])
WITH_GPU = (True, ["--require-gpu", "-m", "gpu"])
SLOW = (False, ["-m", "slow or nightly"])
UNKNOWN = (False, ["unknown"])
INSIDE = [DEFAULT, WITHOUT_GPU, WITH_GPU, SLOW, UNKNOWN]


@pytest.fixture(scope="module")
def printed(inner: Path) -> list[str]:
    """What each of INSIDE prints."""
    command = [sys.executable, "-c", RUNS, json.dumps(INSIDE)]
    run = subprocess.run(command, cwd=inner, capture_output=True, text=True, timeout=300)
    found = run.stdout.split("run\n")[1:]
    assert len(found) == len(INSIDE), run.stdout + run.stderr
    return found


def outcomes(text: str) -> dict[str, str]:
    """The outcome of each test that ran."""
    lines = [line.split("::")[1].split() for line in text.splitlines() if "py::" in line]
    found = {line[0]: line[1] for line in lines if len(line) > 1 and line[1].isupper()}
    assert found, text
    return found


def test_defaults(printed: list[str]) -> None:
    assert outcomes(printed[INSIDE.index(DEFAULT)]) == {
        "test_device": "SKIPPED",
        "test_two_devices": "SKIPPED",
        "test_unexpected_pass": "FAILED",
        "test_warns": "FAILED",
    }


def test_require_gpu_turns_gpu_skips_into_failures(printed: list[str]) -> None:
    # Without a device the setup of each errs; with one, what skips inside the test fails.
    found = outcomes(printed[INSIDE.index(WITHOUT_GPU)])
    assert found == {"test_device": "ERROR", "test_two_devices": "ERROR"}
    found = outcomes(printed[INSIDE.index(WITH_GPU)])
    assert found == {"test_device": "PASSED", "test_two_devices": "FAILED"}


def test_slow_and_nightly_run_when_asked(printed: list[str]) -> None:
    found = outcomes(printed[INSIDE.index(SLOW)])
    assert found == {"test_slow": "PASSED", "test_nightly": "PASSED"}


def test_unknown_marker_is_an_error(printed: list[str]) -> None:
    text = printed[INSIDE.index(UNKNOWN)]
    assert "'gpuu' not found in `markers` configuration option" in text
    assert "Interrupted: 1 error during collection" in text


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
