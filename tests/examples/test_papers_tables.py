"""Collage's tables in miniature run small: texts, labels, masks, decoders, trainings in pairs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.examples.tiny import EXAMPLES

pytestmark = pytest.mark.usefixtures("on_torch", "papers")


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts can be imported."""
    for folder in (EXAMPLES.parent / "benchmarks", EXAMPLES, EXAMPLES / "papers"):
        monkeypatch.syspath_prepend(str(folder))


def run(name: str, folder: Path, *options: str) -> tuple[ModuleType, list[dict[str, str]]]:
    """Run a script small; its module and its rows."""
    script = importlib.import_module(name)
    script.main(["--small", f"--out={folder}", *options])
    path = folder / "results" / "papers" / f"{name}.csv"
    return script, importlib.import_module("paper").read(path)


def test_decoders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, rows = run("collage_gpt", tmp_path, "--texts=reference")
    table = capsys.readouterr()
    assert len(table.err.splitlines()) == len(script.CASES) * len(script.OPTIONS)
    # Started again, it trains nothing and says the same.
    _, again = run("collage_gpt", tmp_path, "--texts=reference")
    assert capsys.readouterr() == (table.out, "")
    assert again == rows
    of = {"text": "reference", "what": "held out"}
    for model in script.CASES:
        assert script.training.gaps(rows, "D", model=model, **of) == [0]
        assert script.training.gaps(rows, "A", model=model, **of) != [0]
    image = tmp_path / "images" / "papers" / "collage_gpt.png"
    assert image.stat().st_size > 10_000
    with pytest.raises(SystemExit, match="no results with layers 1, width 24"):
        script.training.at_scale(rows, layers=1, width=24)


def test_texts_share_no_document(tmp_path: Path) -> None:
    texts = importlib.import_module("collage_texts")
    code, reference = (texts.corpus(name, 300_000) for name in ("code", "reference"))
    for corpus in (code, reference):
        assert len(corpus.train.sources[0]) > 4 * len(corpus.val.sources[0]) > 0
        train, val = (part.sources[0].tobytes() for part in (corpus.train, corpus.val))
        assert not set(train.split(b"\0")) & set(val.split(b"\0"))
        assert max(train) < texts.BYTES
    assert b"import" in code.train.sources[0].tobytes()
    assert np.unique(code.train.sources[0]).size > 90
