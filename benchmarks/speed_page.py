"""Write the tables of docs/speed.md, docs/results/speed.csv and their figures from results' files.

    python benchmarks/speed_page.py

Nothing is measured here. A ratio is another library's time divided by ours: above 1 ours is faster.
"""

# Pages and tables are imported from this folder.
# ruff: noqa: E402

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
DATA = ROOT / "docs" / "results" / "speed.csv"
IMAGES = ROOT / "docs" / "images"
# Ends of results' files, newest measurement first.
MACHINES = {
    "amd-epyc-26-2-avx512": "Zen 5, AVX-512",
    "amd-epyc-avx512": "Zen 4, AVX-512",
    "amd-epyc-avx2": "Zen 3, AVX2",
    "intel-r-xeon-r-processor-avx512": "Xeon, AVX-512",
}
PEERS = {
    "QD": ("o", "#3949ab"),
    "MultiFloats": ("D", "#c62828"),
    "xprec": ("s", "#2e7d32"),
    "numpy-quaddtype": ("^", "#ef6c00"),
    "torch-dd": ("v", "#6a1b9a"),
    "python-flint": ("x", "#616161"),
}
# As benchmarks call them. QD is compiled for the processor.
NAMES = {
    "QD -O3 -march=native": "QD",
    "QD dd_real -O3 -march=native": "QD",
    "QD qd_real -O3 -march=native": "QD",
    "python-flint arb_mat": "python-flint",
    "flint": "python-flint",
    **{name: name for name in PEERS},
}


class Ratio(NamedTuple):
    """Another library's time divided by ours for one operation on one machine."""

    family: str
    machine: str
    operation: str
    size: str
    terms: str
    threads: str
    peer: str
    ratio: float


# Sizes are summarised apart: one number costs a call, many cost a loop.
SIZES = {"1": "1", "1000": "10^3", "10000": "10^4", "1000000": "10^6"}
BY_SIZE = ("Arithmetic", "Pairs of float64 from Python")
Rows = Iterable[dict[str, str]]
Found = Iterator[tuple[str, str, str, str, str, str, str]]


def grouped(rows: Rows, keys: tuple[str, ...], value: str) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the value of each variant for each combination of the keys."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        found.setdefault(tuple(row[k] for k in keys), {})[row["variant"]] = row[value]
    return found


def arithmetic(rows: Rows) -> Found:
    """Yield (operation, size, terms, threads, peer, theirs, ours) of elementwise arithmetic."""
    keys = ("operation", "size", "n", "threads")
    for key, times in grouped(rows, keys, "median us").items():
        for name, time in times.items():
            yield (*key, name, time, times["mcf"])


def products(rows: Rows) -> Found:
    """Yield those of matrix products and dot products, from operations a second."""
    for (operation, size, terms), speeds in grouped(
        rows, ("operation", "n", "terms"), "Gop/s"
    ).items():
        for name, speed in speeds.items():
            yield operation, size, terms, "1", name, speeds.get("mcf", ""), speed


def functions(rows: Rows) -> Found:
    """Yield those of elementary functions of 2^18 elements."""
    for row in rows:
        for peer in ("QD", "flint"):
            yield (
                row["function"],
                "262144",
                row["terms"],
                "1",
                peer,
                row[f"{peer} ns"],
                row["mcf ns"],
            )


def pairs(rows: Rows) -> Found:
    """Yield those of operations on pairs of float64, called from Python."""
    for row in rows:
        for peer in ("xprec", "numpy-quaddtype", "torch-dd", "python-flint"):
            times = row[f"{peer} ns"], row["mcf ns"]
            yield (row["operation"], row["elements"], "2", "1", peer, *times)


def matrices(rows: Rows) -> Found:
    """Yield those of factorisations, by their rows (and how many of them where not one)."""
    for row in rows:
        size = row["n"] if row["batch"] == "1" else f"{row['batch']} x {row['n']}"
        yield row["function"], size, row["terms"], "1", row["variant"], row["to mcf"], "1"


# Families by the beginnings of their files' names.
FAMILIES = {
    "arithmetic": ("Arithmetic", arithmetic),
    "elementary": ("Functions", functions),
    "matmul": ("Products of matrices", products),
    "linalg": ("Factorisations", matrices),
    "peer_operations": ("Pairs of float64 from Python", pairs),
}


