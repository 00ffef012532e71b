"""Families: functions of one form, which differ in the functions that they call or in length.

What comes out are plain functions, as executors bind them: no closures, no default arguments, and
source text where Triton and tracebacks look for it.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from mcf.kernels.sources import listed


def filled(form: FunctionType, name: str, doc: str, **functions: Any) -> FunctionType:
    """A function with the code of a form, in which names stand for these functions.

    Args:
        form: a function over names that its module does not define, and over others.
        name: of the function.
        doc: its docstring.
        functions: what the form leaves open, by name.
    """
    names = {"co_name": name}
    # Triton tells functions apart by it, which Python has from 3.11 on.
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
    """A function of these statements, for formulas whose length is a number.

    Args:
        name: of the function.
        parameters: as they stand in its definition.
        body: its statements.
        doc: its docstring.
        filename: what tracebacks say, where the name says too little.
        names: what the statements call.
    """
    text = "\n".join([f"def {name}({parameters}):", *(f"    {line}" for line in body)]) + "\n"
    filename = listed(text, filename.strip("<>") or f"mcf {name}")
    namespace = {"__name__": __name__, **names}
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    function = namespace[name]
    assert isinstance(function, FunctionType)
    function.__doc__ = doc
    return function
