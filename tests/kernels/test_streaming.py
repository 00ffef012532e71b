"""When loops store past the cache: sizes that Linux tells, and what virtual machines are told.

*Exact*. That such stores change no bit is shown in test_rewrite.py. Large pages are asked for
within memory that a loop writes first, and for all of it.

Caught mutants: pages that begin before the memory or end after it; memory that is read asked for.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

import mcf
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


PAGE = mmap.PAGESIZE
Range = tuple[int, int]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """Record the address and length of each range that the system is told of; 32 KiB are large."""
    found: list[Range] = []

    def advise(address: int, size: int, advice: int) -> int:
        found.append((address, size))
        return 0

    monkeypatch.setattr(streaming, "_advised", lambda: advise)
    monkeypatch.setattr(streaming, "LARGE", 1 << 15)
    return found


@pytest.mark.parametrize("shift", [0, 8, PAGE - 8])
@pytest.mark.parametrize("rest", [0, 8, PAGE - 8])
def test_whole_pages_inside(asked: list[Range], shift: int, rest: int) -> None:
    start, size = 100 * PAGE + shift, 20 * PAGE + rest
    assert streaming.ask_pages(start, size)
    [(first, length)] = asked
    assert first % PAGE == length % PAGE == 0
    assert start <= first < start + PAGE
    assert start + size - PAGE < first + length <= start + size


def test_small_memory_is_left_alone(asked: list[Range]) -> None:
    assert not streaming.ask_pages(1 << 20, (1 << 15) - 1)
    assert not asked


def _covered(parts: tuple[torch.Tensor, ...], asked: list[Range]) -> list[bool]:
    """Return for each tensor whether the system was told of a page of it."""
    ends = [(c.data_ptr(), c.data_ptr() + 8 * c.numel()) for c in parts]
    return [any(a <= first < b for first, _ in asked) for a, b in ends]


def test_results_and_no_operands(asked: list[Range]) -> None:
    # More elements than go by plan, and a number that no other test has prepared.
    given = torch.arange(1, 70_123, dtype=torch.float64)
    x, y = (mcf.tensor(given / k, 2, torch.float64) for k in (3, 7))
    asked.clear()
    for result in (x + y, x * y, x.cumsum(0)):
        assert all(_covered(result.components, asked))
        assert not any(_covered((*x.components, *y.components), asked))
    x.add_(y)
    assert not any(_covered((*x.components, *y.components), asked))
