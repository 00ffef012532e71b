"""Processes killed at random moments: the run ends with an undisturbed run's bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.kills import Run, Torchrun, compare, finish, wait_for
from tests.examples.tiny import write_texts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--kills=5", "--steps=60"], marks=pytest.mark.slow, id="5"),
        pytest.param(["--kills=50"], marks=pytest.mark.nightly, id="50"),
        pytest.param(
            ["--kills=4", "--steps=80", "--torchrun"], marks=pytest.mark.nightly, id="torchrun"
        ),
    ],
)
def test_kills(arguments: list[str]) -> None:
    # In a process of its own, which may fork.
    command = [sys.executable, "-m", "tests.examples.kills", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("kills: an undisturbed run's bits\n")
    assert "said:" not in done.stdout
    assert "did not go on" not in done.stdout


@pytest.mark.nightly
def test_torchrun_is_asked_to_stop(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    run = Run(tmp_path, "stopped", 60, torchrun=True)
    life = run.start()
    assert isinstance(life, Torchrun)
    try:
        assert wait_for(life, lambda: run.done >= 5)
        os.kill(life.pid, signal.SIGTERM)
        assert not wait_for(life, lambda: False)
        assert life.code() != 0
    finally:
        life.end()
    lines = [x for x in run.said.splitlines() if "pretrain.py: " in x]
    assert len(lines) == 1
    assert "interrupted by SIGTERM; go on from the last checkpoint with: torchrun" in lines[0]
    finish(run)
    other = Run(tmp_path, "undisturbed", 60, torchrun=True)
    finish(other)
    assert compare(run.path, other.path) == []
