"""The table and the plot of `strategies.py`, from its CSV files."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import table
from strategy_variants import TRUTH

Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    """All rows; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def gaps(rows: Rows) -> dict[tuple[str, str], list[float]]:
    """For each (variant, beta2), the losses less those of TRUTH with the same seed."""
    truth = {(r["beta2"], r["seed"]): float(r["val_loss"]) for r in rows if r["variant"] == TRUTH}
    found = defaultdict(list)
    for r in rows:
        key = (r["beta2"], r["seed"])
        if key in truth:
            found[r["variant"], r["beta2"]].append(float(r["val_loss"]) - truth[key])
    return dict(found)


def _mean(rows: Rows, name: str) -> float:
    return statistics.fmean(float(r[name]) for r in rows)


def _measured(rows: Rows, name: str, form: str) -> str:
    """A mean; nothing where it was not measured, as for others' optimizers."""
    value = _mean(rows, name) if rows else math.nan
    return "" if math.isnan(value) else format(value, form)


def _with_error(values: list[float] | None) -> str:
    """Format the mean and its standard error; nothing where there are no values."""
    if values is None:
        return ""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return f"{statistics.fmean(values):+.4f}" + ("" if error is None else f" ± {error:.4f}")


def show(paths: list[Path], image: Path) -> None:
    """Print the table; draw bytes per parameter against the distance from float32 masters."""
    rows, speeds, horizons = (read(p) for p in paths)
    found = gaps(rows)
    betas = sorted({r["beta2"] for r in rows}, key=float)
    speed = {r["variant"]: r["ns_per_param"] for r in speeds}
    gone = {r["variant"]: r["gone"] for r in horizons}
    lines = []
    for name in dict.fromkeys(r["variant"] for r in rows):
        of_name = [r for r in rows if r["variant"] == name]
        hardest = [r for r in of_name if r["beta2"] == betas[-1]]
        lines.append({
            "variant": name,
            "bytes/param": f"{_mean(of_name, 'bytes_per_param'):.2f}",
            **{f"loss - master, beta2={b}": _with_error(found.get((name, b)))
               for b in betas},
            "EDQ/|d|": _measured(hardest, "edq_ratio", ".4f"),
            "lost p": _measured(hardest, "lost_param", ".1%"),
            "lost v": _measured(hardest, "lost_exp_avg_sq", ".1%"),
            "long horizon": gone.get(name, ""),
            "step ns/param": speed.get(name, ""),
        })  # fmt: skip
    if not lines:
        print("nothing to report yet")
        return
    print(table(lines, list(lines[0])))
    draw(rows, found, {b: f"beta2 = {b}" for b in betas}, image)
    print(f"\n{image}")


def frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (bytes, gap): those that are nearer to no gap than all with as many bytes or fewer.

    Not those of the least loss: what ends below float32 masters is noise or another learning rate.
    """
    found: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: (point[0], abs(point[1]))):
        if not found or abs(point[1]) < abs(found[-1][1]):
            found.append(point)
    return found


def draw(
    rows: Rows, found: dict[tuple[str, str], list[float]], titles: dict[str, str], image: Path
) -> None:
    """One panel for each beta2: bytes per parameter, mean loss gap, its standard error, frontier.

    Args:
        rows: with "variant", "family" and "bytes_per_param".
        found: gaps by variant and panel.
        titles: of the panels, in their order.
        image: the file.
    """
    from matplotlib.figure import Figure

    size = {r["variant"]: float(r["bytes_per_param"]) for r in rows}
    family = {r["variant"]: r["family"] for r in rows}

    def colour(name: str) -> str:
        return "#0072B2" if family[name] == "ours" else "#D55E00"

    # Wide panels: names stand beside their points. More than three are in two columns.
    columns = 1 if len(titles) < 4 else 2
    lines = -(-len(titles) // columns)
    figure = Figure(figsize=(10 * columns, 3.6 * lines), layout="constrained")
    made = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    axes_of = list(made.flat)[: len(titles)]
    for spare in list(made.flat)[len(titles) :]:
        spare.remove()
    points = {
        panel: {n: (size[n], statistics.fmean(v)) for (n, p), v in found.items() if p == panel}
        for panel in titles
    }
    for axes, (panel, title) in zip(axes_of, titles.items(), strict=True):
        # Linear near the truth, where most are; logarithmic beyond.
        axes.set_yscale("symlog", linthresh=0.004)
        for name, point in points[panel].items():
            values = found[name, panel]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
            axes.errorbar(*point, error, fmt="o", color=colour(name), ms=4)
        best = frontier(list(points[panel].values()))
        axes.plot(*zip(*best, strict=True), color="#009E73", linewidth=1, alpha=0.6, zorder=0)
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_ylabel("validation loss - float32 master weights")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(0.12)
    for axes in axes_of[-columns:]:
        axes.set_xlabel("bytes per parameter, gradient included")
    # Names last: they need the panels' common scales.
    figure.canvas.draw()
    for axes, panel in zip(axes_of, titles, strict=True):
        _name(axes, points[panel], colour)
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image, dpi=110)


def _name(axes: Any, points: dict[str, tuple[float, float]], colour: Callable[[str], str]) -> None:
    """Write each point's name to its right, at least a line from the name below it."""
    dpi = axes.figure.dpi
    line = 9 * dpi / 72
    columns: dict[float, float] = {}
    for name, point in sorted(points.items(), key=lambda item: (round(item[1][0]), item[1][1])):
        column = round(point[0])
        y = axes.transData.transform(point)[1]
        place = max(y, columns.get(column, -math.inf) + line)
        columns[column] = place
        axes.annotate(
            name,
            point,
            xytext=(7, (place - y) * 72 / dpi - 3),
            textcoords="offset points",
            fontsize=7.5,
            color=colour(name),
        )
