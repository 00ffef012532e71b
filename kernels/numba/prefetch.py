"""Ask for lines of memory before they are needed."""

from __future__ import annotations

import functools
from typing import Any

from mcf.kernels.numba import objects, stored, team

_TEXT = """
def kernel(table):
    lines = word(table, 0)
    for k in range(number(table, 1)):
        fetch(word(lines, k))
"""


def _function() -> tuple[Any, str]:
    from mcf.kernels.numba import compiler, memory

    return compiler.compiled(_TEXT, "<mcf numba prefetch>", {"fetch": memory.fetch})


@functools.cache
def loop() -> objects.Native:
    """The loop, which goes with this object."""
    return stored.native(("prefetch", _TEXT), _function)


def prefetch(table: int) -> None:
    """Ask for lines of memory.

    Args:
        table: the address of two words: the address of an array of addresses, and its length.
    """
    team.native(loop().address)(table)
