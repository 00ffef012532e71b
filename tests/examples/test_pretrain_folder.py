"""Whose folder it is: others' files stay, earlier runs are kept, one process at a time.

Mutants these tests catch: no marker, no second look under the lock, no lock, options checked after
the old run has been moved.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
from pretraining import identity, lock

from tests.examples.runs import assert_same_bits, contents, messages, refusal, temporaries
from tests.examples.tiny import EXAMPLES

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