def measured() -> list[Ratio]:
    """Return all ratios of all machines."""
    found = []
    for name, (family, read) in FAMILIES.items():
        for ending, machine in MACHINES.items():
            path = RESULTS / f"{name}-{ending}.csv"
            if path.exists():
                found += ratios(family, machine, read(pages.results(path)[1]))
    return found


def ratios(family: str, machine: str, entries: Found) -> Iterator[Ratio]:
    """Yield the ratio of each entry in which a peer and we have a time."""
    for operation, size, terms, threads, name, theirs, ours in entries:
        try:
            ratio = float(theirs) / float(ours)
        except ValueError:
            continue
        if name in NAMES:
            yield Ratio(family, machine, operation, size, terms, threads, NAMES[name], ratio)


def digits(x: float) -> str:
    """Format a ratio with two digits."""
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}" if x >= 0.995 else f"{x:.2f}"


def summary(found: list[Ratio]) -> str:
    """Return a line for each family, number of components and peer."""
    newest, *others = MACHINES.values()
    lines: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for r in found:
        if r.terms in ("2", "4") and r.threads == "1":
            sized = f", {SIZES[r.size]}" if r.family in BY_SIZE else ""
            of_machine = lines.setdefault((r.family + sized, r.terms, r.peer), {})
            of_machine.setdefault(r.machine, []).append(r.ratio)
    rows = []
    for (family, terms, peer), of_machine in lines.items():
        if newest in of_machine:
            here = sorted(of_machine[newest])
            median = {m: digits(statistics.median(v)) for m, v in of_machine.items()}
            span = ", ".join((digits(here[0]), median[newest], digits(here[-1])))
            row = {"family": family, "n": terms, "library": f"{peer} ({len(here)})",
                   f"{newest}: least, median, most": span}  # fmt: skip
            row |= {f"median, {machine}": median.get(machine, "") for machine in others}
            rows.append(row)
    return table(rows, list(rows[0]))


def beside_torch() -> str:
    """Return how much longer an operation on pairs of float64 takes than torch's on float64."""
    _, rows = pages.results(RESULTS / "tensor_operations-amd-epyc-26-2-avx512.csv")
    lines = []
    for count in dict.fromkeys(r["elements"] for r in rows):
        own = [r for r in rows if r["elements"] == count]
        times = sorted(float(r["mcf µs"]) for r in own)
        factors = sorted(float(r["ratio"]) for r in own)
        pick = [(len(own) - 1) * k // 10 for k in (1, 5, 9)]
        lines.append(
            {
                "elements": count,
                "operations": str(len(own)),
                "µs of ours: a tenth below, median, a tenth above": ", ".join(
                    f"{times[k]:g}" for k in pick
                ),
                "ratio to torch: a tenth below, median, a tenth above": ", ".join(
                    digits(factors[k]) for k in pick
                ),
            }
        )
    return table(lines, list(lines[0]))


# Steps of 300 tensors that the page shows: of which machine, and which.
STEPS = {
    "amd-epyc-26-2-avx512": [
        *("torch fused fp32", "option D by hand", "torch fused bf16", "master", "plus"),
        *("split16_sr", "split8_sr", "bf16_sr", "8bit", "4bit"),
    ],
    "amd-epyc-avx512": [
        *("torch fused fp32", "option D by hand", "torch fused bf16", "master", "plus", "light"),
        *("bf16_sr", "8bit", "4bit", "plus, metrics", "plus, bf16 arithmetic"),
        *("plus, eager torch", "optimi for-loop bf16 Kahan", "torchao bf16 stochastic"),
        *("torchao 8 bit stochastic", "torchao 4 bit stochastic"),
    ],
}


def steps() -> str:
    """Return times of optimizer steps as ratios to torch's fused AdamW on float32."""
    lines: dict[str, dict[str, str]] = {}
    columns = ["step"]
    for ending, names in STEPS.items():
        _, rows = pages.results(RESULTS / f"optimizer_step-{ending}.csv")
        for size, title in (("16M", "16 M"), ("300x", "300 tensors")):
            columns.append(f"{MACHINES[ending].split(',')[0]}, {title}")
            times = {r["variant"]: r["ratio to fused fp32"] for r in rows if r["size"] == size}
            for name in names:
                lines.setdefault(name, {"step": name})[columns[-1]] = digits(float(times[name]))
    return table([{c: line.get(c, "") for c in columns} for line in lines.values()], columns)


def draw(path: Path, title: str, found: list[tuple[str, Ratio]]) -> None:
    """Draw a dot for each peer and operation, legible on a phone."""
    names = list(dict.fromkeys(name for name, _ in found))
    style: Any = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        size = (5, 1.9 + 0.27 * len(names))
        figure, axis = plt.subplots(figsize=size, layout="constrained")
        for peer, (mark, colour) in PEERS.items():
            own = [(r.ratio, names.index(name)) for name, r in found if r.peer == peer]
            if own:
                axis.plot(*zip(*own, strict=True), mark, color=colour, markersize=7, label=peer)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.axvline(1, color="#9e9e9e", lw=1, zorder=0)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.grid(axis="y", color="#eeeeee", zorder=0)
        axis.set_title(title, fontsize=12)
        axis.set_xlabel("their time / ours")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, handletextpad=0.1,
                      columnspacing=0.8, fontsize=11)  # fmt: skip
        figure.savefig(path, dpi=150)
        plt.close(figure)


