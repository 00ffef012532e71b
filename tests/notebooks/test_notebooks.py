"""The notebooks run: each cell in turn, with its own assertions, and print what they store.

They are executed as plain Python, so that the tests need no Jupyter.
"""

from __future__ import annotations

import pytest

from tests.helpers.everyday import everyday
from tests.notebooks import store

ALL = ["applications", "bounds", "collage", "digits", "exactness", "rounding", "step", "tour"]
# Each of the others takes half a minute or more.
NAMES = everyday(ALL, ["exactness", "step"])
# The others print results of functions whose last bits follow the processor, such as randn.
SAME_EVERYWHERE = {"bounds", "exactness", "step", "tour"}


def test_all_notebooks_are_run() -> None:
    assert sorted(p.stem for p in store.NOTEBOOKS.glob("*.ipynb")) == ALL


@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra `examples` has it")
    for cell, text, pictures in store.run(name):
        if name in SAME_EVERYWHERE:
            assert text == store.printed(cell)
        assert len(pictures) == sum("image/png" in o.get("data", {}) for o in cell["outputs"])


@pytest.mark.parametrize("name", ALL)
def test_outputs_are_small(name: str) -> None:
    cells = store.code(name)
    assert sum("data" in o for cell in cells for o in cell["outputs"]) > 0
    assert (store.NOTEBOOKS / f"{name}.ipynb").stat().st_size < 300_000
