"""The README's examples say what they print."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_examples() -> None:
    blocks = re.findall(r"```python\n(>>> .*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2, "both sections of examples are found"
    for block in blocks:
        test = doctest.DocTestParser().get_doctest(block, {}, "README.md", str(README), 0)
        result = doctest.DocTestRunner().run(test)
        assert result.failed == 0
        assert result.attempted > 3
