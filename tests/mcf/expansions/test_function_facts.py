"""The table of facts about torch's functions has the page's names, and is true of some of them."""

from __future__ import annotations

import csv

import pytest

facts = pytest.importorskip("tests.mcf.expansions.function_facts")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

with facts.TABLE.open(newline="") as file:
    ROWS = {row["function"]: row for row in csv.DictReader(file)}
OPS = {facts.cases.name_of(op): op for op in facts.cases.functions()}


def test_names_are_those_of_the_page() -> None:
    assert list(ROWS) == [name for name in facts.supported() if name in ROWS]
    # The others are functions of another version of torch.
    assert len(facts.supported()) - len(ROWS) < 5


@pytest.mark.parametrize("name", ["exp", "mul", "argmax", "transpose", "sum", "fft.fft", "dot"])
def test_rows(name: str) -> None:
    assert facts.facts(name, OPS[name]) == ROWS[name]
