"""The table of a run: a row per strategy, means and spreads over seeds, and what they say."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pretraining.options import Options

Row = dict[str, Any]

_COLUMNS = (
    "strategy", "seed", "parameters", "steps", "tokens", "bytes_per_param", "val_loss",
    "perplexity", "train_loss", "edq_ratio", "lost_param", "lost_exp_avg_sq", "step_ns_per_param",
    "peak_mib", "seconds",
)  # fmt: skip


def to_line(row: dict[str, Any]) -> str:
    """Return a line of metrics.jsonl; a NaN or an infinity, which JSON has not, becomes null.

    Nothing in it depends on the clock, so that two runs of one configuration write equal bytes.
    """
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(clean, allow_nan=False) + "\n"


def read_lines(text: str) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl as dictionaries; null values become NaN."""
    return [
        {key: math.nan if value is None else value for key, value in json.loads(line).items()}
        for line in text.splitlines()
    ]


def rows(
    options: Options,
    results: dict[tuple[str, int], dict[str, Any]],
    metrics: Iterable[dict[str, Any]],
    costs: dict[str, dict[str, Any]],
) -> list[Row]:
    """Return one row per training, in the columns of summary.csv.

    `edq_ratio`, `lost_param` and `lost_exp_avg_sq` are means over all logged steps, `train_loss`
    over the logged steps of the last tenth.
    """
    logged = defaultdict(list)
    for line in metrics:
        logged[line["strategy"], line["seed"]].append(line)
    table = []
    for (strategy, seed), result in results.items():
        lines = logged[strategy, seed]
        late = [line for line in lines if line["step"] > 0.9 * options.steps]
        row = {
            "strategy": strategy,
            "seed": seed,
            "parameters": result["parameters"],
            "steps": options.steps,
            "tokens": options.steps * options.batch_size * options.context,
            "bytes_per_param": result["stored_bytes"] / result["parameters"],
            "val_loss": result["val_loss"],
            "perplexity": _exp(result["val_loss"]),
            "train_loss": statistics.fmean(line["train_loss"] for line in late),
        }
        for key in ("edq_ratio", "lost_param", "lost_exp_avg_sq"):
            row[key] = statistics.fmean(line[key] for line in lines)
        peak = costs[strategy]["peak_bytes"]
        row |= {
            "step_ns_per_param": costs[strategy]["step_ns_per_param"],
            "peak_mib": math.nan if peak is None else peak / 2**20,
            "seconds": result["seconds"],
        }
        table.append(row)
    return table


def to_csv(table: list[Row]) -> str:
    """Return the rows as CSV with a header; numbers in full precision, unknown ones empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table:
        unknown = {k: "" for k, v in row.items() if isinstance(v, float) and math.isnan(v)}
        writer.writerow(row | unknown)
    return text.getvalue()


def to_text(table: list[Row]) -> str:
    """Return the table for the terminal, its legend, and what the spread over seeds says."""
    by_strategy: dict[str, list[Row]] = defaultdict(list)
    for row in table:
        by_strategy[row["strategy"]].append(row)
    losses = {s: {r["seed"]: r["val_loss"] for r in group} for s, group in by_strategy.items()}
    several = any(len(of_seed) > 1 for of_seed in losses.values())
    header = ["strategy", "bytes/param", "val loss", "- master", "perplexity", "EDQ/|d|",
              "lost p", "lost v", "step ns/param", "peak MiB"]  # fmt: skip
    lines = [header]
    for strategy, group in by_strategy.items():
        mean = {k: statistics.fmean(r[k] for r in group) for k in _COLUMNS[5:]}
        loss = _spread(losses[strategy].values(), "") if several else f"{mean['val_loss']:.4f}"
        gap = "" if "master" not in losses else _spread(_paired(losses, strategy, "master"), "+")
        lines.append([
            strategy,
            f"{mean['bytes_per_param']:.2f}",
            loss,
            gap,
            f"{_exp(mean['val_loss']):.3f}",
            f"{mean['edq_ratio']:.4f}",
            f"{mean['lost_param']:.1%}",
            f"{mean['lost_exp_avg_sq']:.1%}",
            f"{mean['step_ns_per_param']:.2f}",
            "-" if math.isnan(mean["peak_mib"]) else f"{mean['peak_mib']:.1f}",
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    text.insert(1, "-" * max(map(len, text)))
    text += ["", *_legend(several), *verdict(losses)]
    return "\n".join(text) + "\n"


def _legend(several: bool) -> list[str]:
    lines = [
        "bytes/param: parameter, gradient and states, counted on the stored tensors",
        "EDQ/|d|: part of each update that the stored weights really took, mean over the run",
        "lost p, lost v: additions to a weight / to its second moment that changed nothing",
        "step: median optimizer step on this model, metrics off, the strategies taking turns",
        "peak: growth of memory in a few training steps; most of it is the model's activations",
    ]
    if several:
        lines.insert(0, "val loss, - master: mean over seeds ± sample standard deviation")
    return lines


def verdict(losses: dict[str, dict[int, float]]) -> list[str]:
    """Say whether `plus` and `split16_sr` lie within master's seed-to-seed spread, and pair seeds.

    The spread is the sample standard deviation of master's losses; within means that the two
    means differ by no more. Paired by seed the luck of the initial weights and batches cancels,
    so that a smaller difference shows; it is called systematic beyond two standard errors.
    """
    names = [name for name in ("plus", "split16_sr") if name in losses and "master" in losses]
    if names and len(losses["master"]) < 2:
        return ["", "One seed says nothing about the spread: run with --seeds 0 1 2 3 4."]
    return [line for name in names for line in _verdict(losses, name)]


def _verdict(losses: dict[str, dict[int, float]], name: str) -> list[str]:
    """Return the sentences about one strategy."""
    master = losses["master"]
    count = len(master)
    difference = statistics.fmean(losses[name].values()) - statistics.fmean(master.values())
    spread = statistics.stdev(master.values())
    paired = _paired(losses, name, "master")
    error = statistics.stdev(paired) / math.sqrt(count)
    within = "is within" if abs(difference) <= spread else "is NOT within"
    systematic = "systematic" if abs(difference) > 2 * error else "not distinguishable from zero"
    return [
        "",
        f"Over {count} seeds {name} {within} master's seed-to-seed spread: the means differ by "
        f"{difference:+.4f}, one standard deviation of master is {spread:.4f}.",
        f"Paired by seed the difference is {difference:+.4f} with a standard error of "
        f"{error:.4f}, {systematic} (two standard errors); {name} is lower in "
        f"{sum(x < 0 for x in paired)} of {count} seeds.",
    ]


def _paired(losses: dict[str, dict[int, float]], one: str, other: str) -> list[float]:
    return [losses[one][seed] - losses[other][seed] for seed in losses[one]]


def _spread(values: Iterable[float], sign: str) -> str:
    values = list(values)
    text = f"{statistics.fmean(values):{sign}.4f}"
    return text if len(values) < 2 else f"{text} ± {statistics.stdev(values):.4f}"


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
