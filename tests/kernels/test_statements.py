"""Recorded statements: their order, and the algorithms that functions on names become.

Members of families are plain functions that executors, keys of loops and Triton can tell apart.

*Exact.* Mutants: statements in reverse, a literal of infinity in Python's spelling, an algorithm
that is inlined where it should be called; members without the number in their name, members that
are made anew. A source keeps its file name, and another source gets another one.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import math
import textwrap
from collections.abc import Sequence
from fractions import Fraction
from types import FunctionType
from typing import Any

import pytest

from mcf.kernels import FP64, exact
from mcf.kernels.algorithms import accumulate, fold_terms, ieee, sums, two_sum
from mcf.kernels.algorithms.primitives import ONE, ZERO, const, rn, where
from mcf.kernels.bind import PRIMITIVE_NAMES, Binder
from mcf.kernels.statements import (
    Complex,
    Family,
    Statement,
    depth_first,
    family,
    in_order,
    kept,
    listed,
    recorded,
    written,
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


FAMILIES = {
    name: family
    for module in (ieee, accumulate, fold_terms)
    for name, family in vars(module).items()
    if isinstance(family, (dict, Family)) and not name.startswith("_")
}
# A function may stand in two tables.
MEMBERS = list(dict.fromkeys(itertools.chain(*(f.values() for f in FAMILIES.values()))))


def test_the_tables_are_found() -> None:
    assert {"ADD", "FMA_FLOAT", "combine", "NARROW_PRODUCT"} <= set(FAMILIES)
    assert len(MEMBERS) > 90


def test_names_are_their_own() -> None:
    names = [(f.__module__, f.__name__) for f in MEMBERS]
    assert len(set(names)) == len(names)
    bound = Binder(lambda f: f, dict.fromkeys(PRIMITIVE_NAMES))
    for f in MEMBERS:
        # By this name Triton tells device functions apart.
        assert bound(f).__qualname__ == f.__name__


def test_members_are_plain_functions_with_a_source() -> None:
    for f in MEMBERS:
        assert type(f) is FunctionType
        assert f.__doc__
        assert f.__closure__ is None
        assert f.__defaults__ is None
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(f))).body
        assert isinstance(definition, ast.FunctionDef)
        given = f.__code__.co_varnames[: f.__code__.co_argcount]
        assert [a.arg for a in definition.args.args] == list(given)


def test_keys_are_their_own() -> None:
    keys = pytest.importorskip("mcf.kernels.numba.cache.keys", reason="numba is not installed")
    assert len({keys.algorithm(f) for f in MEMBERS}) == len(MEMBERS)
    again = ieee.operation("another", "x* y*", "The same.", ieee.plus, sums.SUM)
    assert keys.algorithm(again[2]) == keys.algorithm(ieee.ADD[2])


def test_members_are_made_once_when_they_are_needed() -> None:
    made = []

    @family("x*", (1, 3))
    def noted(x):
        """Return x."""
        made.append(len(x))
        return x

    assert list(noted) == [1, 3]
    assert made == []
    assert noted[3] is noted[3]
    assert made == [3]
    with pytest.raises(KeyError, match="2"):
        noted[2]
    more = {2: noted[3]} | noted
    assert sorted(more) == [1, 2, 3]
    assert (more[2], more[3]) == (noted[3], noted[3])


def test_a_text_of_a_name_that_is_taken_gets_a_name_of_its_own() -> None:
    first, second, again = (
        listed(t, "mcf test of sources") for t in ("a = 1\n", "b = 2\n", "a = 1\n")
    )
    assert first == again == "<mcf test of sources>"
    assert second == "<mcf test of sources (2)>"
    assert linecache.getline(first, 1) == "a = 1\n"
    assert linecache.getline(second, 1) == "b = 2\n"


def test_functions_of_one_name_keep_their_sources() -> None:
    made = [written("twice_named", p, [f"return {p}"], "", "") for p in ("x", "y")]
    assert [inspect.getsource(f).split("(")[1][0] for f in made] == ["x", "y"]
