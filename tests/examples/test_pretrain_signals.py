"""Signals and closed streams: a checkpoint, one line, an exit code.

Mutants these tests catch: SIGTERM not handled, an ignored signal taken all the same, no checkpoint
before the end, a closed pipe that ends the run.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from pretraining import console, data, train
from pretraining.errors import Stopped
from pretraining.interrupt import Interrupt

from tests.examples.runs import assert_same_bits, contents, messages, temporaries

pytestmark = pytest.mark.usefixtures("bare")
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
    """As nohup asks for."""
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
