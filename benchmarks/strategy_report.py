"""The table of `strategies.py`, from its CSV files."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
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


def show(paths: list[Path]) -> None:
    """Print the table."""
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
