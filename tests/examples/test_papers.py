"""The scripts of the papers run small, and what they say is what their numbers say."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.examples.tiny import EXAMPLES
from tests.helpers.draws import bell

pytestmark = pytest.mark.usefixtures("on_torch", "papers")


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts can be imported."""
    # `parts` adds two of them itself, but only where it is imported for the first time.
    for folder in (EXAMPLES.parent / "benchmarks", EXAMPLES, EXAMPLES / "papers"):
        monkeypatch.syspath_prepend(str(folder))


Small = Callable[..., tuple[ModuleType, list[dict[str, str]]]]


@pytest.fixture
def small(papers: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Small:
    """A function: run a script with --small; its module and the rows that it kept."""

    def run(name: str, *options: str) -> tuple[ModuleType, list[dict[str, str]]]:
        script = importlib.import_module(name)
        script.main(["--small", f"--out={tmp_path}", *options])
        table = capsys.readouterr().out
        # The same table and figure from the file alone.
        image = tmp_path / "images" / "papers" / f"{name}.png"
        image.unlink()
        script.main(["--report", f"--out={tmp_path}", *options])
        assert capsys.readouterr().out == table
        assert image.stat().st_size > 10_000
        found = importlib.import_module("parts.paper").read(
            tmp_path / "results" / "papers" / f"{name}.csv"
        )
        return script, found

    return run


@pytest.mark.slow
def test_floor(small: Small) -> None:
    script, rows = small("zamirai_floor")
    # The theorem, for every run at every step; and it is about nearest rounding alone.
    assert script.least(rows, "2^-9") > 1
    others = [{**r, "rounding": "nearest"} for r in rows if r["rounding"] == "Kahan"]
    assert script.least(others, "2^-9") < 1
    floor = min(script.ends(rows, "nearest", "0.125"))
    assert max(script.ends(rows, "Kahan", "0.125")) < floor
    assert max(script.ends(rows, "fp32", "0.125")) < floor


def test_ablation(small: Small) -> None:
    script, rows = small("zamirai_ablation", "--models", "embedding-heavy")
    assert len(rows) == 2 * len(script.VARIANTS)
    assert script.gaps(rows, "embedding-heavy", "float32") == [0, 0]
    for variant in script.VARIANTS[1:]:
        assert any(script.gaps(rows, "embedding-heavy", variant))


def test_a_variant_rounds_what_it_names(small: Small) -> None:
    script = importlib.import_module("zamirai_ablation")
    of_model = importlib.import_module("parts.zamirai_models")
    third = torch.tensor([1 / 3])
    rounded = of_model.to_bf16(third)

    def stepped(*rounds: str) -> dict[str, bool]:
        """Whether weight, gradient and state are bf16 numbers after a step."""
        weight = torch.nn.Parameter(third.clone())
        optimizer = torch.optim.SGD([weight], lr=0.3, momentum=0.9)
        weight.grad = third.clone()
        script.round_parts(optimizer, set(rounds), before=True)
        optimizer.step()
        script.round_parts(optimizer, set(rounds), before=False)
        found = (weight.detach(), weight.grad, optimizer.state[weight]["momentum_buffer"])
        names = ("update", "gradient", "state")
        return {n: bool(x == of_model.to_bf16(x)) for n, x in zip(names, found, strict=True)}

    assert stepped() == {"update": False, "gradient": False, "state": False}
    assert stepped("update") == {"update": True, "gradient": False, "state": False}
    assert stepped("state") == {"update": False, "gradient": False, "state": True}
    # The first momentum is the gradient.
    assert stepped("gradient") == {"update": False, "gradient": True, "state": True}

    for forward, backward in ((True, False), (False, True)):
        x = third.clone().requires_grad_()
        y = of_model.Rounding(forward, backward)(x)
        y.backward(third)
        assert y.item() == (rounded if forward else third).item()
        assert x.grad is not None
        assert x.grad.item() == (rounded if backward else third).item()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["convolutional", "recurrent"])
def test_ablation_of_the_others(small: Small, model: str) -> None:
    script, rows = small("zamirai_ablation", "--models", model)
    assert all(any(script.gaps(rows, model, v)) for v in script.VARIANTS[1:])


@pytest.mark.slow
def test_lost(small: Small) -> None:
    script, rows = small("collage_lost")
    one = {o: {w: script.late(rows, o, w)[0] for w in ("paper_p", "ours_p")} for o in "ABCD"}
    # One number is stored for a weight of A, so that both count the same; pairs lose less.
    assert one["A"]["paper_p"] == one["A"]["ours_p"] > 0
    assert one["B"]["paper_p"] > one["B"]["ours_p"]
    assert one["D"]["paper_p"] < one["A"]["paper_p"]


def test_the_update_is_the_optimizers(small: Small) -> None:
    script = importlib.import_module("collage_lost")
    weight = torch.nn.Parameter(bell((50, 40), 1).bfloat16())
    optimizer = script.AdamW(
        [weight], lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, precision="plain",
        compute_dtype=torch.bfloat16,
    )  # fmt: skip
    for seed in range(3):
        weight.grad = bell((50, 40), 2 + seed).bfloat16()
        before = weight.detach().clone()
        optimizer.step()
        update = script.update(optimizer.param_groups[0], optimizer.state[weight], before)
        assert torch.equal(weight.detach(), before + update)


