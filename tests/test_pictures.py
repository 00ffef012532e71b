"""The pictures of docs/multi_component_floats.md and the landing page: numbers and files."""

from __future__ import annotations

import re
import runpy
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture
def script() -> dict[str, Any]:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra `examples`, draws")
    return runpy.run_path(str(DOCS / "site" / "draw.py"))


def test_numbers(script: dict[str, Any], on_torch: None) -> None:
    tenth = Fraction(1, 10)
    cells = script["digits"](tenth, -1, -12)
    assert cells == [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert cells == script["digits"](-tenth, -1, -12)
    runs = script["followed"](0.002, 40)
    assert set(runs["bf16"]) == {1.0}
    assert all(
        abs(pair - true) < 2.0**-15 for pair, true in zip(runs["pair"], runs["exact"], strict=True)
    )


@pytest.mark.slow
def test_all_are_drawn(script: dict[str, Any], tmp_path: Path, on_torch: None) -> None:
    script["main"]([str(tmp_path)])
    drawn = {path.name for path in tmp_path.iterdir()}
    page = (DOCS / "multi_component_floats.md").read_text()
    assert drawn == set(re.findall(r"\(images/floats/(\w+\.png)\)", page))
    assert drawn == {path.name for path in (DOCS / "images" / "floats").iterdir()}


def test_doors(tmp_path: Path, on_torch: None) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra `examples`, draws")
    script = runpy.run_path(str(DOCS / "site" / "doors.py"))
    sizes = [script["errors"](terms, [6])[0] for terms in (1, 2)]
    assert 1e-12 < sizes[0] < 1e-8
    assert 1e-29 < sizes[1] < 1e-24
    page = (DOCS / "index.md").read_text()
    drawn = {path.name for path in (DOCS / "images" / "doors").iterdir()}
    assert drawn == set(re.findall(r"\(images/doors/(\w+\.png)\)", page))
    # The numbers of the alternative text are those of the plan.
    assert script["of_memory"]() is not None
    planned = {row.name: 7 * row.per_param for row in script["plan"].rows(7e9)}
    shown = [float(x) for x in re.findall(r"\b(\d+) for ", page.split("](images")[0])]
    assert shown == [planned[name] for name in script["NAMES"]]
