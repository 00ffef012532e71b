"""The order of a recording's statements: each after those it reads, few numbers alive at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from mcf.kernels.statements import Statement, depth_first, in_order

# Rows of numbers, each computed from its neighbours above it, recorded level by level.
WIDTH, LEVELS = 6, 4


def levels(wraps: bool) -> tuple[list[Statement], list[str]]:
    """Return statements in the order of levels, every other one of two results, and the last row.

    With `wraps` a number has two neighbours above it, and shares them; without one.
    """
    found = []
    for level, k in itertools.product(range(1, LEVELS + 1), range(WIDTH)):
        above = [f"v{level - 1}_{k}", f"v{level - 1}_{(k + 1) % WIDTH}"][: 1 + wraps]
        results = (f"v{level}_{k}", *[f"w{level}_{k}"] * (k % 2))
        found.append(Statement(results, "f", tuple(above), unpack=True))
    return found, [f"v{LEVELS}_{k}" for k in range(WIDTH)]


def alive(statements: Sequence[Statement], results: Sequence[str]) -> int:
    """Return the most numbers that were computed and are read later, or are results."""
    most = 0
    for place in range(1, len(statements) + 1):
        made = {v for s in statements[:place] for v in s.results}
        later = set(results).union(*(s.reads for s in statements[place:]))
        most = max(most, len(made & later))
    return most


def is_ordered(statements: Sequence[Statement]) -> bool:
    """Return whether each statement stands after those whose results it reads."""
    makers = {v: k for k, s in enumerate(statements) for v in s.results}
    return all(makers[v] < k for k, s in enumerate(statements) for v in s.reads if v in makers)


@pytest.mark.parametrize("wraps", [False, True])
def test_every_statement_stands_after_those_it_reads(wraps: bool) -> None:
    recorded, results = levels(wraps)
    found = depth_first(recorded, results)
    assert is_ordered(found)
    assert {s.results for s in found} == {s.results for s in recorded}
    assert in_order(recorded, results) == recorded
    # The mutant.
    assert not is_ordered(found[::-1])


def test_few_numbers_are_alive() -> None:
    """Chains that are added up, one after the other: a total and a link. Level by level all are."""
    chains, ends = levels(wraps=False)
    totals = [Statement((f"t{k + 1}",), "+", (f"t{k}", ends[k])) for k in range(WIDTH)]
    recorded, results = [*chains, *totals], [f"t{WIDTH}"]
    assert alive(recorded, results) == WIDTH
    found = depth_first(recorded, results)
    assert is_ordered(found)
    assert alive(found, results) == 2


def test_the_longest_chain_is_first() -> None:
    short = Statement(("short",), "f", ("x",))
    chain = [Statement((f"chain{k}",), "f", (f"chain{k - 1}" if k else "x",)) for k in range(3)]
    both = Statement(("both",), "+", ("short", "chain2"))
    found = depth_first([short, *chain, both], ["both"])
    assert [s.results[0] for s in found] == ["chain0", "chain1", "chain2", "short", "both"]


def test_statements_that_no_result_needs_are_left_out() -> None:
    recorded, results = levels(wraps=False)
    for order in (depth_first, in_order):
        assert len(order(recorded, results[:1])) == LEVELS
        # A result may be an operand itself, or there twice.
        assert order(recorded, ["v0_0"]) == []
        assert len(order(recorded, [results[0], results[0]])) == LEVELS
