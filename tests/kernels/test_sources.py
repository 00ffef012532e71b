"""Sources of generated functions: a text keeps its file name, another text gets another one."""

from __future__ import annotations

import inspect
import linecache

from mcf.kernels.algorithms.families import written
from mcf.kernels.sources import listed


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
