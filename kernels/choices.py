"""Check an argument that is one of several names, and suggest the name that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def check_choice(argument: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise ValueError unless an argument is one of the allowed names."""
    names = tuple(allowed)
    # The value may be unhashable.
    if value not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"{argument} must be one of {known}, got {value!r}{meant(value, names)}")


def meant(value: Any, names: Iterable[str]) -> str:
    """Return " (did you mean 'name'?)" with the name most like a value, or "" without one."""
    # Below 0.7 the matches of short names are other names: 'sin' for 'min'.
    found = difflib.get_close_matches(str(value).lower(), [*names], 1, 0.7)
    return f" (did you mean {found[0]!r}?)" if found else ""
