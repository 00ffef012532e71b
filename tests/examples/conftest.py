"""Makes `examples/` importable, as it is for `python examples/pretrain.py`, and runs it tiny."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.examples.tiny import EXAMPLES, TINY, torch_restored, write_texts

sys.path.insert(0, str(EXAMPLES))


@pytest.fixture(autouse=True)
def _restore_torch() -> Iterator[None]:
    with torch_restored():
        yield


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of twelve small, different text files."""
    return write_texts(tmp_path / "texts")


Pretrain = Callable[..., tuple[int, Path]]


@pytest.fixture
def pretrain(texts: Path, tmp_path: Path) -> Pretrain:
    """A function: run the tiny configuration with more arguments; exit code and run folder."""
    from pretrain import main

    def run(*arguments: str, name: str = "tiny") -> tuple[int, Path]:
        base = [*TINY, f"--data={texts}/*.txt", f"--out={tmp_path / 'runs'}", f"--name={name}"]
        return main([*base, *arguments]), tmp_path / "runs" / name

    return run
