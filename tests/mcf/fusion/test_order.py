"""The order of a program's statements: each after what it reads, few numbers alive at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from mcf.fusion.fused_program import Statement, depth_first, needed

# Rows of numbers, each made of its neighbours above it, as a recording has them: level by level.
WIDTH, LEVELS = 6, 4


def levels(wraps: bool) -> tuple[list[Statement], list[int]]:
    """Statements in the order of levels, every other one of two results, and those of the last.

    With `wraps` a number has two neighbours above it, and shares them; without one.
    """
    found = []
    for level, k in itertools.product(range(1, LEVELS + 1), range(WIDTH)):
        above = (level - 1) * WIDTH
        read = {above + k, above + (k + 1) % WIDTH} if wraps else {above + k}
        made = (level * WIDTH + k, *([1000 + level * WIDTH + k] if k % 2 else []))
        found.append(Statement(made, f"level {level}, {k}", frozenset(read)))
    return found, [LEVELS * WIDTH + k for k in range(WIDTH)]


def alive(statements: Sequence[Statement], results: Sequence[int]) -> int:
    """The most numbers that were made and are read later, or are results."""
    most = 0
    for place in range(1, len(statements) + 1):
        made = {c for s in statements[:place] for c in s.made}
        later = set(results).union(*(s.read for s in statements[place:]))
        most = max(most, len(made & later))
    return most


def in_order(statements: Sequence[Statement]) -> bool:
    """Whether each stands after what makes what it reads."""
    makers = {c: k for k, s in enumerate(statements) for c in s.made}
    return all(makers[c] < k for k, s in enumerate(statements) for c in s.read if c in makers)


@pytest.mark.parametrize("wraps", [False, True])
def test_every_statement_stands_after_what_it_reads(wraps: bool) -> None:
    recorded, results = levels(wraps)
    found = depth_first(recorded, results)
    assert in_order(found)
    assert sorted(s.text for s in found) == sorted(s.text for s in needed(recorded, results))
    assert needed(recorded, results) == recorded
    # The mutant.
    assert not in_order(found[::-1])


def test_few_numbers_are_alive() -> None:
    """Chains that are added up, one after the other: a total and a link. Level by level all are."""
    chains, ends = levels(wraps=False)
    totals = [
        Statement((100 + k,), f"total {k}", frozenset({99 + k, ends[k]})) for k in range(WIDTH)
    ]
    recorded, results = [*chains, *totals], [100 + WIDTH - 1]
    assert alive(recorded, results) == WIDTH
    found = depth_first(recorded, results)
    assert in_order(found)
    assert alive(found, results) == 2


def test_the_longest_chain_is_first() -> None:
    short = Statement((2,), "short", frozenset({0}))
    chain = [Statement((k,), f"chain {k}", frozenset({k - 1 if k > 3 else 0})) for k in (3, 4, 5)]
    both = Statement((6,), "both", frozenset({2, 5}))
    found = depth_first([short, *chain, both], [6])
    assert [s.text for s in found] == ["chain 3", "chain 4", "chain 5", "short", "both"]


def test_what_no_result_needs_is_left_out() -> None:
    recorded, results = levels(wraps=False)
    for order in (depth_first, needed):
        assert len(order(recorded, results[:1])) == LEVELS
        # A result may be an operand itself, or there twice.
        assert order(recorded, [0]) == []
        assert len(order(recorded, [results[0], results[0]])) == LEVELS
