"""Draws the two pictures of the site's landing page.

    python docs/site/doors.py [FOLDER]

The bytes are those of `mcf.plan`, and the errors are computed here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import mcf
from mcf import plan

BLUE, GREY = "#3949ab", "#757575"
STYLE = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}
SIZE = (3.6, 2.9)
NAMES = {plan.FLOAT32: "float32 masters", "split16_sr": "split16_sr", "bf16_sr": "bf16_sr"}
NAMES["8bit"] = "8bit"


def of_memory() -> plt.Figure:
    """GB of weights, gradients and states of a model of 7 B parameters, a bar a precision."""
    planned = {row.name: row.per_param for row in plan.rows(7e9)}
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    for line, (name, label) in enumerate(reversed(NAMES.items())):
        size = 7 * planned[name]
        axes.barh(line, size, color=GREY if name == plan.FLOAT32 else BLUE, height=0.5)
        axes.text(size - 2, line, f"{size:g}", color="white", va="center", ha="right")
        axes.text(1.5, line + 0.29, label, va="bottom", fontsize=12)
    axes.set_ylim(-0.35, 3.8)
    axes.set_yticks([])
    axes.set_xlabel("GB to train 7 B parameters")
    axes.spines["left"].set_visible(False)
    return figure


def errors(terms: int, sizes: Sequence[int]) -> list[float]:
    """Return the largest error of the solutions of Hilbert systems whose solution is ones."""
    found = []
    for n in sizes:
        rows = [[Fraction(1, i + j + 1) for j in range(n)] for i in range(n)]
        a = mcf.tensor(rows, terms=terms, dtype=torch.float64)
        b = mcf.tensor([[sum(row)] for row in rows], terms=terms, dtype=torch.float64)
        x: Any = mcf.linalg.solve(a, b)
        found.append(float((x - 1).abs().max().item()))
    return found


def of_digits() -> plt.Figure:
    """Errors of the solutions of Hilbert systems, a line for each number of components."""
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    sizes = range(3, 19, 3)
    for terms, label in enumerate(("float64", "2 floats", "3 floats", "4 floats"), 1):
        worst = errors(terms, sizes)
        colour = GREY if terms == 1 else BLUE
        axes.plot(sizes, worst, "o-", color=colour, ms=4, lw=2)
        axes.text(sizes[-1] + 0.5, worst[-1], label, va="center", color=colour)
    axes.set_yscale("log")
    axes.set_ylim(1e-66, 1e10)
    axes.set_yticks([1e-60, 1e-40, 1e-20, 1])
    axes.minorticks_off()
    axes.set_xticks(sizes)
    axes.set_xlim(2, 24)
    axes.spines["bottom"].set_bounds(2, 18.3)
    axes.set_xlabel("rows of a Hilbert matrix", x=0.37)
    axes.set_title("error of the solution", fontsize=12, loc="left")
    return figure


def main(arguments: Sequence[str]) -> None:
    """Draw both pictures into a folder."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "images" / "doors"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, draw in (("train", of_memory), ("compute", of_digits)):
            figure = draw()
            figure.savefig(folder / f"{name}.png", dpi=192, metadata={"Software": None})
            plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
