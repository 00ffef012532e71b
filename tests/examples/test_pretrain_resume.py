"""An interrupted run, resumed, gives the bits of one that ran through.

Mutants these tests catch: optimizer state or batch position not restored, metrics not cut back,
a finished training run again, no lock.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from pretraining import train
from pretraining.options import Options

from tests.examples.runs import TWO, assert_same_bits, refusal
from tests.examples.tiny import EXAMPLES, TINY

pytestmark = pytest.mark.usefixtures("bare")


class PowerFailure(Exception):
    pass


Broken = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def power_failure() -> Broken:
    """A context in which the `update`-th update of the process raises, before it is made."""

    @contextmanager
    def broken(update: int) -> Iterator[None]:
        original, updates = train.learning_rate, itertools.count(1)

        def failing(step: int, options: Options) -> float:
            if next(updates) == update:
                raise PowerFailure
            return original(step, options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "learning_rate", failing)
            yield

    return broken


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("dtype", "update"),
    [("float32", 2), ("float32", 5), ("float32", 9), ("float32", 13), ("bfloat16", 7)],
)
def test_resume_after_a_failure_gives_the_same_bits(pretrain, power_failure, dtype, update):
    """Updates 1 to 7 are the first training's, 8 to 14 the second's; checkpoints at 3 and 6."""
    arguments = [*TWO, f"--compute-dtype={dtype}"]
    assert pretrain(*arguments, name="through")[0] == 0
    with power_failure(update), pytest.raises(PowerFailure):
        pretrain(*arguments, name="broken")
    code, folder = pretrain(*arguments, "--resume", name="broken")
    assert code == 0
    assert_same_bits(folder, folder.parent / "through")


def test_the_seed_decides_the_bits(pretrain):
    """Guards the comparison above: it can tell two runs apart."""
    one = pretrain(*TWO, "--seeds=0", name="one")[1]
    other = pretrain(*TWO, "--seeds=1", name="other")[1]
    with pytest.raises(AssertionError):
        assert_same_bits(one, other)


def test_finished_trainings_are_not_run_again(pretrain, power_failure, monkeypatch, capsys):
    with power_failure(9), pytest.raises(PowerFailure):
        pretrain(*TWO)
    seen, original = [], train.run

    def watched(options, corpus, job, *rest):
        seen.append(job.training)
        return original(options, corpus, job, *rest)

    monkeypatch.setattr(train, "run", watched)
    code, folder = pretrain(*TWO, "--resume")
    assert [training.strategy for training in seen] == ["master"]
    before = (folder / "metrics.jsonl").read_bytes(), (folder / "summary.txt").read_text()
    capsys.readouterr()
    code, _ = pretrain(*TWO, "--resume")
    assert code == 0
    assert len(seen) == 1
    assert ((folder / "metrics.jsonl").read_bytes(), (folder / "summary.txt").read_text()) == before
    assert before[1] in capsys.readouterr().out


def test_resume_starts_a_run_that_is_not_there(pretrain):
    assert pretrain("--strategies=plus", "--resume")[0] == 0


def test_a_lost_training_is_trained_again(pretrain):
    _, folder = pretrain(*TWO, name="through")
    _, other = pretrain(*TWO, name="lost")
    for name in ("plus-seed0.pt", "plus-seed0.previous.pt"):
        (other / "checkpoints" / name).unlink()
    assert pretrain(*TWO, "--resume", name="lost")[0] == 0
    assert_same_bits(folder, other)


def test_resume_refuses_other_options_and_data(pretrain, capsys, texts: Path):
    pretrain("--strategies=plus")
    capsys.readouterr()
    code, _ = pretrain("--strategies=plus", "--resume", "--lr=0.5", "--seeds=7")
    changed = refusal(capsys, code, 2)
    assert "--lr is 0.5 and was 0.001" in changed
    assert "--seeds is [7] and was [0]" in changed
    assert "steps" not in changed
    # Where and how often to save does not change the result.
    assert pretrain("--strategies=plus", "--resume", "--checkpoint-every=1")[0] == 0
    capsys.readouterr()
    # In the middle of a file: all of the text counts.
    path = texts / "03.txt"
    path.write_bytes(path.read_bytes().replace(b"lorem", b"Lorem", 3))
    code, _ = pretrain("--strategies=plus", "--resume")
    assert "the data has changed" in refusal(capsys, code, 2)


@pytest.mark.slow
def test_control_c_saves_and_says_how_to_go_on(texts: Path, tmp_path: Path, pretrain, capsys):
    """In a real process; the signal comes once there are metrics, wherever that is."""
    longer = ["--steps=300", "--eval-every=200"]
    command = [sys.executable, str(EXAMPLES / "pretrain.py"), *TINY, f"--data={texts}/*.txt",
               f"--out={tmp_path / 'runs'}", "--name=stopped", "--strategies", "plus",
               *longer, "--checkpoint-every=5"]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    checkpoint = tmp_path / "runs" / "stopped" / "checkpoints" / "plus-seed0.pt"
    limit = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    # Meanwhile another process is told who is there, and changes nothing.
    capsys.readouterr()
    code, _ = pretrain("--strategies=plus", *longer, "--resume", name="stopped")
    text = refusal(capsys, code, 1)
    assert (
        f"runs/stopped is in use by process {process.pid} on {socket.gethostname()} since 2" in text
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "pretrain.py: interrupted by SIGINT; go on from the last checkpoint with: " in errors
    assert errors.rstrip().endswith("--resume")
    state = torch.load(checkpoint, weights_only=True)
    assert 5 <= state["step"] < 300
    assert state["result"] is None
    rest = ["--strategies=plus", *longer, "--resume"]
    code, folder = pretrain(*rest, name="stopped")
    assert code == 0
    assert pretrain(*rest, name="through")[0] == 0
    assert_same_bits(folder, folder.parent / "through")
