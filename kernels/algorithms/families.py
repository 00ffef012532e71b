"""Families of functions that share one form and differ in called functions or length.

The results are plain functions, as executors bind them: no closures, no default arguments, and
source text where Triton and tracebacks look it up.
"""

from __future__ import annotations

import itertools
import linecache
from types import FunctionType
from typing import Any


def filled(form: FunctionType, name: str, doc: str, **functions: Any) -> FunctionType:
    """Return a copy of a form in which open names refer to the given functions.

    Args:
        form: a function with global names that its module does not define, and others.
        name: the name of the copy.
        doc: the docstring of the copy.
        functions: the values of the undefined names.
    """
    names = {"co_name": name}
    # Triton identifies functions by their qualified name, which exists from Python 3.11 on.
    if hasattr(form.__code__, "co_qualname"):
        names["co_qualname"] = name
    code = form.__code__.replace(**names)
    around = {n: form.__globals__[n] for n in code.co_names if n in form.__globals__}
    function = FunctionType(code, {"__name__": form.__module__, **around, **functions}, name)
    function.__doc__ = doc
    return function


def written(
    name: str, parameters: str, body: list[str], doc: str, filename: str = "", **names: Any
) -> FunctionType:
    """Compile statements into a function, for formulas whose length is a parameter.

    Args:
        name: the name of the function.
        parameters: the parameter list of its definition.
        body: its statements.
        doc: its docstring.
        filename: the file name in tracebacks, if `name` is not enough.
        names: the globals that the statements use.
    """
    text = "\n".join([f"def {name}({parameters}):", *(f"    {line}" for line in body)]) + "\n"
    filename = listed(text, filename.strip("<>") or f"mcf {name}")
    namespace = {"__name__": __name__, **names}
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    function = namespace[name]
    assert isinstance(function, FunctionType)
    function.__doc__ = doc
    return function


def listed(text: str, name: str) -> str:
    """Register a text under a file name and return that name.

    Triton reads the source of a function when it compiles it, perhaps long after the function was
    created. So a name that another text already has gets a number.
    """
    lines = text.splitlines(True)
    for number in itertools.count(1):
        filename = f"<{name}>" if number == 1 else f"<{name} ({number})>"
        known = linecache.cache.get(filename)
        if known is None:
            linecache.cache[filename] = (len(text), None, lines, filename)
        if known is None or (len(known) == 4 and known[2] == lines):
            return filename
    raise AssertionError("unreachable")
