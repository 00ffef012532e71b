"""Warnings that name the line of the user's code."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.rpartition(".")[0]
# The packages of frames between the user's line and ours: hooks and wrappers of `step`.
_PASSED = (_PACKAGE, "torch")


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the innermost frame outside of this package and of torch."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not any(name == p or name.startswith(f"{p}.") for p in _PASSED):
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
