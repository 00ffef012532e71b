"""Makes `examples/` importable, as it is for `python examples/pretrain.py`, and runs it tiny."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.examples.tiny import EXAMPLES, TINY

sys.path.insert(0, str(EXAMPLES))


@pytest.fixture(autouse=True)
def _restore_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`pretrain.main` sets process-wide switches; put them back for the other tests."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    random = torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_rng_state(random)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of twelve small, different text files."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.txt").write_text(f"file {number}: " + "lorem ipsum dolor " * 9)
    return folder


Pretrain = Callable[..., tuple[int, Path]]


@pytest.fixture
def pretrain(texts: Path, tmp_path: Path) -> Pretrain:
    """A function: run the tiny configuration with more arguments; exit code and run folder."""
    from pretrain import main

    def run(*arguments: str, name: str = "tiny") -> tuple[int, Path]:
        base = [*TINY, f"--data={texts}/*.txt", f"--out={tmp_path / 'runs'}", f"--name={name}"]
        return main([*base, *arguments]), tmp_path / "runs" / name

    return run
