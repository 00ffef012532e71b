"""The benchmark of compilations for GPUs: its rows and their table."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton has wheels for Linux only")


@pytest.mark.slow
def test_rows_and_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    # Set for each compilation; put back afterwards.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compilation = importlib.import_module("compilation")
    # Complex functions are not in float32 registers; operations are in no others.
    assert not compilation.kernels("mul", "float32", 2)
    assert list(compilation.kernels("mul", "float32 in float32", 3)) == ["mul"]
    given = argparse.Namespace(
        functions=["floor", "complex_exp"],
        kinds=["float32 in float32"],
        targets=["sm_80", "sm_90"],
        terms=[2],
        runs=1,
    )
    rows = list(compilation.rows(given))
    assert [(r["function"], r["target"]) for r in rows] == [("floor", "sm_80"), ("floor", "sm_90")]
    for row in rows:
        assert 0 < row["registers"] <= 255
        assert row["bytes of stack"] == 0
        assert row["instructions"] > 100
    lines = compilation.report(rows).splitlines()
    assert len(lines) == 3
    assert f"{rows[1]['seconds']}, {rows[1]['registers']}, 0, {rows[1]['instructions']}" in lines[2]
