"""Run notebooks and store what their cells print and draw.

    python -m tests.notebooks.store [NAME ...]

Cells run as plain Python, in one namespace, as the tests run them.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcf

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def code(name: str) -> list[dict[str, Any]]:
    """Return the code cells of a notebook."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    """Return the text that a notebook stores as the output of a cell."""
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def run(name: str) -> Iterator[tuple[dict[str, Any], str, list[bytes]]]:
    """Run a notebook; yield each code cell, what it printed, and its figures as PNG files."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    scope: dict[str, Any] = {"__name__": "__main__"}
    # A notebook may choose an executor and a style.
    with mpl.rc_context(), mcf.executor(mcf.get_executor()):
        for number, cell in enumerate(code(name)):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                source = "".join(cell["source"])
                exec(compile(source, f"{name}.ipynb[{number}]", "exec"), scope)
            pictures = []
            for figure in map(plt.figure, plt.get_fignums()):
                file = io.BytesIO()
                figure.savefig(file, format="png", dpi=90, metadata={"Software": None})
                pictures.append(file.getvalue())
            plt.close("all")
            yield cell, said.getvalue(), pictures


def store(name: str) -> None:
    """Write the outputs of a run into a notebook."""
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, (_, text, pictures)) in enumerate(zip(cells, run(name), strict=True), 1):
        outputs: list[dict[str, Any]] = []
        if text:
            lines = text.splitlines(keepends=True)
            outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
        for picture in pictures:
            data = {"image/png": base64.b64encode(picture).decode()}
            outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
        cell["execution_count"], cell["outputs"] = number, outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")):
        store(name)
        print(name, flush=True)
