"""`pytest @tests/gpu.args` names every file with tests of GPUs, and no other file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARGUMENTS = (ROOT / "tests" / "gpu.args").read_text().splitlines()
FILES = [line for line in ARGUMENTS if not line.startswith("-")]


def test_every_file_with_tests_of_gpus_is_named() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"^[^\"#]*\bpytest\.mark\.gpu\b", path.read_text(), re.M)
        # test_conftest.py writes the marker into the text of a project.
        and path.name != "test_conftest.py"
    ]
    assert sorted(FILES) == found


@pytest.mark.slow
def test_the_selection_needs_no_package_but_the_library_and_pytest() -> None:
    """A machine with a GPU is lent for minutes, in which nothing is installed."""
    missing = "import sys; sys.modules.update(dict.fromkeys(('flint', 'expecttest', 'torchao')));"
    program = missing + "import pytest; raise SystemExit(pytest.main(sys.argv[1:]))"
    options = [
        "@tests/gpu.args",
        "--numprocesses=0",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [sys.executable, "-c", program, *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-5000:]
    for file in FILES:
        assert f"{file}::" in run.stdout
