"""The two figures of a run: loss.png and edq.png.

Colours are Okabe and Ito's, which stay apart for colour-blind eyes; each curve carries its name.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pretraining.files import write_atomically

Array = npt.NDArray[np.float64]
Change = Callable[[Array], Array]

STYLE = {
    "plain": ("#D55E00", "-"),
    "kahan": ("#E69F00", (0, (5, 1.5))),
    "light": ("#56B4E9", "-"),
    "plus": ("#0072B2", "-"),
    "fp32_states": ("#CC79A7", (0, (5, 1.5))),
    "master": ("#000000", (0, (1.5, 1))),
    "bf16_sr": ("#F0E442", "-"),
    "8bit": ("#009E73", "-"),
    "split8_8bit": ("#009E73", (0, (5, 1.5))),
    "4bit": ("#009E73", (0, (1.5, 1))),
    "stochastic": ("#999999", "-"),
    "split16": ("#666666", "-"),
    "split16_sr": ("#AA3377", "-"),
    "split16_8bit": ("#AA3377", (0, (5, 1.5))),
    "split8": ("#666666", (0, (5, 1.5))),
    "split8_sr": ("#AA3377", (0, (1.5, 1))),
    "eco": ("#bbbbbb", "-"),
    "eco_stochastic": ("#bbbbbb", (0, (5, 1.5))),
}
RC = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "font.size": 9.5,
    "legend.frameon": False,
}


class _Curves:
    """One metric of all trainings: for each strategy the steps and an array [seeds, steps]."""

    def __init__(self, metrics: list[dict[str, Any]], key: str) -> None:
        found: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for row in metrics:
            if key in row:
                found[row["strategy"]][row["seed"]][row["step"]] = row[key]
        self.steps = {s: np.array(list(next(iter(of.values())))) for s, of in found.items()}
        self.values: dict[str, Array] = {
            s: np.array([list(of_step.values()) for of_step in of.values()])
            for s, of in found.items()
        }


def _smooth(values: Array, width: int) -> Array:
    """Centred mean over `width` neighbours of the last axis, fewer at the ends."""
    kernel = np.ones(max(1, width))
    count = np.convolve(np.ones(values.shape[-1]), kernel, "same")
    return np.stack([np.convolve(row, kernel, "same") / count for row in values])


def _spread_out(places: dict[str, float], gap: float) -> dict[str, float]:
    """Move places on [0, 1] apart to distances of at least `gap`, each group about its middle."""
    groups: list[list[str]] = []

    def centre(group: list[str]) -> float:
        half = gap * (len(group) - 1) / 2
        return min(max(sum(places[name] for name in group) / len(group), half), 0.97 - half)

    for name in sorted(places, key=lambda name: places[name]):
        groups.append([name])
        while len(groups) > 1:
            below, above = groups[-2:]
            if centre(above) - centre(below) >= gap * (len(above) + len(below)) / 2:
                break
            groups[-2:] = [below + above]
    return {
        name: centre(group) + gap * (i - (len(group) - 1) / 2)
        for group in groups
        for i, name in enumerate(group)
    }


def _name_curves(axes: Axes, ends: dict[str, tuple[float, float]]) -> None:
    """Write each curve's name right of its end, moved apart where they would overlap."""
    axes.autoscale_view()  # Limits are lazy otherwise, and the ends' places wrong.
    to_axes = axes.transAxes.inverted()
    spots = {}
    for name, end in ends.items():
        x, y = to_axes.transform(axes.transData.transform(end))
        if not math.isnan(y):
            # A curve may end outside of the axes; its name stays at the edge.
            spots[name] = (x, min(max(y, 0.0), 1.0))
    heights = _spread_out({name: y for name, (_, y) in spots.items()}, gap=0.065)
    for name in spots:
        axes.annotate(
            name,
            xy=spots[name],
            xytext=(1.06, heights[name]),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=STYLE[name][0],
            va="center",
            annotation_clip=False,
            # From the label's left middle to the curve's end.
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "color": STYLE[name][0],
                "lw": 0.6,
                "shrinkA": 0,
                "shrinkB": 1,
            },
        )


def _draw(axes: Axes, curves: _Curves, change: Change) -> None:
    """Draw the mean over seeds of each strategy, with a band from the lowest to the highest."""
    ends = {}
    for name in [name for name in STYLE if name in curves.values]:
        values = change(curves.values[name])
        colour, dashes = STYLE[name]
        mean = values.mean(axis=0)
        axes.plot(
            curves.steps[name],
            mean,
            color=colour,
            linestyle=dashes,
            lw=1.6,
            zorder=2 if dashes == "-" else 3,
        )
        if len(values) > 1:
            axes.fill_between(
                curves.steps[name], values.min(axis=0), values.max(axis=0), color=colour,
                alpha=0.12, lw=0,
            )  # fmt: skip
        ends[name] = (float(curves.steps[name][-1]), float(mean[-1]))
    axes.set_xlabel("step")
    axes.margins(x=0)
    _name_curves(axes, ends)


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    write_atomically(path, buffer.getvalue())