@pytest.mark.slow
def test_memory(small: Small) -> None:
    script, rows = small("collage_memory")
    found = {(r["table"], r["option"], r["case"]): r["value"] for r in rows}
    each = {o: sum(float(found["bytes", o, k]) for k in script.KINDS) for o in script.OPTIONS}
    assert each == {"A": 8, "B": 10, "C": 12, "D": 16}
    # The paper's example: .999 is 1 in bf16.
    assert found["beta2", "part 0", "0.999"] == "1.0"
    low = Fraction(float(found["beta2", "part 1", "0.999"]))
    assert abs(low + Fraction(1, 1000)) <= Fraction(1, 2**20)
    # What fits, and what would not: the step beyond the longest sequence.
    for option in script.OPTIONS:
        length = int(found["longest", option, "micro-batch 1"])
        for tokens, fits in ((length, True), (length + script.LENGTHS.step, False)):
            shape = dataclasses.replace(script.LARGEST, context=tokens)
            assert (script.peak(shape, option, 1, True, in_flight=2) <= 40 * 2**30) == fits


@pytest.mark.slow
def test_float32_weights_in_two_parts(small: Small) -> None:
    _, rows = small("fused_adam")
    different = {r["precision"]: int(r["different"]) for r in rows if r["size"] == "4096"}
    assert different["split16"] == 0
    assert all(different[name] > 2048 for name in ("split8", "pair (light)", "bf16 alone (plain)"))


@pytest.mark.slow
def test_optimi_memory(small: Small) -> None:
    script, rows = small("optimi_memory")
    found = {r["recipe"]: {k: float(v) for k, v in r.items() if k != "recipe"} for r in rows}
    sums = {name: sum(row[b] for b in script.BUFFERS) for name, row in found.items()}
    assert sums["mixed precision"] == 16
    assert (sums["bf16"], sums["bf16 + Kahan"], sums["bf16, Collage-plus"]) == (8, 10, 12)
    for name, row in found.items():
        # Every tensor of that size is in a column.
        assert row["other"] == 0
        assert row["buckets"] == row["gradients"]
        ours = name.startswith("bf16") and "optimi" not in name
        assert row["release"] == (row["gradients"] / script.LAYERS if ours else row["gradients"])
        assert row["accumulation"] == (2 if ours else 0)


@pytest.mark.slow
def test_amp_tutorial(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module("amp_tutorial")
    monkeypatch.setattr(script, "NETWORKS", {"feed-forward": script.NETWORKS["feed-forward"]})
    script, rows = small("amp_tutorial")
    found = {r["recipe"]: r for r in rows}
    size = {n: round(float(found[n]["bytes_per_param"])) for n in script.RECIPES}
    assert size == {"fp32": 16, "amp": 16, "bf16": 8, "Collage": 12}
    kept = {n: float(found[n]["kept_kib"]) for n in script.RECIPES}
    assert kept["fp32"] > kept["amp"] > kept["bf16"] == kept["Collage"]
    assert found["fp16, resumed with scaler"]["loss"].startswith("8 of 8 losses have the same bits")
    assert not found["fp16, resumed without"]["loss"].startswith("8 of 8")


def test_underflow(small: Small) -> None:
    script = importlib.import_module("amp_tutorial")
    # Half of float16's smallest number is a tie, and goes to 0; zeros are not counted.
    gradients = [torch.tensor([2.0**-24, 2.0**-25, -(2.0**-26)]), torch.tensor([[1.0], [0.0]])]
    assert script.underflow(gradients, 1.0) == 0.5
    assert script.underflow(gradients, 2.0) == 0.25
    assert script.underflow(gradients, 4.0) == 0
    assert script.underflow(gradients, 1.0, torch.bfloat16) == 0


def test_spikes(small: Small) -> None:
    script = importlib.import_module("collage_beta2")
    # Means of ten steps: falling, risen by less and by more than half, and no number.
    falling = torch.tensor([3.0, 2.0, 1.0]).repeat_interleave(10)
    little, much = falling.clone(), falling.clone()
    little[20:], much[20:] = 2.4, 2.6
    none = torch.full((30,), float("nan"))
    assert [script.spikes(x[:, None]) for x in (falling, little, much, none)] == [0, 0, 1, 1]


@pytest.mark.slow
def test_beta2(small: Small) -> None:
    script, rows = small("collage_beta2")
    assert len(rows) == 2 * (3 * len(script.OPTIONS) + 2)
    assert script.gaps(rows, batch=1, beta2=0.99, option="D") == [0, 0]
    assert any(script.gaps(rows, batch=1, beta2=0.99, option="A"))


# -- tables ----------------------------------------------------------------------------------------


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
        # No CLS or SEP is masked; 15 % of the others are, within four standard deviations.
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
    # The tests above look at the numbers drawn.
    monkeypatch.setattr(script.paper, "save", lambda made, image: None)
    monkeypatch.setattr(script, "curve", lambda rows, image: None, raising=False)
    script.main(["--report"])
    printed = [cells(line) for line in capsys.readouterr().out.splitlines()]
    page = (EXAMPLES.parent / "docs" / "papers" / "collage_tables.md").read_text()
    told = {cells(line) for line in page.splitlines()}
    assert sum(map(bool, printed)) > 4
    assert {line for line in printed if line} <= told
