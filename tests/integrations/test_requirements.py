"""Packages of the extra `integrations` are pinned for `make test-integrations`."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent


def test_every_integration_is_pinned() -> None:
    text = (HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    (extra,) = re.findall(r"^integrations = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    lines = (HERE / "requirements.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    named = [Requirement(quoted) for quoted in re.findall(r'"(.*?)"', extra)]
    assert len(named) == 7
    for requirement in named:
        assert requirement.specifier.contains(pins[requirement.name]), requirement
    # torch is the development environment's, whose pins these must not touch.
    assert "torch" not in pins
    assert "numpy" not in pins
