"""The code of the how-to pages and tutorials runs as it stands there.

Pages that need another project's package: `tests/integrations/test_pages.py`.
"""

from __future__ import annotations

import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pages import BLOCK, DOCS, run

# Pages with blocks of Python, and who needs what for them.
ALONE = [
    "how_to/from_adamw.md",
    "how_to/from_float32_masters.md",
    "how_to/fsdp2.md",
    "linear_algebra.md",
    "multi_component_floats.md",
    "small_problems.md",
    "small_rates.md",
    "tutorials/expansions.md",
    "tutorials/pretraining.md",
]
WITH_STANDINS = ["how_to/logging.md"]
WITH_PACKAGES = {
    "how_to/accelerate.md": "accelerate",
    "how_to/lightning.md": "lightning",
    "how_to/timm.md": "timm",
    "how_to/transformers.md": "transformers",
}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_torch: None) -> None:
    """Files that a page writes are temporary; FSDP2's page is the world's only process."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in world.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("page", ALONE)
def test_page(page: str) -> None:
    assert run(page) > 0


def test_sessions_of_the_page_on_tensors() -> None:
    """Run its sessions alone, since other blocks use a model and files of the reader."""
    assert run("tensor.md", sessions_only=True) == 3


def test_logging_with_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard and wandb by the methods that the page calls; what they get is numbers."""
    curves: dict[str, list[int]] = {}
    logged: list[dict[str, float]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def __enter__(self) -> SummaryWriter:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def add_scalar(self, name: str, value: float, step: int) -> None:
            assert type(value) is float
            curves.setdefault(name, []).append(step)

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            assert {type(value) for value in values.values()} == {float}
            logged.append(values)

        def finish(self) -> None:
            pass

    board: Any = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = SummaryWriter
    wandb: Any = types.ModuleType("wandb")
    wandb.init = lambda **_: Run()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert run("how_to/logging.md") == 3
    assert curves["optimizer/edq_ratio"] == [0, 1, 2]
    assert len(logged) == 3
    assert set(logged[0]) == set(curves)


def test_every_page_with_code_runs() -> None:
    """Each page of the two folders with a block of Python is run by a test."""
    pages = [p for folder in ("how_to", "tutorials") for p in sorted((DOCS / folder).glob("*.md"))]
    coded = {p.relative_to(DOCS).as_posix() for p in pages if BLOCK.search(p.read_text())}
    assert coded == {*ALONE, *WITH_STANDINS, *WITH_PACKAGES} - {
        "linear_algebra.md",
        "multi_component_floats.md",
        "small_problems.md",
        "small_rates.md",
    }
