"""docs/speed.md between its markers, its picture, and a table of docs/small_problems.md.

    python benchmarks/speed_page.py

Nothing is measured here: all is from the results' files. Every table stands below the command that
measured it, the machine and the commit; the benchmarks say what their columns mean.
"""

# Pages and tables are imported from this folder.
# ruff: noqa: E402

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pages
from harness import table

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "speed.md"
SMALL = ROOT / "docs" / "small_problems.md"
IMAGE = ROOT / "docs" / "images" / "speed.png"
Rows = list[dict[str, str]]


def pivot(
    rows: Iterable[Mapping[str, str]], lines: tuple[str, ...], column: str, value: str
) -> str:
    """A table with a line for each of some columns' values, and a column for each of another's."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in rows:
        key = tuple(row[k] for k in lines)
        found.setdefault(key, dict(zip(lines, key, strict=True)))[row[column]] = row[value]
        columns[row[column]] = None
    names = [*lines, *columns]
    return table([{name: line.get(name, "") for name in names} for line in found.values()], names)


def arithmetic(rows: Rows) -> str:
    """Gop/s of each variant."""
    parts = []
    for size, threads in dict.fromkeys((r["size"], r["threads"]) for r in rows):
        own = [r for r in rows if (r["size"], r["threads"]) == (size, threads)]
        parts.append(f"{int(size):,} elements, {threads} thread(s), 10^9 operations a second:\n")
        parts.append(pivot(own, ("operation", "n"), "variant", "Gop/s") + "\n")
    return "\n".join(parts)


def products(rows: Rows) -> str:
    """Gop/s of each variant."""
    return pivot(rows, ("operation", "n", "terms"), "variant", "Gop/s") + "\n"


def by_elements(rows: Rows) -> str:
    """A table for each number of elements."""
    parts = []
    for count in dict.fromkeys(r["elements"] for r in rows):
        own = [
            {k: v for k, v in r.items() if k != "elements"} for r in rows if r["elements"] == count
        ]
        parts.append(f"{int(float(count)):,} element(s):\n")
        parts.append(table(own, list(own[0])) + "\n")
    return "\n".join(parts)


def plain(rows: Rows) -> str:
    """The file's own table."""
    return table(rows, list(rows[0])) + "\n"


# Results' files by the beginnings of their names, and how their tables are laid out.
SECTIONS: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "arithmetic": ("Arithmetic", arithmetic),
    "matmul": ("Matrix products and dot products", products),
    "elementary": ("Elementary functions", plain),
    "peer_operations": ("Beside the packages for pairs of float64 numbers", by_elements),
    "tensor_operations": ("Beside torch's float64", by_elements),
    "registers": ("In float32 registers", plain),
}


def section(name: str, title: str, layout: Callable[[Rows], str]) -> str:
    """All files of a benchmark, one for each machine."""
    parts = [f"## {title}\n"]
    for path in sorted(RESULTS.glob(f"{name}-*.csv")):
        about, rows = pages.results(path)
        command = about.pop("command", f"python benchmarks/{name}.py")
        versions = ", ".join(f"{k} {v}" for k, v in about.items() if k != "device")
        parts.append(f"### {title}: {about['device']}\n")
        parts.append(f"`{command}`: {versions} ([rows](../{path.relative_to(ROOT)})).\n")
        parts.append(layout(rows))
    return "\n".join(parts)


# Ends of the lines of `few_elements`, in microseconds.
BANDS = (8, 10, 12, 15, 18, 22, 30, 50, 100, 200, 1e9)


def few_elements() -> str:
    """Operations on one element by how long they take, on the machine that was measured last."""
    files = [(pages.results(p), p) for p in RESULTS.glob("tensor_operations-*.csv")]
    (about, rows), path = max(files, key=lambda f: (f[0][0]["date"], len(f[0][1])))
    own = [r for r in rows if r["elements"] == "1"]
    lines, least = [], 0.0
    for most in BANDS:
        found = [r for r in own if least <= float(r["mcf µs"]) < most]
        least = most
        if found:
            names = ", ".join(f"`{r['operation']}`" for r in found)
            lines.append(f"| {names} | {_span(found, 'mcf µs')} | {_span(found, 'torch µs')} |")
    where = f"{about['device']}, one thread, torch {about['torch']}, commit {about['commit']}"
    head = f"`{about['command']}` on {where}, the least of rounds that take turns"
    rows_at = f"[rows](../{path.relative_to(ROOT)})"
    titles = "| operations | µs | torch on float64, µs |\n|---|---|---|"
    return "\n".join([f"{head} ({rows_at}):\n", titles, *lines, ""])


def _span(rows: Rows, column: str) -> str:
    """From the least to the largest."""
    values = sorted(float(r[column]) for r in rows)
    return f"{values[0]:g}" if values[0] == values[-1] else f"{values[0]:g} to {values[-1]:g}"


# A peer's time over ours: by the peer, then by the operation.
Ratios = dict[str, dict[str, float]]


