"""Comparison of what runs of the pretraining example leave, and accidents of every kind."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining import files

TWO = ["--strategies", "plus", "master"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The final weights of all trainings of a run, as anybody would load them."""
    found = {}
    for path in sorted((folder / "checkpoints").glob("*-seed?.pt")):
        state = torch.load(path, weights_only=True)
        assert state["result"] is not None, path
        found |= {f"{path.stem}/{name}": weight for name, weight in state["model"].items()}
    return found


def assert_same_bits(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    a, b = weights(one), weights(other)
    assert a
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name].view(torch.int16), b[name].view(torch.int16)), name


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder; the lock, which is empty, and who held it left out."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("lock", "holder.json")
    }


def temporaries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".tmp")]


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines on stderr that are no progress bar's; none may be a traceback's."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return [
        line
        for line in text.replace("\r", "\n").split("\n")
        if line.strip() and "step/s" not in line and "s/step" not in line
    ]


def refusal(capsys: pytest.CaptureFixture[str], code: int, expected: int) -> str:
    """Demand the exit code and one line that says why; return the line."""
    lines = messages(capsys)
    assert code == expected, lines
    assert len(lines) == 1
    assert lines[0].startswith("pretrain.py: error: ")
    return lines[0]


class Killed(BaseException):
    """A process ended by the system: nothing of it runs any more."""


class Disk:
    """`os` for `pretraining.files`: calls that change the disk are counted, and fail from one on.

    Args:
        last: the number of the first call that fails; all later ones fail too.
        kill: the process ends there, so that it cannot even clean up; else the disk is full, where
            removing works and half of a write arrives.
    """

    def __init__(self, last: int, *, kill: bool = False) -> None:
        self.calls = 0
        self._last = last
        self._kill = kill

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _count(self) -> None:
        self.calls += 1
        if self.calls >= self._last:
            if self._kill:
                raise Killed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: Path, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_CREAT):
            self._count()
        return os.open(path, flags, *rest)

    def write(self, descriptor: int, data: memoryview) -> int:
        try:
            self._count()
        except BaseException:
            os.write(descriptor, data[: len(data) // 2])
            raise
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._count()
        os.fsync(descriptor)

    def replace(self, old: Path, new: Path) -> None:
        self._count()
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        if self._kill:
            self._count()
        os.unlink(path)


@contextmanager
def disk(last: int, *, kill: bool = False) -> Iterator[Disk]:
    """Let the example's files be on such a disk."""
    made = Disk(last, kill=kill)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", made)
        yield made
