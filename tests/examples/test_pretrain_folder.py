"""Whose folder it is: others' files stay, earlier runs are kept, one process at a time.

Mutants these tests catch: no marker, no second look under the lock, no lock, options checked after
the old run has been moved.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
from pretraining import files, identity, lock
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

pytestmark = pytest.mark.usefixtures("bare")


PLUS = "--strategies=plus"
FLAGS = ([], ["--resume"], ["--overwrite"])


def foreign(folder: Path) -> Path:
    """Somebody's folder that looks like a run's."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "plus-seed0.pt").write_bytes(b"years of work")
    (folder / "checkpoints" / "thesis.txt").write_text("chapter 1")
    (folder / "metrics.jsonl").write_text("theirs")
    (folder / ".run.json.0123.tmp").write_text("theirs too")
    return folder


@pytest.mark.sampled
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("marker", [None, "{}", '{"options": {}, "sha256": "0"}', "text", "sealed"])
def test_others_folders_stay_as_they_are(pretrain, capsys, tmp_path: Path, flags, marker):
    folder = foreign(tmp_path / "runs" / "tiny")
    if marker is not None:
        sealed = identity.sealed({"format": "another program's"})
        (folder / "run.json").write_text(sealed if marker == "sealed" else marker)
    before, names = contents(folder), sorted(os.listdir(folder))
    code, _ = pretrain(PLUS, *flags)
    text = refusal(capsys, code, 2 if marker is None else 1)
    assert "stays as it is" in text
    assert contents(folder) == before
    assert sorted(os.listdir(folder)) == names
    assert os.listdir(folder.parent) == ["tiny"]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_run_that_lost_its_marker_is_not_trained_over(pretrain, capsys, flags):
    _, folder = pretrain(PLUS)
    (folder / "run.json").unlink()
    before = contents(folder)
    capsys.readouterr()
    code, _ = pretrain(PLUS, *flags)
    assert "has files in it and no run.json" in refusal(capsys, code, 2)
    assert contents(folder) == before


def test_runs_of_older_versions_stay_as_they_are(pretrain, capsys, tmp_path: Path):
    folder = foreign(tmp_path / "runs" / "tiny")
    old = {"options": {"steps": 7}, "data": "0", "python": "3.11.7", "torch": "2.13.0"}
    (folder / "run.json").write_text(json.dumps(old))
    before = contents(folder)
    code, _ = pretrain(PLUS, "--resume")
    assert "as those of an older pretrain.py, whose runs cannot be" in refusal(capsys, code, 1)
    assert contents(folder) == before


@pytest.mark.parametrize("made", ["file", "link to nothing", "loop", "pipe"])
def test_a_name_that_is_no_folder(pretrain, capsys, tmp_path: Path, made: str):
    path = tmp_path / "runs" / "tiny"
    path.parent.mkdir()
    if made == "file":
        path.write_text("mine")
    elif made == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if made == "link to nothing" else "tiny")
    text = refusal(capsys, pretrain(PLUS, "--resume")[0], 2)
    assert "--name: " in text
    assert "choose another --name" in text
    assert os.listdir(path.parent) == ["tiny"]


def test_an_empty_folder_is_used(pretrain, tmp_path: Path):
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    assert pretrain(PLUS)[0] == 0


