"""The cases of a test that run at every change; CONTRIBUTING.md says when to use it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest


def everyday(
    cases: Iterable[Any],
    chosen: Container[Any] | Callable[..., bool],
    id: Callable[..., str] | None = None,
) -> list[Any]:
    """Return cases for `parametrize`, all but the chosen ones marked `slow`.

    Args:
        cases: values, or tuples of values; a value of `pytest.param` keeps its marks.
        chosen: the cases that run at every change, or a predicate of a case's values.
        id: the name of a case from its values.
    """
    found = []
    for case in cases:
        values: list[Any] = []
        marks: list[Any] = []
        for value in case if type(case) is tuple else (case,):
            marked = isinstance(value, tuple) and hasattr(value, "marks")
            values += value.values if marked else [value]
            marks += value.marks if marked else []
        plain = tuple(values) if type(case) is tuple else values[0]
        if not (chosen(*values) if callable(chosen) else plain in chosen):
            marks.append(pytest.mark.slow)
        found.append(pytest.param(*values, marks=marks, id=id(*values) if id else None))
    return found
