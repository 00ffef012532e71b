"""Families of algorithms: plain functions that executors, keys of loops and Triton can tell apart.

*Exact.* Mutants: a form filled without a name of its own in its code object (Triton would take one
member for another), and one that shares its globals with the form. A source keeps its file name,
and another source gets another one.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import textwrap
from types import FunctionType

import pytest

from mcf.kernels.algorithms import accumulate, fold_terms, ieee
from mcf.kernels.algorithms.families import filled, listed, written
from mcf.kernels.bind import PRIMITIVE_NAMES, Binder

FAMILIES = {
    name: family
    for module in (ieee, accumulate, fold_terms)
    for name, family in vars(module).items()
    if name.isupper() and isinstance(family, dict)
}
# The same function may stand in two tables.
MEMBERS = list(dict.fromkeys(itertools.chain(*(f.values() for f in FAMILIES.values()))))


def test_the_tables_are_found() -> None:
    assert {"ADD", "FMA_FLOAT", "COMBINE", "NARROW_PRODUCT"} <= set(FAMILIES)
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
    again = filled(
        ieee.of_two, "another", "The same.", settled=ieee.settled2, plain=ieee.plus,
        network=ieee.sum2,
    )  # fmt: skip
    assert keys.algorithm(again) == keys.algorithm(ieee.ADD[2])


def test_filling_leaves_the_form_as_it_was() -> None:
    with pytest.raises(NameError, match="settled"):
        ieee.of_two((1.0,), (2.0,))
    assert ieee.ADD[2].__globals__["network"] is not ieee.MUL[2].__globals__["network"]


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
