"""Warnings of other projects are not ours to mend; those of `mcf` stay errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{HERE}{os.sep}"
    for item in items:
        # Of tens of thousands of tests: a look at each path's parents took a second.
        if str(item.path).startswith(here):
            # The last mark counts first.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:::mcf"))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What clients write by themselves is temporary; for models this small one thread is best."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_compilation(on_torch: None) -> None:
    """What clients do is the same on each executor; this one compiles nothing."""
