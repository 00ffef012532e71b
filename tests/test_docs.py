"""The documentation says what the code says.

Caught mutants of the tables of files: a file that has no row, two rows or another name; a row
without words.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from mcf import bounds
from mcf.kernels import expansion_bounds
from mcf.kernels.pair_bounds import markdown
from mcf.optim import PRECISIONS
from mcf.reductions import sum_bounds as reduction_bounds

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_bounds_is_the_table_of_bounds() -> None:
    page = (DOCS / "numerics.md").read_text()
    begin, end = "<!-- bounds: begin -->\n", "\n<!-- bounds: end -->"
    assert page.split(begin)[1].split(end)[0] == markdown()


def test_the_page_of_expansion_bounds_is_their_table() -> None:
    page = (DOCS / "numerics.md").read_text()
    begin, end = "<!-- expansion bounds: begin -->\n", "\n<!-- expansion bounds: end -->"
    assert page.split(begin)[1].split(end)[0] == expansion_bounds.markdown()


def test_the_page_of_reduction_bounds_is_their_table() -> None:
    page = (DOCS / "numerics.md").read_text()
    begin, end = "<!-- reduction bounds: begin -->\n", "\n<!-- reduction bounds: end -->"
    assert page.split(begin)[1].split(end)[0] == reduction_bounds.markdown()


def derivatives_table() -> str:
    """Return the bounds of derivatives as `docs/numerics.md` shows them."""
    named: dict[str, list[str]] = {}
    for name in bounds.DERIVATIVES:
        found = [
            bounds.bound(name, n, torch.float64, derivative=True).relative * 2.0 ** (53 * n)
            for n in (1, 2, 3, 4)
        ]
        named.setdefault(" | ".join(f"{v:.4g}" for v in found), []).append(f"`{name}`")
    lines = ["| derivative of | n = 1 | 2 | 3 | 4 |", "|---" * 5 + "|"]
    lines += [f"| {', '.join(names)} | {cells} |" for cells, names in named.items()]
    return "\n".join(lines)


def test_the_page_of_bounds_of_derivatives_is_their_table() -> None:
    page = (DOCS / "numerics.md").read_text()
    begin, end = "<!-- bounds of derivatives: begin -->\n", "\n<!-- bounds of derivatives: end -->"
    assert page.split(begin)[1].split(end)[0] == derivatives_table()


def test_every_precision_has_its_row() -> None:
    page = (DOCS / "semantics.md").read_text()
    for name in PRECISIONS:
        assert f"| `{name}` |" in page


ROOT = DOCS.parent


def listed(page: str) -> Iterator[tuple[str, str]]:
    """Yield each file of the tables of `docs/architecture.md`, and what it does."""
    for section in page.split("\n#### `")[1:]:
        folder, _, rest = section.partition("/`\n")
        table = rest.split("\n#")[0]
        for name, text in re.findall(r"^\| `(\w+\.py)` \| (.*) \|$", table, re.MULTILINE):
            yield f"{folder}/{name}", text


def test_page_of_architecture_lists_every_file_once() -> None:
    rows = list(listed((DOCS / "architecture.md").read_text()))
    wanted = [
        path.relative_to(ROOT).as_posix()
        for folder in ("kernels", "mcf", "optim")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(file for file, _ in rows) == sorted(wanted)
    for file, text in rows:
        assert re.fullmatch(r"[A-Z].*\.", text), file
        assert len(text.split()) <= 25, file
