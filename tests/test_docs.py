"""The documentation says what the code says."""

from pathlib import Path

import mcf
from mcf import slope_bounds
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


def test_the_page_of_bounds_of_derivatives_is_their_table() -> None:
    page = (DOCS / "numerics.md").read_text()
    begin, end = "<!-- bounds of derivatives: begin -->\n", "\n<!-- bounds of derivatives: end -->"
    assert page.split(begin)[1].split(end)[0] == slope_bounds.markdown(mcf.bound)


def test_every_precision_has_its_row() -> None:
    page = (DOCS / "semantics.md").read_text()
    for name in PRECISIONS:
        assert f"| `{name}` |" in page
