"""The table of functions, in place of the page's list of supported names."""

from __future__ import annotations

import csv
import re
from pathlib import Path

COLUMNS = ("formats", "complex", "bound", "differentiable", "GPU")
EXPLAINED = """\
Every row takes one to four components of bf16, fp16, float32 and float64, unless *formats*
names some of them. *Bound* is that of `mcf.bound` for pairs of float64 in units of
$u^2 = 2^{-106}$, underflow left out, and *T* the sum of magnitudes of a cancelling sum.
On a GPU, *kernels* are Triton's, and *PyTorch* means that PyTorch's own operations move or
compare the components.
"""
FORM = """\
<form id="filter"><input type="search" placeholder="part of a name" aria-label="part of a name">
<label><input type="checkbox" value="2"> complex</label>
<label><input type="checkbox" value="3"> bound</label>
<label><input type="checkbox" value="4"> differentiable</label>
<output></output></form>
"""


def table(markdown: str, path: Path) -> str:
    """Replace the list of supported functions by a table that can be filtered.

    Args:
        markdown: the page.
        path: the facts, a row a function; functions without facts are listed without them.
    """
    with path.open(newline="") as file:
        facts = {row["function"]: row for row in csv.DictReader(file)}
    start, _, rest = markdown.partition("## Supported\n")
    listed, _, end = rest.partition("## Refused")
    names = sorted(re.findall(r"`([^`]+)`", listed), key=lambda name: name.startswith("_"))
    rows = [
        f"| `{name}` | " + " | ".join(facts.get(name, {}).get(c, "") for c in COLUMNS) + " |"
        for name in names
    ]
    head = "| function | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|"
    body = "\n".join([head, *rows])
    return f"{start}## Supported\n\n{EXPLAINED}\n{FORM}\n{body}\n\n## Refused{end}"
