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
    assert len(found.functions) < 100
    assert len(found.files) < 13
    first = script.step(AdamW, precision="plus")
    # The mutant: a step that is checked in full each time.
    optimizer = first.__self__
    with mcf.executor("numba"):
        full = script.passed(lambda: (optimizer._steps.forget(), first()))
    assert len(full.functions) > 2 * len(found.functions)
    assert len(full.files) > 12
