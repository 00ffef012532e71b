"""Tables and plots of `small_rates.py` and `grpo.py`, printed and written into their page."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import strategy_report
from harness import table
from pages import write_between
from quality_report import standard_error
from strategy_report import Rows
from strategy_variants import TRUTH

# By (precision, rate): a value for each seed.
Values = dict[tuple[str, float], list[Any]]
# Okabe and Ito's colours, which most people can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Inches that a page of 390 pixels shows, so that letters of 12 points stay so.
WIDTH = 390 / 96


def values(rows: Rows, found: Callable[[dict[str, Any]], float]) -> Values:
    """Return a value of each row, by precision and rate, in the order of the rows."""
    made: Values = {}
    for row in rows:
        made.setdefault((row["precision"], float(row["rate"])), []).append(found(row))
    return made


def gain(row: dict[str, Any], reading: str, measure: str) -> float:
    """Return how far a measure went from the start by one reading of the weights."""
    return float(row[f"{reading}_{measure}"]) - float(row[f"start_{measure}"])


def shares(rows: Rows, reading: str, measure: str) -> Values:
    """Return the gains of all rows as shares of that of `master` with the same rate and seed.

    A row without its `master` is left out.
    """
    truth = {_pair(r): gain(r, reading, measure) for r in rows if r["precision"] == TRUTH}
    paired = [r for r in rows if _pair(r) in truth]
    return values(paired, lambda r: gain(r, reading, measure) / truth[_pair(r)])


def _pair(row: dict[str, Any]) -> tuple[str, ...]:
    return row["rate"], row["seed"], row["start"]


# Digits after the point at most.
MOST = 4


def mean_with_error(found: list[float], sign: str = "") -> str:
    """Return the mean ± its standard error, shown with two digits; the mean alone for one.

    Args:
        found: the values.
        sign: "+" also writes the sign of positive values.
    """
    mean, error = statistics.fmean(found), standard_error(found)
    digits = max(0, 1 - math.floor(math.log10(error))) if error > 0 else MOST
    form = f"{sign}.{min(MOST, digits)}f"
    return f"{mean:{form}} ± {error:{form.lstrip('+')}}" if error > 0 else f"{mean:{form}}"


def by_rate(rows: Rows, found: Values, tell: Callable[[list[float]], str] = mean_with_error) -> str:
    """Return a table with a line for each precision and a column for each rate."""
    size = {r["precision"]: float(r["bytes_per_param"]) for r in rows}
    rates = sorted({rate for _, rate in found}, reverse=True)
    lines = [
        {"precision": _code(name), "bytes": f"{size[name]:.3g}",
         **{_rate(rate): tell(found[name, rate]) if (name, rate) in found else ""
            for rate in rates}}
        for name in sorted(size, key=lambda n: -size[n])
        if any(n == name for n, _ in found)
    ]  # fmt: skip
    return table(lines, list(lines[0])) if lines else ""


def _rate(rate: float) -> str:
    return f"{rate:g}".replace("e-0", "e-")


def _code(name: str) -> str:
    first, comma, rest = name.partition(",")
    return f"`{first}`{comma}{rest}"


def of_truth(rows: Rows, measure: str, unit: str) -> str:
    """Return a table of the start and of the gains of `master`, by both readings."""
    own = [r for r in rows if r["precision"] == TRUTH]
    start = values(own, lambda r: float(r[f"start_{measure}"]))
    stored = values(own, lambda r: gain(r, "stored", measure))
    served = values(own, lambda r: gain(r, "served", measure))
    part = values(own, lambda r: gain(r, "served", measure) / gain(r, "stored", measure))
    lines = [
        {"rate": _rate(key[1]), f"start, {unit}": mean_with_error(start[key]),
         "change, stored words": mean_with_error(stored[key], sign="+"),
         "change, served words": mean_with_error(served[key], sign="+"),
         "served / stored": mean_with_error(part[key])}
        for key in sorted(start, key=lambda key: -key[1])
    ]  # fmt: skip
    return table(lines, list(lines[0]))


def _about(rows: Rows, path: Path, command: str) -> str:
    """Return the lines above the tables: command, machine, versions, how many and how long."""

    def all_of(name: str) -> str:
        return ", ".join(sorted({r[name] for r in rows}))

    minutes = sum(float(r["seconds"]) for r in rows) / 60
    seeds = len({r["seed"] for r in rows})
    return (
        f"`python benchmarks/{command}.py`: {len(rows)} trainings, {seeds} seed(s), {minutes:.0f} "
        f"minutes on a busy machine ({all_of('device')}, one thread); torch "
        f"{all_of('torch')}, Python {all_of('python')}, commit {all_of('commit')}, "
        f"{all_of('date')}. Means ± standard errors over seeds; "
        f"[rows](../benchmarks/results/{path.name})."
    )


def fine_tuning_text(rows: Rows, path: Path) -> str:
    """Return what the page says of `small_rates.py`."""
    return "\n\n".join(
        [
            _about(rows, path, "small_rates"),
            "What `master` learns: the change of the held-out loss, in nats a byte.",
            of_truth(rows, "loss", "nats"),
            *_shares_and_distances(rows, "loss"),
        ]
    )


def rewards_text(rows: Rows, path: Path) -> str:
    """Return what the page says of `grpo.py`."""
    return "\n\n".join(
        [
            _about(rows, path, "grpo"),
            "What `master` learns: the change of the mean probability of the right answer.",
            of_truth(rows, "right", "probability"),
            *_shares_and_distances(rows, "right"),
        ]
    )


def _shares_and_distances(rows: Rows, measure: str) -> list[str]:
    """Return the three tables that both studies have, each below its caption."""
    others = [r for r in rows if r["precision"] != TRUTH]
    distance = values(others, lambda r: float(r["distance"]))
    way = values(others, lambda r: float(r["way"]))
    both = {key: [*zip(found, way[key], strict=True)] for key, found in distance.items()}
    return [
        "Share of `master`'s gain by **served** words: by those of both.",
        by_rate(rows, shares(rows, "served", measure)),
        "Share of `master`'s gain by **stored** words: by those of both.",
        by_rate(rows, shares(rows, "stored", measure)),
        "Distance of the stored weights from `master`'s, as a share of the way that those went; "
        "behind it, in brackets, how far they went in that direction.",
        by_rate(rows, both, _distance_and_way),
    ]


def _distance_and_way(found: list[tuple[float, float]]) -> str:
    distance, way = zip(*found, strict=True)
    return f"{mean_with_error(list(distance))} ({statistics.fmean(way):.3f})"


def fine_tuning(arguments: argparse.Namespace) -> None:
    """Print the tables of `small_rates.py`, write them into the page, and draw the shares."""
    _publish(arguments, "small_rates", fine_tuning_text, draw_shares)


def rewards(arguments: argparse.Namespace) -> None:
    """Print the tables of `grpo.py`, write them into the page, and draw the curves."""
    _publish(arguments, "grpo", rewards_text, draw_curves)


def _publish(
    arguments: argparse.Namespace, command: str, text: Callable[[Rows, Path], str],
    draw: Callable[[Rows, Path], None],
) -> None:  # fmt: skip
    rows = strategy_report.read(arguments.results)
    if not rows:
        print("nothing to report yet")
        return
    made = text(rows, arguments.results)
    print(made)
    begin, end = markers(command)
    write_between(arguments.page, begin, end, made)
    draw(rows, arguments.image)
    print(f"\n{arguments.page}\n{arguments.image}")


def markers(command: str) -> tuple[str, str]:
    """Return the lines of the page between which a study's tables stand."""
    return f"<!-- benchmarks/{command}.py: begin -->\n", f"<!-- benchmarks/{command}.py: end -->"


