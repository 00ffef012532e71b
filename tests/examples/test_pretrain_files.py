"""Disks that are full and processes that are killed, at every call that changes the disk.

Mutants these tests catch: a temporary file left behind, one name for two temporary files, a
checkpoint that takes its name before it is written, no older checkpoint between the two renames.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pretraining import files
from pretraining.errors import RunError

from tests.examples.runs import (
    Disk,
    Killed,
    assert_same_bits,
    contents,
    disk,
    messages,
    refusal,
    temporaries,
)
from tests.examples.tiny import EXAMPLES, TINY

PLUS = ["--strategies=plus", "--checkpoint-every=2"]
# Far above what a run calls; the test of every call checks that.
NEVER = 10**6
bare = pytest.mark.usefixtures("bare")


def calls_of(work) -> int:
    with disk(NEVER) as counted:
        work()
    return counted.calls


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path):
    path, keep = tmp_path / "file", tmp_path / "kept"

    def write(content: str) -> None:
        files.write_atomically(path, content, keep=keep)

    write("first")
    write("second")
    assert (path.read_text(), keep.read_text()) == ("second", "first")
    total = calls_of(lambda: write("third"))
    # Open, write, sync, two renames, sync of the folder.
    assert total == 6
    for kill in (False, True):
        for last in range(1, total + 1):
            for leftover in tmp_path.iterdir():
                leftover.unlink()
            write("first")
            write("second")
            with disk(last, kill=kill), pytest.raises((RunError, Killed)):
                write("third")
            found = {p.read_text() for p in (path, keep) if p.exists()}
            assert found in ({"second", "first"}, {"second"}, {"third", "second"}), (kill, last)
            assert kill or not temporaries(tmp_path)


def test_the_folder_reaches_the_disk_after_the_rename(tmp_path: Path, monkeypatch):
    seen = []

    class Watched(Disk):
        def fsync(self, descriptor: int) -> None:
            seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))

        def replace(self, old: Path, new: Path) -> None:
            seen.append(f"{new} renamed")
            os.replace(old, new)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(files, "os", Watched(NEVER))
    path = tmp_path / "file"
    files.write_atomically(path, "content")
    assert files.is_temporary(Path(seen[0]).name)
    assert seen[1:] == [f"{path} renamed", str(tmp_path)]


def test_temporary_names_are_unique(tmp_path: Path, monkeypatch):
    """Two processes may write one file; each renames what it wrote itself."""
    seen = []

    class Watched(Disk):
        def open(self, path: Path, flags: int, *rest: int) -> int:
            seen.append(path)
            return os.open(path, flags, *rest)

    monkeypatch.setattr(files, "os", Watched(NEVER))
    for _ in range(2):
        files.write_atomically(tmp_path / "file", "content")
    first, second = (path for path in seen if path != tmp_path)
    assert first != second


@pytest.fixture
def through(pretrain) -> Path:
    code, folder = pretrain(*PLUS, name="through")
    assert code == 0
    return folder


def points(pretrain, share: int) -> range:
    """Numbers of every `share`-th call that changes the disk in a run."""
    total = calls_of(lambda: pretrain(*PLUS, name="counted"))
    assert 60 < total < 200
    return range(1 + share // 2, total + 1, share)


def go_on_with(pretrain, capsys, through: Path, folder: Path) -> None:
    capsys.readouterr()
    code, _ = pretrain(*PLUS, "--resume", name=folder.name)
    lines = messages(capsys)
    assert code == 0, lines
    assert_same_bits(folder, through)
    assert not temporaries(folder)
    # A newest checkpoint may be missing for the moment between two renames.
    assert all(line.startswith("note: ") for line in lines)


@pytest.mark.sampled(every=2)
@bare
@pytest.mark.parametrize("share", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_full_disk(pretrain, capsys, through: Path, share: int):
    """One line, exit code 1, no temporary file; with room again the same bits come out."""
    folder = through.with_name("full")
    for last in points(pretrain, share):
        shutil.rmtree(folder, ignore_errors=True)
        capsys.readouterr()
        with disk(last):
            code, _ = pretrain(*PLUS, name="full")
        line = refusal(capsys, code, 1)
        assert ": No space left on device" in line, (last, line)
        assert str(folder) in line
        assert not temporaries(folder)
        go_on_with(pretrain, capsys, through, folder)


@bare
@pytest.mark.parametrize("share", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_call(pretrain, capsys, through: Path, share: int):
    """As kill -9 between two calls or within a write: nothing is cleaned up."""
    folder = through.with_name("killed")
    for last in points(pretrain, share):
        shutil.rmtree(folder, ignore_errors=True)
        with disk(last, kill=True), pytest.raises(Killed):
            pretrain(*PLUS, name="killed")
        go_on_with(pretrain, capsys, through, folder)


@bare
def test_no_room_for_files_of_this_size(pretrain, capsys, through: Path):
    """The system itself refuses, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        code, folder = pretrain(*PLUS, name="large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    line = refusal(capsys, code, 1)
    assert "plus-seed0.pt: File too large" in line
    assert "; go on from the last checkpoint with: " in line
    assert line.endswith(" --resume")
    assert not temporaries(folder)
    go_on_with(pretrain, capsys, through, folder)


@bare
def test_a_folder_that_cannot_be_written(pretrain, capsys, through: Path, monkeypatch):
    """Read-only for us; root writes everywhere, so the system's answer is made up."""
    before = contents(through)

    class ReadOnly(Disk):
        def _count(self) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "os", ReadOnly(0))
    capsys.readouterr()
    assert "Permission denied" in refusal(capsys, pretrain(*PLUS, "--resume", name="through")[0], 1)
    assert contents(through) == before


def run_in_a_process(folder: Path, texts: Path) -> subprocess.Popen:
    command = [sys.executable, str(EXAMPLES / "pretrain.py"), *TINY, f"--data={texts}/*.txt",
               f"--out={folder.parent}", f"--name={folder.name}", *PLUS, "--resume",
               "--steps=60"]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@bare
@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_9(pretrain, capsys, texts: Path, tmp_path: Path, kills: int):
    """A real process, killed at random moments of its training, resumed to the same bits."""
    draw = random.Random(0)
    rest = [*PLUS, "--steps=60"]
    code, through = pretrain(*rest, name="through")
    assert code == 0
    folder = tmp_path / "runs" / "killed"
    for _ in range(kills):
        process = run_in_a_process(folder, texts)
        # Once it is at work, at any moment.
        limit = time.monotonic() + 300
        before = (folder / "metrics.jsonl").stat().st_mtime_ns if folder.exists() else 0
        while process.poll() is None and time.monotonic() < limit:
            path = folder / "metrics.jsonl"
            if path.exists() and path.stat().st_mtime_ns != before:
                break
            time.sleep(0.005)
        time.sleep(draw.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
    capsys.readouterr()
    assert pretrain(*rest, "--resume", name="killed")[0] == 0
    assert_same_bits(folder, through)
    assert not temporaries(folder)


@pytest.mark.slow
def test_two_processes_of_one_name(pretrain, bare, texts: Path, tmp_path: Path):
    """Started together, seven times: one runs to the end, the other says who holds the folder."""
    code, through = pretrain(*PLUS, "--steps=60", name="through")
    assert code == 0
    for number in range(7):
        folder = tmp_path / "runs" / f"both{number}"
        both = [run_in_a_process(folder, texts) for _ in range(2)]
        assert sorted(process.wait() for process in both) == [0, 1]
        assert_same_bits(folder, through)
