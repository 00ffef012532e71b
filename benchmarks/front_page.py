"""Draw the README's picture of bytes and loss from the study of quality.

    python benchmarks/front_page.py

Nothing is measured here; the rows are those of the README's table.
"""

# The report is imported from this folder.
# ruff: noqa: E402

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from quality_report import differences, standard_error

ROWS = ROOT / "benchmarks" / "results" / "quality-amd-epyc-26-2-avx512.jsonl"
IMAGE = ROOT / "docs" / "images" / "loss-by-bytes.png"
LEFT_OUT = ("master", "master, rate * 1.0001")


def main() -> None:
    """Draw loss minus float32 masters' with its standard error, a line for each precision."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    rows = [r for r in rows if r["task"] == "text" and r["beta2"] == "0.999"]
    size = {r["variant"]: r["bytes_per_param"] for r in rows}
    gaps = {name: list(found.values()) for (name, _), found in differences(rows).items()}
    names = sorted(gaps.keys() - {*LEFT_OUT}, key=lambda name: (size[name], name))
    style: Any = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, axis = plt.subplots(figsize=(5, 4.2), layout="constrained")
        for line, name in enumerate(names):
            mean, error = statistics.fmean(gaps[name]), standard_error(gaps[name])
            axis.errorbar(mean, line, xerr=error, fmt="o", color="#3949ab", capsize=3)
        axis.axvline(0, color="#9e9e9e", lw=1, zorder=0)
        # Codes leave bytes of vectors out: matrices are what counts in a large model.
        labels = [f"{name}, {round(2 * size[name]) / 2:g} bytes" for name in names]
        axis.set_yticks(range(len(names)), labels)
        axis.grid(axis="y", color="#eeeeee", zorder=0)
        axis.set_xlabel("loss minus that of float32\nmasters (16 bytes)")
        figure.savefig(IMAGE, dpi=150)
        plt.close(figure)
    print(f"wrote {IMAGE}")


if __name__ == "__main__":
    main()
