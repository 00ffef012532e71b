"""Files of the benchmarks' results."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("harness")


def test_merged_rows_say_where_the_others_are_from(harness: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    old = [{"row": "a", "us": 1}, {"row": "b", "us": 2}]
    harness.merge_csv(path, old, {"commit": "one", "torch": "2.13"}, ("row",))
    harness.merge_csv(path, [{"row": "b", "us": 3}], {"commit": "two", "torch": "2.13"}, ("row",))
    assert path.read_text().splitlines() == [
        "# commit: two; other rows one", "# torch: 2.13", "row,us", "a,1", "b,3"
    ]  # fmt: skip
    # A training at a time: what is told already is not told again.
    harness.merge_csv(path, [{"row": "c", "us": 4}], {"commit": "two", "torch": "2.13"}, ("row",))
    assert path.read_text().splitlines()[0] == "# commit: two; other rows one"
    harness.merge_csv(
        path, [*old, {"row": "c", "us": 4}], {"commit": "three", "torch": "2.13"}, ("row",)
    )
    assert path.read_text().splitlines()[0] == "# commit: three"
    with pytest.raises(ValueError, match=r"has columns \['row', 'us'\], these rows \['us'\]"):
        harness.merge_csv(path, [{"us": 1}], {}, ())