def test_an_earlier_run_is_kept_under_a_dated_name(pretrain, capsys):
    _, folder = pretrain(PLUS)
    before = contents(folder)
    capsys.readouterr()
    text = refusal(capsys, pretrain(PLUS)[0], 2)
    assert "holds an earlier run; add --resume" in text
    assert contents(folder) == before
    # `make pretrain ARGS=--overwrite` gives both; the last one counts.
    for count in (1, 2, 3):
        assert pretrain(PLUS, "--resume", "--overwrite", f"--seeds={count}")[0] == 0
        (line,) = messages(capsys)
        assert line.startswith(f"note: the earlier run is now {folder}.until-2")
        kept = [path for path in folder.parent.iterdir() if path != folder]
        assert len(kept) == count
        assert before in [contents(path) for path in kept]
        assert contents(folder) != before
    # Under its old name it goes on as if nothing had been.
    first = next(path for path in kept if contents(path) == before)
    shutil.move(first, folder.with_name("back"))
    assert pretrain(PLUS, "--resume", name="back")[0] == 0
    assert_same_bits(folder.with_name("back"), folder.with_name("back"))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "wrong",
    [
        ["--eps=1e-42", "--compute-dtype=bfloat16"],
        ["--data=nowhere"],
        ["--context=4000"],
        ["--width=1000000000"],
        ["--batch-size=1000000000000"],
    ],
)
def test_nothing_is_moved_before_all_is_checked(pretrain, capsys, wrong: list[str]):
    _, folder = pretrain(PLUS)
    before, names = contents(folder), os.listdir(folder.parent)
    capsys.readouterr()
    refusal(capsys, pretrain(PLUS, "--overwrite", *wrong)[0], 2)
    assert contents(folder) == before
    assert os.listdir(folder.parent) == names
    refusal(capsys, pretrain(PLUS, *wrong, name="fresh")[0], 2)
    assert os.listdir(folder.parent) == names


