"""Collage's tables in miniature run small: texts, labels, masks, decoders, trainings in pairs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

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
    assert (folder / "images" / "papers" / f"{name}.png").stat().st_size > 10_000
    return script, importlib.import_module("parts.paper").read(path)


def test_decoders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--texts=reference", "--models=Llama, .99")
    script, rows = run("collage_gpt", tmp_path, *options)
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == len(script.OPTIONS)
    # Started again, it trains nothing and says the same.
    _, again = run("collage_gpt", tmp_path, *options)
    assert capsys.readouterr() == (said.out, "")
    assert again == rows
    of = {"model": "Llama, .99", "text": "reference", "what": "held out"}
    assert script.training.gaps(rows, "D", **of) == [0]
    assert script.training.gaps(rows, "A", **of) != [0]
    with pytest.raises(SystemExit, match="no results with layers 1, width 24"):
        script.training.at_scale(rows, layers=1, width=24)


@pytest.mark.slow
def test_all_decoders(tmp_path: Path) -> None:
    script, rows = run("collage_gpt", tmp_path)
    cases = {(r["text"], r["model"], r["option"]) for r in rows}
    assert len(cases) == 2 * len(script.CASES) * len(script.OPTIONS)
    sizes = {r["model"]: int(r["value"]) for r in rows if r["what"] == "parameters"}
    for case in script.CASES:
        assert sizes[case] == script.shape_of(case, 1, 16, 16).parameters(script.BYTES)


@pytest.mark.slow
def test_encoders(tmp_path: Path) -> None:
    script, rows = run("collage_bert", tmp_path)
    for model, options in script.OPTIONS.items():
        own = [r for r in rows if r["model"] == model]
        phases = {"BERT": {"1", "2"}, "RoBERTa": {"1"}}[model]
        for option in options:
            told = {r["what"] for r in own if r["option"] == option}
            assert {w for w in told if w.startswith("phase")} == {f"phase {k}" for k in phases}
            assert told >= {*script.TASKS}
            assert (f"curve {script.CURVES[0]}" in told) == (model == "BERT")
            # Each is another training.
            of = {"model": model, "what": "phase 1"}
            assert (script.training.gaps(rows, option, **of) == [0]) == (option == "D")


def test_masks() -> None:
    encoder, texts = (importlib.import_module(f"parts.collage_{n}") for n in ("encoder", "texts"))
    raw = (np.arange(40_000) * 7 % 89 + 32).astype(np.uint8)
    part = texts.Part((), (raw,))
    size, length = 64, 32
    for bert in (True, False):
        found = encoder.batch(part, [3], size, length, bert)
        special = found.inputs >= texts.BYTES
        assert found.inputs[:, 0].eq(texts.CLS).all()
        assert found.inputs[:, -1].eq(texts.SEP).all()
        assert found.inputs.eq(texts.SEP).sum() == size * (2 if bert else 1)
        # Of CLS and SEP none is masked; of the others 15 %, within four standard deviations.
        counted = size * (length - (3 if bert else 2))
        share = found.masked.sum().item() / counted
        assert abs(share - 0.15) < 4 * (0.15 * 0.85 / counted) ** 0.5
        assert found.inputs[special & found.masked].eq(texts.MASK).all()
        hidden = found.inputs[found.masked].eq(texts.MASK).double().mean().item()
        kept = (found.inputs[found.masked] == found.targets).double().mean().item()
        assert abs(hidden - 0.8) < 4 * (0.16 / (0.15 * counted)) ** 0.5
        assert abs(kept - 0.1) < 4 * (0.09 / (0.15 * counted)) ** 0.5 + 1 / texts.BYTES
        # With what was there put back, each row is a stretch of the text, BERT's two.
        inputs = found.inputs.clone()
        inputs[found.masked] = found.targets
        first = (length - 3) // 2 if bert else length - 2
        steps = (inputs[:, 2 : first + 1] - inputs[:, 1:first]) % 89
        assert steps.eq(7).all()
        if bert:
            crossing = (inputs[:, first + 2] - inputs[:, first]) % 89 == 7
            assert crossing[found.follows == 1].all()
            assert 0 < found.follows.sum() < size
    # A window's masks are static in BERT, drawn for each step in RoBERTa.
    whole = [
        {tuple(row) for row in encoder.batch(part, [k], 2000, length, True).inputs.tolist()}
        for k in range(2)
    ]
    # 40000 / 29 windows, most of them in both draws: as many inputs, and no more.
    assert len(whole[0] | whole[1]) <= len(raw) // (length - 3)
    dynamic = {tuple(row) for row in encoder.batch(part, [0], 2000, length, False).inputs.tolist()}
    assert len(dynamic) > len(raw) // (length - 2)


def test_second_segments_have_an_embedding_of_their_own() -> None:
    encoder, texts = (importlib.import_module(f"parts.collage_{n}") for n in ("encoder", "texts"))
    model = encoder.draw(encoder.Encoder(1, 8, 2, 8), 0)
    inputs = torch.tensor([[texts.CLS, 65, texts.SEP, 66, 67, texts.SEP]])
    seen: list[torch.Tensor] = []
    model.segments.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    encoder.run(model, inputs, None)
    assert seen[0].tolist() == [[0, 0, 0, 1, 1, 1]]


@pytest.mark.slow
def test_texts_share_no_document() -> None:
    texts = importlib.import_module("parts.collage_texts")
    for name, word in (("code", b"import"), ("reference", b"statement")):
        corpus = texts.corpus(name, 300_000)
        train, val = (part.sources[0].tobytes() for part in (corpus.train, corpus.val))
        assert not set(train.split(b"\0")) & set(val.split(b"\0"))
        assert len(train) > len(val) > 0
        assert word in train
        assert max(train) < texts.BYTES


@pytest.mark.slow
def test_labels() -> None:
    texts = importlib.import_module("parts.collage_texts")
    source = b"x = 'a b'  # c\ny = 1  # \xc3\xa9\n"
    told = "".join("_" if k < 0 else str(k) for k in texts._by_kind(source, 0))
    # The second line is not ASCII, so that columns and bytes differ.
    assert told == "0_0_11_11__1_1" + "_" * (len(source) - 14)
    task = texts.labelled("words", 1)
    for held_out in (False, True):
        inputs, labels = task.batch([1], 32, 16, held_out)
        assert inputs.shape == (32, 16)
        assert np.bincount(labels).tolist() == [16, 16]
    packages = texts.labelled("package", 1)
    assert packages.classes == len(texts.PACKAGES)
    assert np.bincount(packages.batch([1], 16, 16)[1]).tolist() == [2] * 8


def test_speed(tmp_path: Path) -> None:
    script, rows = run("collage_speed", tmp_path)
    # Bytes alone: 30 / 14 for A, 1.36 for C; whatever the model adds brings that nearer to 1.
    for case in script.MODELS:
        of = [r for r in rows if r["case"] == case]
        alone, whole = (
            script.ratios(of, case, parts) for parts in (("optimizer",), ("model", "optimizer"))
        )
        assert alone["A"] == pytest.approx(30 / 14, rel=1e-3)  # rows have four digits
        assert all(1 <= whole[o] <= alone[o] for o in script.OPTIONS)
    assert {r["part"] for r in rows if r["what"] == "measured"} == {"model", "optimizer"}


def cells(line: str) -> tuple[str, ...]:
    """A line of a table without its padding; nothing of other lines and of rules."""
    found = tuple(cell.strip() for cell in line.strip("|\n").split("|")) if line[:1] == "|" else ()
    return () if all(set(cell) <= {"-"} for cell in found) else found


@pytest.mark.parametrize("name", ["collage_bert", "collage_gpt", "collage_speed"])
def test_the_page_has_the_tables_of_the_rows(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(name)
    # What is drawn is looked at by the tests above.
    monkeypatch.setattr(script.paper, "save", lambda made, image: None)
    monkeypatch.setattr(script, "curve", lambda rows, image: None, raising=False)
    script.main(["--report"])
    printed = [cells(line) for line in capsys.readouterr().out.splitlines()]
    page = (EXAMPLES.parent / "docs" / "papers" / "collage_tables.md").read_text()
    told = {cells(line) for line in page.splitlines()}
    assert sum(map(bool, printed)) > 4
    assert {line for line in printed if line} <= told