def ratio(ratios: Ratios, peer: str, what: str, theirs: str, ours: str) -> None:
    """Note one, where both were measured."""
    try:
        ratios.setdefault(peer, {})[what] = float(theirs) / float(ours)
    except ValueError:
        return


def arithmetic_ratios(rows: Rows, n: str, size: str) -> Ratios:
    """Of arithmetic on one thread."""
    found: Ratios = {}
    named = {"MultiFloats": "MultiFloats", "QD -O3 -march=native": "QD", "python-flint": "flint",
             "xprec": "xprec", "numpy-quaddtype": "quaddtype"}  # fmt: skip
    own = [r for r in rows if (r["n"], r["size"], r["threads"]) == (n, size, "1")]
    for row in own:
        mine = [r for r in own if r["operation"] == row["operation"] and r["variant"] == "mcf"]
        if row["variant"] in named:
            ratio(found, named[row["variant"]], row["operation"], row["median us"],
                  mine[0]["median us"])  # fmt: skip
    return found


def function_ratios(rows: Rows, terms: str) -> Ratios:
    """Of elementary functions."""
    found: Ratios = {}
    for row in rows:
        if row["terms"] == terms:
            for peer in ("QD", "flint"):
                ratio(found, peer, row["function"], row[f"{peer} ns"], row["mcf ns"])
    return found


def operation_ratios(rows: Rows, elements: str) -> Ratios:
    """Of operations beside the packages for pairs."""
    found: Ratios = {}
    for row in rows:
        if row["elements"] == elements:
            for peer in ("xprec", "numpy-quaddtype", "torch-dd", "python-flint"):
                short = peer.removeprefix("numpy-").removeprefix("python-")
                ratio(found, short, row["operation"], row[f"{peer} ns"], row["mcf ns"])
    return found


def matrix_ratios(rows: Rows) -> Ratios:
    """Of matrices, by their rows."""
    found: Ratios = {}
    for function in ("matmul", "solve", "qr", "svd"):
        for row in rows:
            if row["function"] == function and row["batch"] == "1":
                short = row["variant"].removeprefix("python-")
                if short in MARKS and row["n"] in ("4", "16", "64", "256"):
                    ratio(found, short, f"{function}, {row['n']} rows", row["to mcf"], "1")
    return found


MARKS = {
    "QD": ("o", "#3949ab"),
    "MultiFloats": ("D", "#c62828"),
    "xprec": ("s", "#2e7d32"),
    "quaddtype": ("^", "#ef6c00"),
    "torch-dd": ("v", "#6a1b9a"),
    "flint": ("x", "#616161"),
}


def draw(path: Path, panels: dict[str, Ratios]) -> None:
    """A dot for each peer and operation; right of the line ours is faster."""
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, axes = plt.subplots(2, 3, figsize=(13, 9.5), layout="constrained")
        for axis, (title, ratios) in zip(axes.flat, panels.items(), strict=True):
            names = list(dict.fromkeys(name for values in ratios.values() for name in values))
            for peer, values in ratios.items():
                mark, colour = MARKS[peer]
                axis.plot(list(values.values()), [names.index(name) for name in values], mark,
                          color=colour, markersize=5)  # fmt: skip
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.axvline(1, color="#bdbdbd", lw=1, zorder=0)
            axis.set_yticks(range(len(names)), names)
            axis.set_ylim(len(names) - 0.4, -0.6)
            axis.grid(axis="y", color="#eeeeee", zorder=0)
            axis.set_title(title, fontsize=10)
        for axis in axes[-1]:
            axis.set_xlabel("their time / ours (right of the line ours is faster)")
        handles = [
            plt.Line2D([], [], marker=mark, color=colour, ls="", label=peer)
            for peer, (mark, colour) in MARKS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(MARKS), frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def measured(name: str) -> Rows:
    """The rows of the machine that has all files."""
    return pages.results(RESULTS / f"{name}-amd-epyc-26-2-avx512.csv")[1]


def main() -> None:
    """Write the page and draw the picture anew."""
    for name, (title, layout) in SECTIONS.items():
        begin = f"<!-- {name}: written by benchmarks/speed_page.py -->\n"
        pages.write_between(PAGE, begin, "<!-- end -->\n", section(name, title, layout))
    begin = "<!-- few elements: written by benchmarks/speed_page.py -->\n"
    pages.write_between(SMALL, begin, "<!-- end -->\n", few_elements())
    draw(
        IMAGE,
        {
            "pairs of float64, 10^6 in memory": operation_ratios(
                measured("peer_operations"), "1000000"
            ),
            "two components, 10^4 in the cache": arithmetic_ratios(
                measured("arithmetic"), "2", "10000"
            ),
            "four components, 10^6 in memory": arithmetic_ratios(
                measured("arithmetic"), "4", "1000000"
            ),
            "functions of two components": function_ratios(measured("elementary"), "2"),
            "functions of four components": function_ratios(measured("elementary"), "4"),
            "matrices of two components": matrix_ratios(measured("linalg")),
        },
    )
    print(f"wrote {PAGE}, {SMALL} and {IMAGE}")


if __name__ == "__main__":
    main()
