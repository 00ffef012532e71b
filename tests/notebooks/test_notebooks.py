"""The notebooks run: each cell in turn, with its own assertions, and with their outputs kept.

They are executed as plain Python, so that the tests need no Jupyter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.everyday import everyday

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# The tour solves systems with exact entries, a minute; the applications compile many kernels.
NAMES = everyday(["exactness", "tour", "applications"], ["exactness"])


def _code(name: str) -> list[dict[str, Any]]:
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_all_notebooks_are_run() -> None:
    listed = {n if isinstance(n, str) else n.values[0] for n in NAMES}
    assert {p.stem for p in NOTEBOOKS.glob("*.ipynb")} == listed


@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name: str) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the extra `examples` has it")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scope: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(_code(name)):
            source = "".join(cell["source"])
            exec(compile(source, f"{name}.ipynb[{number}]", "exec"), scope)
    finally:
        plt.close("all")


@pytest.mark.parametrize("name", ["exactness", "tour", "applications"])
def test_outputs_are_kept_and_small(name: str) -> None:
    cells = _code(name)
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) - 1
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < 300_000
