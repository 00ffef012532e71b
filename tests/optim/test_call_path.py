"""How short the path of a repeated step is, as docs/architecture.md draws it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import mcf
from mcf.optim import AdamW


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("call_paths")


def test_a_repeated_step(script: ModuleType) -> None:
    with mcf.executor("numba"):
        found = script.passed(script.step(AdamW, precision="plus"))
    assert len(found.functions) < 80
    assert len(found.files) < 10
