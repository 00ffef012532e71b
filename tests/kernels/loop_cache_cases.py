"""A small loop that is asked for as from a cache, and how often it was compiled."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcf.kernels import cache_files
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.runtime import team


def add(data):  # type: ignore[no-untyped-def]
    put(data, 0, number(data, 0) + ADDED)  # type: ignore[name-defined]  # noqa: F821


@functools.cache
def _adds(number: int) -> tuple[Any, str]:
    return Loop(add, names={"ADDED": number}, whole=True).compiled()  # type: ignore[no-any-return]


def adds(number: int) -> Callable[[], tuple[Any, str]]:
    """Return the function that compiles, once, a loop that adds a number to one."""
    return lambda: _adds(number)


def added(loop: objects.Native) -> int:
    word = array("q", [40])
    team.run(loop.address, word.buffer_info()[0], 1)
    return word[0]


def compilations(parts: tuple[Any, ...] = ("test",), number: int = 2) -> int:
    """How often a loop is compiled when it is asked for."""
    before = stored.compiled
    assert added(stored.native(parts, adds(number))) == 40 + number
    return stored.compiled - before


def entry(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache, of which nothing is said yet."""
    monkeypatch.setenv("MCF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_files, "_said", set())
    return tmp_path / "cache" / "loops"