def loss(path: Path, metrics: list[dict[str, Any]]) -> None:
    """Plot validation loss, its difference from master's, and where each strategy ends."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(15.5, 4.3))
        curve, gap, final = figure.subplots(1, 3, width_ratios=[1, 1, 0.8])
        figure.subplots_adjust(wspace=0.75)
        val, train = _Curves(metrics, "val_loss"), _Curves(metrics, "train_loss")
        for name, values in train.values.items():
            smooth = _smooth(values, values.shape[1] // 40).mean(axis=0)
            curve.plot(train.steps[name], smooth, color=STYLE[name][0], lw=0.6, alpha=0.35)
        curve.set_title("Loss: validation (thick), training (thin)")
        curve.set_ylabel("nats per token")
        # The first steps fall from ln(vocabulary) and would flatten all that follows.
        ends = np.concatenate([v[:, -1] for v in val.values.values()])
        starts = np.concatenate([v[:, 0] for v in val.values.values()])
        curve.set_ylim(np.nanmin(ends) - 0.05, np.nanmax(starts) + 0.1)
        _draw(curve, val, lambda values: values)

        reference = val.values.get("master")
        if reference is None:
            gap.set_visible(False)
        else:
            gap.set_title("Validation loss minus master's, same seed")
            gap.set_ylabel("nats per token")
            _draw(gap, val, lambda values: values - reference)
        _final(final, val)
        _save(figure, path)


def edq(path: Path, metrics: list[dict[str, Any]]) -> None:
    """Plot how much of each update the stored numbers took: EDQ / |d| and lost additions."""
    panels = (
        ("edq_ratio", "EDQ / |d|: share of the update that arrived", lambda x: x),
        ("edq_ratio", "|1 - EDQ / |d||: the error of the above", lambda x: np.abs(1 - x)),
        ("lost_param", "Additions to the weights lost, %", lambda x: 100 * x),
        ("lost_exp_avg_sq", "Additions to the second moment lost, %", lambda x: 100 * x),
    )
    with mpl.rc_context(RC):
        # One below the other, with their names five inches wide: read on a page and on a phone.
        figure = Figure(figsize=(4.2, 13))
        figure.subplots_adjust(hspace=0.4)
        for number, (key, title, change) in enumerate(panels, 1):
            axes = figure.add_subplot(4, 1, number)
            curves = _Curves(metrics, key)
            if number == 2:
                axes.set_yscale("log")

            axes.set_title(title)
            _draw(axes, curves, lambda x, f=change: _smooth(f(x), x.shape[1] // 40))
        _save(figure, path)


def _final(axes: Axes, val: _Curves) -> None:
    """Draw each seed's last validation loss, and master's mean and spread as a band behind."""
    last = {name: val.values[name][:, -1] for name in STYLE if name in val.values}
    means = {name: float(values.mean()) for name, values in last.items()}
    reference = last.get("master", next(iter(last.values())))
    spread = float(reference.std(ddof=1)) if len(reference) > 1 else 0.0
    if "master" in last:
        axes.axvspan(means["master"] - spread, means["master"] + spread, color="#dddddd", zorder=0)
        axes.axvline(means["master"], color="#999999", lw=0.8, zorder=0)
    # A strategy far behind would press all others into one spot: it becomes an arrow.
    best = min(means.values())
    reach = max(sorted(mean - best for mean in means.values())[len(means) // 2] * 1.6, 4 * spread)
    shown = {name for name in last if means[name] - best <= max(reach, 1e-6)}
    for row, (name, values) in enumerate(last.items()):
        colour = STYLE[name][0]
        if name in shown:
            axes.plot(values, np.full(len(values), row), "o", color=colour, ms=5, alpha=0.6)
            axes.plot(means[name], row, "|", color=colour, ms=16, mew=2)
        else:
            axes.plot(
                0.97, row, ">", color=colour, ms=8, transform=axes.get_yaxis_transform(),
                clip_on=False,
            )  # fmt: skip
        text = f"{means[name]:.3f}" + (f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else "")
        axes.text(1.03, row, text, color=colour, va="center", transform=axes.get_yaxis_transform())
    axes.margins(x=0.12)
    axes.set_yticks(range(len(last)), list(last))
    axes.set_ylim(len(last) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("nats per token")
    axes.set_title("Final validation loss" + (", each seed; band: master ± std" if spread else ""))
