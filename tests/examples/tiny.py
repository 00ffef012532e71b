"""Make `examples/` importable; the smallest pretraining that still has every part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
if str(EXAMPLES) not in sys.path:
    sys.path.insert(0, str(EXAMPLES))

TINY = [
    "--layers=1", "--width=16", "--heads=2", "--context=16", "--batch-size=2", "--steps=7",
    "--eval-every=3", "--eval-windows=4", "--checkpoint-every=3", "--device=cpu", "--threads=1",
]  # fmt: skip


def write_texts(folder: Path) -> Path:
    """Fill a new folder with twelve small, different text files."""
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.txt").write_text(f"file {number}: " + "lorem ipsum dolor " * 9)
    return folder


@contextmanager
def torch_restored() -> Iterator[None]:
    """Put back the process-wide switches that `pretrain.main` sets."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    random = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_rng_state(random)
