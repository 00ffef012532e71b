"""Families of algorithms: plain functions that executors, keys of loops and Triton can tell apart.

*Exact.* Mutants: a form recorded under a name without the number (Triton would take one member for
another), and a family that makes its members anew. A source keeps its file name, and another
source gets another one.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import textwrap
from types import FunctionType

import pytest

from mcf.kernels.algorithms import accumulate, fold_terms, ieee, sums
from mcf.kernels.bind import PRIMITIVE_NAMES, Binder
from mcf.kernels.statements import Family, family, listed, written

FAMILIES = {
    name: family
    for module in (ieee, accumulate, fold_terms)
    for name, family in vars(module).items()
    if isinstance(family, (dict, Family)) and not name.startswith("_")
}
# The same function may stand in two tables.
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
