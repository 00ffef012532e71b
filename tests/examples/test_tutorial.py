"""The tutorial's commands are what the example takes, and its table what it prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pretraining.options import parse

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "pretraining.md"


def commands() -> list[list[str]]:
    """Arguments of each pretrain.py in the page."""
    pattern = re.compile(r"^\S+python examples/pretrain.py (.*)$", re.MULTILINE)
    lines = pattern.findall(PAGE.read_text())
    return [shlex.split(line) for line in lines]


def test_its_commands_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "a.txt").write_text("a text " * 100)
    first, second, third = map(parse, commands())
    assert (first.steps, first.width, first.name) == (400, 32, "tutorial")
    assert second.strategies == ("split16_sr", "master")
    assert third.dry_run


@pytest.mark.slow
def test_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pretrain import main

    assert main([*commands()[0], "--out", str(tmp_path), "--steps", "40"]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = [line.split()[:2] for line in PAGE.read_text().splitlines()]
    for name in ("strategy", "plain", "bf16_sr", "split16_sr", "master"):
        (row,) = [row for row in rows if row[:1] == [name]]
        assert row in [line.split()[:2] for line in printed]
