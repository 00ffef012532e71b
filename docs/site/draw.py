"""Draws the pictures of docs/multi_component_floats.md.

    python docs/site/draw.py [FOLDER]

Every number in them is computed by the package and compared with rationals where it is drawn.
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
from matplotlib.patches import Rectangle
from torch import Tensor

import mcf

BF16 = torch.bfloat16
BLUE, RED, GREY, LIGHT = "#3949ab", "#c62828", "#757575", "#d7dbe8"
# From a row to the next, in heights of a cell.
STRIDE = 1.7
STYLE = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}


def number(value: Fraction | float) -> Tensor:
    """The bf16 number nearest to a value."""
    return torch.tensor(float(value), dtype=torch.float64).to(BF16)


def exact(*components: Tensor) -> Fraction:
    """The sum of components."""
    return sum((Fraction(c.item()) for c in components), Fraction(0))


def digits(value: Fraction, top: int, bottom: int) -> list[int]:
    """The binary digits of |value| from 2^top down to 2^bottom, cut."""
    scaled = abs(value) / Fraction(2) ** bottom
    whole = int(scaled)
    return [whole >> k & 1 for k in range(top - bottom, -1, -1)]


def row(axes: Any, y: float, value: Fraction, width: int, span: tuple[int, int], say: str) -> None:
    """One number as cells: its significand's `width` bits stand out, with their digits."""
    top, bottom = span
    found = digits(value, top, bottom)
    lead = found.index(1) if 1 in found else len(found)
    for k, digit in enumerate(found):
        inside = lead <= k < lead + width
        colour = (BLUE if value > 0 else RED) if inside else "white"
        axes.add_patch(
            Rectangle((k, y), 0.92, 0.7, facecolor=colour, edgecolor=LIGHT, alpha=0.9, lw=0.8)
        )
        if inside:
            place = {"ha": "center", "va": "center", "color": "white", "fontsize": 10}
            axes.text(k + 0.46, y + 0.34, str(digit), **place)
    # Above its cells: five inches are too narrow for names next to them.
    axes.text(0, y + 0.78, say, va="bottom")


def frame(axes: Any, rows: int, span: tuple[int, int]) -> None:
    """Columns named by their powers of two."""
    top, bottom = span
    axes.set_xlim(-0.1, top - bottom + 1.1)
    axes.set_ylim(-0.1, STRIDE * rows + 0.5)
    for k in range(0, top - bottom + 1, 4):
        axes.text(k + 0.46, STRIDE * rows, f"$2^{{{top - k}}}$", ha="center", color=GREY)
    axes.axis("off")


def of_a_tenth() -> plt.Figure:
    """1/10 in bf16, in two and three bf16 numbers and in float32."""
    span = (-4, -31)
    tenth = Fraction(1, 10)
    parts = mcf.tensor("0.1", terms=3, dtype=BF16).components
    single = Fraction(torch.tensor(0.1).item())
    figure, axes = plt.subplots(figsize=(5, 3.9))
    frame(axes, 5, span)
    row(axes, 4 * STRIDE, tenth, span[0] - span[1] + 1, span, "1/10")
    for k, part in enumerate(parts):
        name = ("bf16, first", "second component", "third component")[k]
        row(axes, (3 - k) * STRIDE, exact(part), 8, span, name)
    row(axes, 0, single, 24, span, "float32")
    errors = [float(abs(exact(*parts[:n]) / tenth - 1)) for n in (1, 2, 3)]
    assert errors[0] < 2.0**-8
    assert errors[1] < 2.0**-16
    assert errors[2] < 2.0**-24
    figure.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.01)
    return figure


def of_two_sum() -> plt.Figure:
    """a + b in bf16: the rounded sum, and what it lost, which is a bf16 number again."""
    a, b = number(Fraction(179, 128)), number(Fraction(217, 2**13))
    s, e = mcf.two_sum(a, b)
    assert exact(a) + exact(b) == exact(s, e)
    assert exact(e) != 0
    span = (0, -14)
    figure, axes = plt.subplots(figsize=(5, 3.9))
    frame(axes, 5, span)
    row(axes, 4 * STRIDE, exact(a), 8, span, "a")
    row(axes, 3 * STRIDE, exact(b), 8, span, "b")
    row(axes, 2 * STRIDE, exact(a) + exact(b), 15, span, "a + b, exactly")
    row(axes, STRIDE, exact(s), 8, span, "s = RN(a + b)")
    sign = "" if exact(e) > 0 else "-"
    said = f"e = a + b - s  ({sign} sign)" if sign else "e = a + b - s"
    row(axes, 0, exact(e), 8, span, said)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.01)
    return figure