def figures(found: list[Ratio]) -> dict[str, tuple[str, list[tuple[str, Ratio]]]]:
    """Return title and named ratios of each figure: one thread of the newest machine."""
    newest = next(iter(MACHINES.values()))
    own = [r for r in found if r.machine == newest and r.threads == "1"]

    def chosen(family: str, sizes: Any, terms: Any, label: str) -> list[tuple[str, Ratio]]:
        return [(label.format(r=r), r) for r in own if r.family == FAMILIES[family][0]
                and r.size in sizes and r.terms in terms]  # fmt: skip

    memory = chosen("arithmetic", ["1000000"], ["2", "4"], "{r.operation}, {r.terms} terms")
    calls = chosen("elementary", ["262144"], ["2", "4"], "{r.operation}, {r.terms} terms")
    products = chosen("matmul", ["256"], ["2", "4"], "matmul 256, {r.terms} terms")
    solved = chosen("linalg", ["4", "16", "64", "256"], ["2"], "{r.operation}, {r.size} rows")
    drawn = [e for e in solved if e[1].operation in DRAWN]
    factorised = sorted(drawn, key=lambda e: DRAWN.index(e[1].operation))
    mixed = [e for e in (*memory, *products, *calls, *solved) if e[0] in SHOWN]
    order = sorted(mixed, key=lambda e: SHOWN.index(e[0]))
    from_python = chosen("peer_operations", ["1000000"], ["2"], "{r.operation}")
    return {
        "speed": ("one thread of a Zen 5", order),
        "speed-arithmetic": ("10^6 elements in memory", memory),
        "speed-functions": ("2^18 elements", calls),
        "speed-matrices": ("two components", factorised),
        "speed-pairs": ("10^6 pairs of float64", from_python),
    }


DRAWN = ("matmul", "solve", "qr", "svd")
SHOWN = [
    *("add, 2 terms", "mul, 2 terms", "div, 2 terms", "dot, 2 terms"),
    *("add, 4 terms", "mul, 4 terms", "dot, 4 terms"),
    *("matmul 256, 2 terms", "matmul 256, 4 terms"),
    *("exp, 2 terms", "sin, 2 terms", "exp, 4 terms", "sin, 4 terms"),
    *("solve, 4 rows", "solve, 64 rows", "qr, 64 rows", "svd, 64 rows"),
]


def main() -> None:
    """Write page, data and figures anew."""
    found = measured()
    with DATA.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(Ratio._fields)
        lines.writerows((*r[:-1], f"{r.ratio:.4g}") for r in found)
    made = {"summary": summary(found), "torch": beside_torch(), "steps": steps()}
    for name, text in made.items():
        begin = f"<!-- {name}: written by benchmarks/speed_page.py -->\n"
        pages.write_between(PAGE, begin, "\n<!-- end -->", text)
    for name, (title, entries) in figures(found).items():
        draw(IMAGES / f"{name}.png", title, entries)
    print(f"wrote {PAGE}, {DATA} and {', '.join(figures(found))}.png")


if __name__ == "__main__":
    main()
