"""Exact: what is asked for large pages lies within what a loop writes first, and is all of it.

Caught mutants: pages that begin before the memory or end behind it, memory that is read asked for,
too.
"""

from __future__ import annotations

import mmap

import pytest
import torch

import mcf
from mcf.kernels.numba.runtime import pages

PAGE = mmap.PAGESIZE
Range = tuple[int, int]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """Where memory begins and how long it is that the system is told of; 32 KiB are large."""
    found: list[Range] = []

    def advise(address: int, size: int, advice: int) -> int:
        found.append((address, size))
        return 0

    monkeypatch.setattr(pages, "_advised", lambda: advise)
    monkeypatch.setattr(pages, "LARGE", 1 << 15)
    return found


@pytest.mark.parametrize("shift", [0, 8, PAGE - 8])
@pytest.mark.parametrize("rest", [0, 8, PAGE - 8])
def test_whole_pages_inside(asked: list[Range], shift: int, rest: int) -> None:
    start, size = 100 * PAGE + shift, 20 * PAGE + rest
    assert pages.ask(start, size)
    [(first, length)] = asked
    assert first % PAGE == length % PAGE == 0
    assert start <= first < start + PAGE
    assert start + size - PAGE < first + length <= start + size


def test_small_memory_is_left_alone(asked: list[Range]) -> None:
    assert not pages.ask(1 << 20, (1 << 15) - 1)
    assert not asked


def _covered(parts: tuple[torch.Tensor, ...], asked: list[Range]) -> list[bool]:
    """Of each tensor whether the system was told of a page of it."""
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
