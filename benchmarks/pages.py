"""What pages of docs/ that are written from results' files have in common."""

from __future__ import annotations

import csv
import os
import re
import sys
from pathlib import Path


def results(path: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    """A results file's `# key: value` lines, and its rows."""
    lines = path.read_text().splitlines()
    about = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    return about, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two lines of a page."""
    old = page.read_text(encoding="utf-8")
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    if not re.search(pattern, old, re.DOTALL):
        sys.exit(f"{page} lacks the line {begin!r} or {end!r}")
    fresh = re.sub(pattern, lambda _: f"{begin}\n{text}\n{end}", old, count=1, flags=re.DOTALL)
    temporary = page.with_suffix(".tmp")
    temporary.write_text(fresh, encoding="utf-8")
    os.replace(temporary, page)