def test_the_lock_says_who_has_it_and_dies_with_its_process(pretrain, capsys):
    """Another process holds it; killed, it lets go."""
    _, folder = pretrain(PLUS)
    before = contents(folder)
    script = (
        "import pathlib, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pretraining.lock import FolderLock\n"
        "held = FolderLock(pathlib.Path(sys.argv[2])); held.acquire(); held.sign()\n"
        "print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(EXAMPLES), str(folder)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "held\n"
        for flags in (["--resume"], ["--overwrite"]):
            capsys.readouterr()
            text = refusal(capsys, pretrain(PLUS, *flags)[0], 1)
            assert f"is in use by process {process.pid} on " in text
            assert " since 2" in text
            assert " UTC; wait for it to end, or choose another --name" in text
            assert contents(folder) == before
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert pretrain(PLUS, "--resume")[0] == 0
    assert not (folder / "holder.json").exists()


def test_a_folder_that_changed_before_it_was_locked_is_looked_at_again(
    pretrain, capsys, monkeypatch
):
    """Between the first look and the lock another process starts a run here and ends."""
    acquire, runs = lock.FolderLock.acquire, []

    def late(self: lock.FolderLock) -> None:
        if not runs:
            runs.append(True)
            assert pretrain(PLUS, "--seeds=5")[0] == 0
            capsys.readouterr()
        acquire(self)

    monkeypatch.setattr(lock.FolderLock, "acquire", late)
    text = refusal(capsys, pretrain(PLUS)[0], 2)
    assert "holds an earlier run" in text


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_where_nothing_can_be_locked_a_note_says_so(pretrain, capsys, monkeypatch, number: int):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    code, folder = pretrain(PLUS)
    assert code == 0
    (line,) = messages(capsys)
    assert line.startswith(f"note: this file system locks {folder} not at all (")
    assert "no second process runs under this --name" in line


def test_other_versions_are_noted(pretrain, capsys, monkeypatch):
    now = identity.versions

    def then(device: object) -> dict[str, str]:
        return now(device) | {"torch": "2.8.0", "processor": "Z80"}

    with monkeypatch.context() as patch:
        patch.setattr(identity, "versions", then)
        _, folder = pretrain(PLUS)
    capsys.readouterr()
    assert pretrain(PLUS, "--resume")[0] == 0
    lines = messages(capsys)
    assert len(lines) == 2
    assert lines[0].startswith(f"note: since {folder} was started torch was 2.8.0 and is ")
    assert "processor was Z80 and is " in lines[1]


def test_what_a_killed_process_left_is_removed_and_nothing_else(pretrain):
    _, folder = pretrain(PLUS)
    left = [
        folder / ".run.json.0123456789abcdef.tmp",
        folder / "checkpoints" / ".plus-seed0.pt.0123456789abcdef.tmp",
    ]
    mine = [folder / "notes.tmp", folder / ".x.0123.tmp", folder / "checkpoints" / "mine.pt"]
    for path in (*left, *mine):
        path.write_text("?")
    assert pretrain(PLUS, "--resume")[0] == 0
    assert not any(path.exists() for path in left)
    assert all(path.read_text() == "?" for path in mine)
    assert temporaries(folder) == mine[:2] or set(temporaries(folder)) == set(mine[:2])


# -- files -----------------------------------------------------------------------------------------


SAVED = ["--strategies=plus", "--checkpoint-every=2"]
# Far above what a run calls; the test of every call checks that.
NEVER = 10**6


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


@pytest.fixture
def through(pretrain) -> Path:
    code, folder = pretrain(*SAVED, name="through")
    assert code == 0
    return folder


def points(pretrain, share: int) -> range:
    """Numbers of every `share`-th call that changes the disk in a run."""
    total = calls_of(lambda: pretrain(*SAVED, name="counted"))
    assert 60 < total < 200
    return range(1 + share // 2, total + 1, share)


def go_on_with(pretrain, capsys, through: Path, folder: Path) -> None:
    capsys.readouterr()
    code, _ = pretrain(*SAVED, "--resume", name=folder.name)
    lines = messages(capsys)
    assert code == 0, lines
    assert_same_bits(folder, through)
    assert not temporaries(folder)
    # A newest checkpoint may be missing for the moment between two renames.
    assert all(line.startswith("note: ") for line in lines)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("share", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_full_disk(pretrain, capsys, through: Path, share: int):
    """One line, exit code 1, no temporary file; with room again the same bits come out."""
    folder = through.with_name("full")
    for last in points(pretrain, share):
        shutil.rmtree(folder, ignore_errors=True)
        capsys.readouterr()
        with disk(last):
            code, _ = pretrain(*SAVED, name="full")
        line = refusal(capsys, code, 1)
        assert ": No space left on device" in line, (last, line)
        assert str(folder) in line
        assert not temporaries(folder)
        go_on_with(pretrain, capsys, through, folder)


@pytest.mark.parametrize("share", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_call(pretrain, capsys, through: Path, share: int):
    """A kill -9 between two calls or within a write cleans up nothing."""
    folder = through.with_name("killed")
    for last in points(pretrain, share):
        shutil.rmtree(folder, ignore_errors=True)
        with disk(last, kill=True), pytest.raises(Killed):
            pretrain(*SAVED, name="killed")
        go_on_with(pretrain, capsys, through, folder)


def test_no_room_for_files_of_this_size(pretrain, capsys, through: Path):
    """The system itself refuses, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        code, folder = pretrain(*SAVED, name="large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    line = refusal(capsys, code, 1)
    assert "plus-seed0.pt: File too large" in line
    assert "; go on from the last checkpoint with: " in line
    assert line.endswith(" --resume")
    assert not temporaries(folder)
    go_on_with(pretrain, capsys, through, folder)


def run_in_a_process(folder: Path, texts: Path) -> subprocess.Popen:
    command = [sys.executable, str(EXAMPLES / "pretrain.py"), *TINY, f"--data={texts}/*.txt",
               f"--out={folder.parent}", f"--name={folder.name}", *SAVED, "--resume",
               "--steps=60"]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_9(pretrain, capsys, texts: Path, tmp_path: Path, kills: int):
    """A real process, killed at random moments of its training, resumed to the same bits."""
    draw = random.Random(0)
    rest = [*SAVED, "--steps=60"]
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
    code, through = pretrain(*SAVED, "--steps=60", name="through")
    assert code == 0
    for number in range(7):
        folder = tmp_path / "runs" / f"both{number}"
        both = [run_in_a_process(folder, texts) for _ in range(2)]
        assert sorted(process.wait() for process in both) == [0, 1]
        assert_same_bits(folder, through)