def _styles(rows: Rows) -> dict[str, dict[str, Any]]:
    """Return how each precision is drawn; `master` is the line at 1, its replicate is not drawn."""
    names = dict.fromkeys(r["precision"] for r in rows if not r["precision"].startswith(TRUTH))
    marks = "osD^vPX"
    return {
        name: {"color": COLOURS[k % len(COLOURS)], "marker": marks[k % len(marks)], "ms": 5}
        for k, name in enumerate(names)
    }


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 12, "axes.titlesize": 12}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(2, 1)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, labels: Any, image: Path) -> None:
    figure.legend(*labels, loc="outside lower center", ncols=2, frameon=False, fontsize=12)
    image.parent.mkdir(parents=True, exist_ok=True)
    # 1280 pixels wide.
    figure.savefig(image, dpi=1280 / WIDTH)


def draw_shares(rows: Rows, image: Path) -> None:
    """Draw the share of the gain over the rate: whole by served words, then near 1 by stored."""
    figure, (whole, near) = _figure(7.2)
    for axes, reading in ((whole, "served"), (near, "stored")):
        found = shares(rows, reading, "loss")
        for k, (name, style) in enumerate(_styles(rows).items()):
            # Points of a rate stand side by side.
            own = sorted((rate, v) for (n, rate), v in found.items() if n == name)
            places = [rate * 1.09 ** (k - 3) for rate, _ in own]
            means = [statistics.fmean(v) for _, v in own]
            errors = [standard_error(v) if len(v) > 1 else math.nan for _, v in own]
            axes.errorbar(places, means, errors, label=name, lw=1.2, **style)
        axes.axhline(1, color="#999999", lw=1, zorder=0)
        axes.set_xscale("log")
        rates = sorted({rate for _, rate in found})
        axes.set_xticks(rates, [_rate(rate) for rate in rates])
        axes.minorticks_off()
    whole.set_ylim(-0.05, 1.8)
    whole.set_title("share of float32's gain, served words", loc="left")
    near.set_title("stored words, enlarged", loc="left")
    near.set_ylim(0.94, 1.06)
    near.set_xlabel("learning rate")
    _save(figure, whole.get_legend_handles_labels(), image)


def draw_curves(rows: Rows, image: Path) -> None:
    """Draw the gain of reward over the updates, a panel for each rate."""
    rates = sorted({float(r["rate"]) for r in rows}, reverse=True)[:2]
    figure, panels = _figure(7.2)
    styles = {TRUTH: {"color": "#999999", "marker": "", "lw": 6, "alpha": 0.5}, **_styles(rows)}
    for axes, rate in zip(panels, rates, strict=False):
        for k, (name, style) in enumerate(styles.items()):
            own = [r for r in rows if r["precision"] == name and float(r["rate"]) == rate]
            if not own:
                continue
            curves = [[float(p) for p in r["curve"].split()] for r in own]
            gains = list(zip(*([p - c[0] for p in c] for c in curves), strict=True))
            every = int(own[0]["every"])
            shift = 0.0 if name == TRUTH else 0.03 * (k - 3)
            places = [every * (t + shift) for t in range(len(gains))]
            means = [statistics.fmean(g) for g in gains]
            axes.plot(places, means, label=name, **{"lw": 1.2, **style})
        axes.set_title(f"gain of reward at a rate of {_rate(rate)}", loc="left")
    panels[-1].set_xlabel("updates")
    _save(figure, panels[0].get_legend_handles_labels(), image)
