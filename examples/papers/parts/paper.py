"""What the scripts of this folder share: options, result files with their machine, figures.

A script measures, writes docs/results/papers/NAME.csv (rows below lines that name machine, versions
and command) and draws docs/images/papers/NAME.png from that file alone, so that a figure is never
of other numbers than those that are kept.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import environment, merge_csv, save_csv
from harness import table as table
from pretraining.plots import RC, STYLE

from parts import ROOT

Row = dict[str, Any]
# Okabe and Ito's colours, as in the other figures.
COLOURS = [STYLE[name][0] for name in ("plain", "plus", "light", "kahan", "8bit", "fp32_states")]
BLACK, GREY = STYLE["master"][0], "#999999"


def parser(doc: str) -> argparse.ArgumentParser:
    """The options that every script has.

    Args:
        doc: the script's docstring; its first line is shown by --help.
    """
    made = argparse.ArgumentParser(description=doc.splitlines()[0], allow_abbrev=False)
    made.add_argument("--small", action="store_true", help="a second's work, as the tests run it")
    made.add_argument("--report", action="store_true", help="table and figure of what there is")
    made.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    made.add_argument(
        "--out", type=Path, default=ROOT / "docs", help="holds results/papers and images/papers"
    )
    return made


def whole(low: int) -> Callable[[str], int]:
    """An argument's type: a whole number from `low`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low}")
        return int(text)

    return read


def results(given: argparse.Namespace, name: str) -> Path:
    """The file of results of that name."""
    return Path(given.out) / "results" / "papers" / f"{name}.csv"


def main(
    name: str,
    given: argparse.Namespace,
    measure: Callable[[argparse.Namespace], list[Row]],
    report: Callable[[list[Row], Path], None],
    key: Sequence[str] = (),
) -> None:
    """Measure and keep the rows, or take those there are; print the table and draw the figure.

    Args:
        name: of the results and of the figure.
        given: the options, those of `parser` among them.
        measure: makes the rows.
        report: prints rows (read back as text) and draws them into a file.
        key: columns that name a row; rows of an existing file that none of these replaces stay.
    """
    path = results(given, name)
    if not given.report:
        torch.set_num_threads(given.threads)
        comments = told()
        if key:
            merge_csv(path, measure(given), comments, key)
        else:
            save_csv(path, measure(given), comments)
    draw(path, given, name, report)


def resume(
    name: str,
    given: argparse.Namespace,
    runs: Iterable[Row],
    train: Callable[[Row], list[Row]],
    report: Callable[[list[Row], Path], None],
) -> None:
    """As `main`, a training at a time: its rows are kept when it ends, and it is not made again.

    Args:
        name: of the results and of the figure.
        given: the options, those of `parser` among them.
        runs: the columns that name each training.
        train: a training's other columns, in one or more rows.
        report: as of `main`.
    """
    path = results(given, name)
    if not given.report:
        torch.set_num_threads(given.threads)
        comments = told()
        for run in runs:
            named = {k: str(v) for k, v in run.items()}
            if path.exists() and any(named.items() <= row.items() for row in read(path)):
                continue
            merge_csv(path, [{**run, **row} for row in train(run)], comments, list(run))
            print(*run.values(), flush=True, file=sys.stderr)
    draw(path, given, name, report)


def told() -> dict[str, str]:
    """What a result file says above its rows: command, machine, versions, commit."""
    command = " ".join(["python", f"examples/papers/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    return {"command": command, **environment(torch.device("cpu"))}


def draw(
    path: Path, given: argparse.Namespace, name: str, report: Callable[[list[Row], Path], None]
) -> None:
    """Print and draw what a result file holds."""
    if not path.exists():
        raise SystemExit(f"there are no results in {path}")
    image = Path(given.out) / "images" / "papers" / f"{name}.png"
    image.parent.mkdir(parents=True, exist_ok=True)
    report(read(path), image)
    print(f"\n{path}\n{image}")


def read(path: Path) -> list[Row]:
    """The rows of a result file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def mean_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and its standard error; the error of one value is NaN."""
    found = list(values)
    if len(found) < 2:
        return found[0], math.nan
    return statistics.fmean(found), statistics.stdev(found) / math.sqrt(len(found))


def spread(values: Iterable[float], form: str = ".4f") -> str:
    """Mean ± standard error as text."""
    mean, error = mean_error(values)
    return format(mean, form) + ("" if math.isnan(error) else f" ± {error:{form.lstrip('+')}}")


def values(rows: Sequence[Row], column: str, **fixed: object) -> list[float]:
    """A column of the rows that have the given values in other columns."""
    return [float(row[column]) for row in rows if all(row[k] == str(v) for k, v in fixed.items())]


def names(rows: Sequence[Row], column: str) -> list[str]:
    """What stands in a column, each once, in order."""
    return list(dict.fromkeys(row[column] for row in rows))


def figure(columns: int, height: float = 3.2, rows: int = 1) -> tuple[Any, Any]:
    """Return a figure and its axes, an array of `rows` x `columns`, one below the other.

    A page or a phone shows five inches, so that text of 12 points is read on both.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(RC | {"font.size": 12, "axes.titlesize": 13}):
        made = Figure(figsize=(5, height * rows * columns), layout="constrained")
        return made, made.subplots(rows * columns, 1, squeeze=False).reshape(rows, columns)


def save(made: Any, image: Path) -> None:
    """Write a figure."""
    made.savefig(image, dpi=150)
