"""The table of `quality.py`, from its rows."""

from __future__ import annotations

import statistics
from typing import Any

from harness import table
from strategy_variants import TRUTH

Rows = list[dict[str, Any]]


def standard_error(values: list[float]) -> float:
    """Of the mean of paired differences; NaN for fewer than two."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def told(values: list[float]) -> str:
    """Mean difference ± its standard error (number of pairs)."""
    return f"{statistics.fmean(values):+.4f} ± {standard_error(values):.4f} ({len(values)})"


def show(rows: Rows) -> None:
    """Print the table of differences to float32 masters."""
    if not rows:
        print("nothing to report yet")
        return
    # A column is a task with a beta2; runs of other lengths are no pairs.
    columns = list(dict.fromkeys(_column(row) for row in sorted(rows, key=_order)))
    found = differences(rows)
    size = {row["variant"]: row["bytes_per_param"] for row in rows}
    lines = [
        {"variant": name, "bytes/param": f"{size[name]:.2f}",
         **{p: told(list(found[name, p].values())) if (name, p) in found and name != TRUTH else ""
            for p in columns},
         "all": _pooled([found[name, p] for p in columns if (name, p) in found])}
        for name in sorted(size, key=lambda n: (-size[n], n)) if name != TRUTH
    ]  # fmt: skip
    seeds = {p: len(found.get((TRUTH, p), ())) for p in columns}
    print(f"{len(rows)} trainings; {TRUTH} has these numbers of seeds: {seeds}")
    if lines:
        print("Loss less that of the same start and batches with float32 master weights, in nats:")
        print("mean ± standard error (pairs); all: each seed's mean over the columns.\n")
        print(table(lines, list(lines[0])))


def differences(rows: Rows) -> dict[tuple[str, str], dict[str, float]]:
    """For each (variant, column), the loss less that of TRUTH by seed, where both are there."""
    truth = {(_column(r), r["seed"]): r["val_loss"] for r in rows if r["variant"] == TRUTH}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for r in rows:
        if (key := (_column(r), r["seed"])) in truth:
            found.setdefault((r["variant"], key[0]), {})[r["seed"]] = r["val_loss"] - truth[key]
    return found


def _pooled(columns: list[dict[str, float]]) -> str:
    """Mean over columns of what a seed has in all of them: columns share starts and batches."""
    seeds = [s for s in columns[0] if all(s in column for column in columns)] if columns else []
    if not seeds:
        return ""
    return told([statistics.fmean(column[s] for column in columns) for s in seeds])


def _column(row: dict[str, Any]) -> str:
    return f"{row['task']}, {row['steps']} steps, beta2={row['beta2']}"


def _order(row: dict[str, Any]) -> tuple[str, int, float]:
    return row["task"], row["steps"], float(row["beta2"])
