"""Files of compiled loops: refused where others can write or bits are wrong; disks that are full.

Mutants: every bit of a file that is flipped, each owner, mode and kind of file but the one allowed.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from mcf.kernels import cache_files
from mcf.kernels.numba.cache import objects
from tests.kernels.loop_cache_cases import adds, compilations, emptied, entry

pytestmark = pytest.mark.skipif(not cache_files.available(), reason="no owners of files here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return emptied(tmp_path, monkeypatch)


def test_every_bit_is_checked(folder: Path) -> None:
    assert compilations() == 1
    data = entry(folder).read_bytes()
    code = objects.unpacked(entry(folder).name, data)
    assert code is not None
    assert data == objects.packed(entry(folder).name, code)
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        assert objects.unpacked(entry(folder).name, bytes(changed)) is None
    for length in (0, 1, 11, 70, len(data) // 2, len(data) - 1):
        assert objects.unpacked(entry(folder).name, data[:length]) is None
    assert objects.unpacked(entry(folder).name, data + b"\0") is None
    assert objects.unpacked("another key", data) is None


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "renamed"])
def test_a_damaged_file_is_replaced(folder: Path, damage: str) -> None:
    assert compilations() == 1
    path = entry(folder)
    data = path.read_bytes()
    other = objects.packed("another key", objects.unpacked(path.name, data))
    wrong = {"empty": b"", "cut": data[:-9], "changed": data[:-1] + b"!", "renamed": other}
    path.write_bytes(wrong[damage])
    assert [compilations() for _ in range(2)] == [1, 0]
    assert entry(folder).read_bytes() == data


@pytest.mark.parametrize("which", ["file", "inner", "outer"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_refused(
    folder: Path, which: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert compilations() == 1
    path = {"file": entry(folder), "inner": folder, "outer": folder.parent}[which]
    path.chmod(path.stat().st_mode | mode)
    assert compilations() == 1
    assert compilations() == (0 if which == "file" else 1)
    # A file is written anew; of a folder it is said once.
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    assert "can be written by others" in caplog.text


@pytest.mark.parametrize("which", ["file", "inner", "outer"])
def test_what_belongs_to_others_is_refused(
    folder: Path, which: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations() == 1
    path = {"file": entry(folder), "inner": folder, "outer": folder.parent}[which]
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert compilations() == 1
    assert "belongs to user" in caplog.text


@pytest.mark.parametrize("which", ["file", "inner", "outer"])
def test_links_are_refused(folder: Path, which: str, tmp_path: Path) -> None:
    assert compilations() == 1
    path = {"file": entry(folder), "inner": folder, "outer": folder.parent}[which]
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert compilations() == 1
    # A link to a file is replaced, never followed.
    assert compilations() == (0 if which == "file" else 1)


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    assert compilations() == 1
    path = entry(folder)
    path.unlink()
    os.mkfifo(path)
    assert [compilations() for _ in range(2)] == [1, 0]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_a_folder_in_a_files_place_leaves_no_descriptor_open(folder: Path) -> None:
    assert compilations() == 1
    (folder / "key").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    assert [cache_files.read("key") for _ in range(5)] == [None] * 5
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk(folder: Path) -> None:
    assert compilations() == 1
    for path in folder.iterdir():
        path.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        # Some bytes can be written, then no more.
        assert compilations() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []
    assert [compilations() for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("call", ["mkdir", "open", "rename", "stat"])
def test_a_disk_that_takes_nothing(
    folder: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError(30, "Read-only file system")

    adds(2)()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        assert compilations() == 1
    assert not folder.exists() or list(folder.iterdir()) == []
    assert not caplog.records
