"""Register the source text of generated functions for tracebacks and for Triton."""

from __future__ import annotations

import itertools
import linecache


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
