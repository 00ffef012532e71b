"""Recorded statements: their order, and the algorithms that functions on names become.

*Exact.* Mutants: statements in reverse, a literal of infinity in Python's spelling, an algorithm
that is inlined where it should be called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from mcf.kernels import FP64, exact
from mcf.kernels.algorithms import two_sum
from mcf.kernels.algorithms.primitives import ONE, ZERO, const, rn, where
from mcf.kernels.statements import (
    Complex,
    Statement,
    depth_first,
    family,
    in_order,
    kept,
    recorded,
)

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


def totals(x: Any, limit: Any) -> Any:
    """Return the running sums of x, 1 above a limit, and whether the last one is finite."""
    total, found = ZERO, []
    for each in x:
        total = rn(each + total)
        found.append(where(total > limit, ONE, total))
    return (*found, where(total < const(math.inf), ONE, const(-0.5)))


def test_a_function_on_names_is_an_algorithm() -> None:
    function = recorded("totals", totals, {"x": 3, "limit": 0}, "Running sums.")
    assert function.__code__.co_varnames[:2] == ("x", "limit")
    bound = exact.bind(function, FP64)
    x = tuple(map(Fraction, (1, 2, -5)))
    assert bound(x, Fraction(2)) == (1, 1, -2, 1)
    assert bound((*x[:2], math.inf), Fraction(2)) == (1, 1, 1, Fraction(-1, 2))


def test_a_function_on_names_cannot_test_them() -> None:
    with pytest.raises(TypeError, match="use `where`"):
        recorded("tests", lambda x: ONE if x > ZERO else ZERO, {"x": 0}, "")


@pytest.mark.parametrize("keep", [False, True])
def test_algorithms_are_inlined_or_called(keep: bool) -> None:
    add = kept(two_sum, 2) if keep else two_sum
    function = recorded("errors", lambda x: add(*add(x[0], x[1])), {"x": 2}, "")
    assert ("two_sum" in function.__code__.co_names) is keep
    x = Fraction(1), Fraction(2) ** -60
    assert exact.bind(function, FP64)(x) == x


def test_complex_numbers_are_flat_tuples() -> None:
    @family("x** y* z.")
    def joined(x: Any, y: Any, z: Any) -> Complex:
        return Complex(x.real, (*x.imag, *y, *z))

    assert sorted(joined) == [1, 2, 3, 4]
    assert exact.bind(joined[2], FP64)((1, 2, 3, 4), (5, 6), (7,)) == (1, 2, 3, 4, 5, 6, 7)
    assert joined[3].__name__ == "complex_joined3"
