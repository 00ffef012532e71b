"""The Python of a Markdown page, run as a reader would: block after block, in one namespace."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(page: str, sessions_only: bool = False) -> int:
    """Run the blocks of a page of docs/, or its sessions alone; return how many there are.

    Sessions (`>>>`) have to print what they say. Blocks of other kinds (console, yaml, none) are
    not run.
    """
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__page__"}
    found = [m for m in BLOCK.finditer(text) if m[1].startswith(">>>") or not sessions_only]
    for match in found:
        code = match[1]
        line = text.count("\n", 0, match.start(1))
        if code.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(code, names, page, str(path), line)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
            names.update(test.globs)
        else:
            # Errors name the page and its line.
            exec(compile("\n" * line + code, str(path), "exec"), names)
    return len(found)
