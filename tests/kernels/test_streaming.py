"""When loops store past the cache: sizes that Linux tells, and what virtual machines are told.

*Exact*. That such stores change no bit is shown in test_rewrite.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mcf.kernels.numba.runtime import streaming

MIB = 1 << 20

# Levels as (size, processors that share it), and what of the last can be counted on.
MACHINES = {
    "virtual machine, 2 of a socket's processors": (
        [("48K", "0"), ("64K", "0"), ("2048K", "0"), ("491520K", "0-1")],
        32 * MIB,
    ),
    "the same socket, all of it": ([("2048K", "0,256"), ("491520K", "0-127,256-383")], 480 * MIB),
    "8 cores beside 32 MiB": ([("512K", "0,8"), ("32768K", "0-15")], 32 * MIB),
    "8 cores below 96 MiB": ([("1024K", "0,64"), ("98304K", "0-7,64-71")], 96 * MIB),
    "one virtual processor": ([("1024K", "0"), ("36608K", "0")], 16 * MIB),
    "a large second level and no third": ([("128K", "0"), ("24576K", "0-3")], 24 * MIB),
    "an emulator": ([("16384K", "")], 16 * MIB),
    "bytes": ([("20971520", "0-1")], 20 * MIB),
    "the last level is not told": ([("32K", "0"), ("512K", "0")], 16 * MIB),
    "nothing is told": ([], 32 * MIB),
    "nonsense": ([("large", "0"), ("64K", "some")], 32 * MIB),
}


def described(folder: Path, levels: list[tuple[str, str]]) -> Path:
    for k, (size, shared) in enumerate(levels):
        cache = folder / f"index{k}"
        cache.mkdir()
        (cache / "size").write_text(size + "\n")
        (cache / "shared_cpu_list").write_text(shared + "\n")
    return folder


@pytest.mark.parametrize("name", MACHINES)
def test_what_can_be_counted_on(name: str, tmp_path: Path) -> None:
    levels, expected = MACHINES[name]
    assert streaming.capacity(described(tmp_path, levels)) == expected


def test_files_that_are_missing(tmp_path: Path) -> None:
    described(tmp_path, [("512K", "0"), ("65536K", "0-15")])
    (tmp_path / "index1" / "size").unlink()
    assert streaming.capacity(tmp_path) == 16 * MIB
    assert streaming.capacity(tmp_path / "nowhere") == 32 * MIB


def test_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "last_level", lambda: 32 * MIB)
    assert not streaming.worthwhile(32 * MIB - 1)
    assert streaming.worthwhile(32 * MIB)
    # On this machine, whatever it is, it is one or the other.
    monkeypatch.undo()
    assert streaming.worthwhile(streaming.last_level())
    assert not streaming.worthwhile(streaming.last_level() - 1)
