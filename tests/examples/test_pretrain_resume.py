"""An interrupted run, resumed, gives the bits of one that ran through.

Mutants these tests catch: optimizer state or batch position not restored, metrics not cut back,
a finished training run again, no lock.
"""

from __future__ import annotations

import errno
import io
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
from pretraining import console, data, train
from pretraining.errors import Stopped
from pretraining.interrupt import Interrupt
from pretraining.options import Options

from tests.examples.runs import TWO, assert_same_bits, contents, messages, refusal, temporaries
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


# -- signals ---------------------------------------------------------------------------------------


PLUS = "--strategies=plus"


def raising_at(step: int, number: int):
    """`train.learning_rate`, which also raises a signal at one step."""
    original = train.learning_rate

    def rate(at: int, options) -> float:
        if at == step:
            signal.raise_signal(number)
        return original(at, options)

    return rate


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_signal_in_training(pretrain, capsys, monkeypatch, name: str, step: int):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(train, "learning_rate", raising_at(step, number))
        code, folder = pretrain(PLUS, name="stopped")
    assert code == 128 + number
    assert signal.getsignal(number) is before
    (line,) = messages(capsys)
    assert line.startswith(f"pretrain.py: interrupted by {name}; go on from the last checkpoint")
    assert line.endswith(" --resume")
    state = torch.load(folder / "checkpoints" / "plus-seed0.pt", weights_only=True)
    assert state["step"] == step
    assert pretrain(PLUS, "--resume", name="stopped")[0] == 0
    assert_same_bits(folder, pretrain(PLUS, name="through")[1])


def test_a_signal_before_training_changes_nothing(pretrain, capsys, monkeypatch):
    _, folder = pretrain(PLUS)
    before = contents(folder)
    original = data.load

    def load(options) -> data.Corpus:
        signal.raise_signal(signal.SIGTERM)
        return original(options)

    monkeypatch.setattr(data, "load", load)
    capsys.readouterr()
    assert pretrain(PLUS, "--overwrite")[0] == 143
    assert messages(capsys) == ["pretrain.py: interrupted by SIGTERM"]
    assert contents(folder) == before
    assert os.listdir(folder.parent) == [folder.name]


def test_ignored_signals_stay_ignored(pretrain, monkeypatch):
    """nohup asks for it."""
    monkeypatch.setattr(train, "learning_rate", raising_at(3, signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert pretrain(PLUS)[0] == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_acts_as_always():
    with Interrupt() as interrupt, interrupt.patience():
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_in_the_middle_of_a_write_leaves_no_temporary_file(pretrain, capsys, monkeypatch):
    from pretraining import files

    original = os.fsync

    def sync(descriptor: int) -> None:
        signal.raise_signal(signal.SIGTERM)
        original(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", sync)
        code, folder = pretrain(PLUS)
    assert code == 143
    assert not temporaries(folder)
    assert pretrain(PLUS, "--resume")[0] == 0


class Closed(io.StringIO):
    """A stream whose other end is gone."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
def test_a_closed_stdout_does_not_end_the_run(pretrain, capsys, monkeypatch, number: int):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed(number))
        code, folder = pretrain(PLUS)
    assert code == 1
    (line,) = messages(capsys)
    assert line == (
        f"pretrain.py: error: cannot write to stdout: {os.strerror(number)}; the results are "
        f"complete in {folder}"
    )
    assert "plus" in (folder / "summary.txt").read_text()
    assert console.lost() is None


@pytest.mark.parametrize("stream", [Closed(errno.EIO), None])
def test_a_closed_stderr_does_not_end_the_run(pretrain, capsys, monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    assert pretrain(PLUS)[0] == 0


def test_a_terminal_that_knows_ascii_only(pretrain, monkeypatch, tmp_path: Path):
    with (tmp_path / "printed").open("w", encoding="ascii") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        assert pretrain(PLUS, "--seeds", "0", "1")[0] == 0
    assert "mean over seeds ? sample" in (tmp_path / "printed").read_text()


def test_signals_are_left_alone_outside_of_the_main_thread():
    import threading

    seen = []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.append(interrupt.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]


def test_stopped_is_no_exception():
    """So that no `except Exception` on the way takes it."""
    assert not issubclass(Stopped, Exception)