def followed(update: float, steps: int) -> dict[str, list[float]]:
    """A weight of 1 that gets the same update again and again, kept in three ways."""
    d = number(update)
    plain = number(1)
    pair = (number(1), number(0))
    found: dict[str, list[float]] = {"exact": [1.0], "bf16": [1.0], "pair": [1.0]}
    for step in range(1, steps + 1):
        plain = plain + d
        pair = mcf.grow(pair, d)
        found["exact"].append(float(1 + step * exact(d)))
        found["bf16"].append(plain.item())
        found["pair"].append(float(exact(*pair)))
    return found


def of_lost_updates() -> plt.Figure:
    """bf16 numbers near 1, an update that is lost there, and 40 of them."""
    figure, (left, right) = plt.subplots(2, 1, figsize=(5, 5.6), height_ratios=[0.7, 1])
    grid = [Fraction(k, 256) for k in range(252, 256)] + [Fraction(k, 128) for k in range(128, 132)]
    assert all(exact(number(g)) == g for g in grid)
    left.hlines(0, 0.982, 1.026, color=GREY, lw=1)
    left.vlines([float(g) for g in grid], -0.12, 0.12, color=BLUE, lw=2)
    left.annotate("", (1.002, 0.25), (1, 0.25), arrowprops={"arrowstyle": "->", "color": RED})
    left.text(1.001, 0.32, "update 0.002", color=RED, ha="center")
    left.annotate(
        "", (1, -0.16), (1.002, -0.16), arrowprops={"arrowstyle": "->", "color": GREY, "ls": "--"}
    )
    left.text(1.0012, -0.32, "rounded back to 1", color=GREY, ha="center")
    left.text(1.0, 0.62, "the bf16 numbers near 1", color=BLUE, ha="center")
    left.set_ylim(-0.6, 0.85)
    left.set_xlim(0.98, 1.028)
    left.set_yticks([])
    left.set_xticks([0.984, 1.0, 1.016])
    left.spines["left"].set_visible(False)
    runs = followed(0.002, 40)
    right.plot(runs["exact"], color=GREY, lw=4, alpha=0.4, label="exact")
    right.plot(runs["pair"], color=BLUE, lw=1.5, label="two bf16 numbers")
    right.plot(runs["bf16"], color=RED, lw=1.5, label="one bf16 number")
    right.set_xlabel("updates of 0.002")
    right.set_ylabel("weight")
    right.legend(frameon=False)
    figure.tight_layout()
    return figure


def of_errors() -> plt.Figure:
    """Errors of a product of expansions beside the bound, for 1 to 4 float32 components."""
    figure, axes = plt.subplots(figsize=(5, 3.6))
    places = torch.arange(1, 65)
    for terms in (1, 2, 3, 4):
        worst = []
        for k in places.tolist():
            x = mcf.tensor(Fraction(k, 67), terms=terms, dtype=torch.float32)
            y = mcf.tensor(Fraction(71, k + 3), terms=terms, dtype=torch.float32)
            true = x.to_fractions() * y.to_fractions()
            worst.append(float(abs((x * y).to_fractions() / true - 1)))
        bound = mcf.bound("mul", terms, torch.float32).relative
        assert max(worst) <= bound
        shown = [error for error in worst if error > 0]
        axes.scatter([terms] * len(shown), shown, color=BLUE, s=14, alpha=0.5, lw=0)
        axes.hlines(bound, terms - 0.3, terms + 0.3, color=RED, lw=2)
    axes.set_yscale("log", base=2)
    axes.set_yticks([2.0 ** (-24 * k) for k in (1, 2, 3, 4)])
    axes.minorticks_off()
    axes.set_xticks([1, 2, 3, 4])
    axes.set_xlabel("float32 components")
    axes.set_ylabel("relative error of x * y")
    axes.scatter([], [], color=BLUE, s=14, label="64 products")
    axes.plot([], [], color=RED, lw=2, label="mcf.bound")
    axes.legend(frameon=False)
    figure.tight_layout()
    return figure


PICTURES = {
    "tenth": of_a_tenth,
    "two_sum": of_two_sum,
    "lost_updates": of_lost_updates,
    "errors": of_errors,
}


def main(arguments: Sequence[str]) -> None:
    """Draw all pictures into a folder."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "images" / "floats"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
            plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
