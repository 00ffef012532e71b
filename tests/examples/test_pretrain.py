"""`examples/pretrain.py` as a whole: what a run of it leaves behind."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import os
import sysconfig
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from pretraining import data, model, options, plots, report, train
from pretraining.errors import InputError
from pretraining.options import parse

import mcf
from mcf.optim import PRECISIONS
from tests.examples.tiny import TINY, torch_restored, write_texts

ALL = options.STRATEGIES
# Stored bytes per bf16 parameter with a bf16 gradient (docs: one storage format per tensor).
BYTES = {"plain": 8, "8bit": 6, "bf16_sr": 8, "split16_sr": 10, "plus": 12, "master": 16}


# A run knows nothing of a strategy but its name and options; each trains in tests of its own.
FEW = ("plain", "plus", "master")


@pytest.fixture(
    scope="module", params=[FEW, pytest.param(ALL, marks=pytest.mark.slow)], ids=["few", "all"]
)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, tuple[str, ...]]:
    """One run of some strategies with two seeds: its folder, what it printed, and they."""
    from pretrain import main

    folder = tmp_path_factory.mktemp("finished")
    texts = write_texts(folder / "texts")
    printed = io.StringIO()
    arguments = [
        *TINY,
        f"--data={texts}/*.txt",
        f"--out={folder}",
        "--name=run",
        "--seeds",
        "0",
        "3",
        "--strategies",
        *request.param,
    ]
    # Of several strategies here; that it runs on the default executor is seen of one elsewhere.
    with torch_restored(), contextlib.redirect_stdout(printed), mcf.executor("torch"):
        code = main(arguments)
    assert code == 0
    return folder / "run", printed.getvalue(), request.param


def test_a_run_leaves_metrics_table_and_plots(finished):
    """One test for all files, since the run is the expensive part."""
    folder, printed, strategies = finished
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    expected = [(s, seed, step) for seed in (0, 3) for s in strategies for step in range(1, 8)]
    assert [(row["strategy"], row["seed"], row["step"]) for row in lines] == expected
    for row in lines:
        assert ("val_loss" in row) == (row["step"] in (3, 6, 7))
        assert 0 < row["train_loss"] < 10
        assert 0 < row["update_norm"]
        assert 0 <= row["lost_param"] <= 1
        assert 0 <= row["lost_exp_avg_sq"] <= 1
        assert row["edq_ratio"] == pytest.approx(row["edq"] / row["update_norm"], rel=1e-5)

    with (folder / "summary.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["strategy"], row["seed"]) for row in table] == [
        (s, seed) for seed in ("0", "3") for s in strategies
    ]
    for row in table:
        own = [
            x for x in lines if (x["strategy"], str(x["seed"])) == (row["strategy"], row["seed"])
        ]
        assert float(row["val_loss"]) == own[-1]["val_loss"]
        assert float(row["perplexity"]) == pytest.approx(math.exp(own[-1]["val_loss"]))
        assert float(row["edq_ratio"]) == pytest.approx(np.mean([x["edq_ratio"] for x in own]))
        assert float(row["lost_param"]) == pytest.approx(np.mean([x["lost_param"] for x in own]))
        # Besides the tensors of the parameter's size there is one int64 counter a tensor.
        tensors = 12
        others = 8 * tensors
        # Six of the 12 tensors are vectors of 16 elements, whose moments stay in bf16.
        others += 2 * 6 * 16 * (row["strategy"] == "8bit")
        stored = BYTES[row["strategy"]] + others / int(row["parameters"])
        assert float(row["bytes_per_param"]) == pytest.approx(stored)
        assert float(row["step_ns_per_param"]) > 0

    # The first loss of a seed is the same for all strategies, and another for another seed.
    first = {
        k: {r["train_loss"] for r in lines if (r["seed"], r["step"]) == (k, 1)} for k in (0, 3)
    }
    assert len(first[0]) == len(first[3]) == 1
    assert first[0] != first[3]

    for strategy in strategies:
        assert f"\n{strategy} " in printed
    assert "master's seed-to-seed spread" in printed
    assert (folder / "summary.txt").read_text() in printed
    for name in ("loss.png", "edq.png"):
        image = matplotlib.image.imread(folder / name)
        assert min(image.shape[:2]) > 300
        # Curves and labels in several colours; an empty axes has black on white only.
        pixels = (image * 255).round().astype(np.uint8).view(np.uint32)
        assert len(np.unique(pixels)) > 100
    assert not list(folder.rglob("*.tmp"))
    assert not (folder / "holder.json").exists()


def test_precision_matters(finished):
    """The strategies differ in what the weights took: float32 master weights lose nothing."""
    rows = list(report.read_lines((finished[0] / "metrics.jsonl").read_text()))
    error = {
        s: np.mean([abs(1 - r["edq_ratio"]) for r in rows if r["strategy"] == s])
        for s in finished[2]
    }
    assert error["master"] < 1e-3
    assert error["plus"] < 1e-2 < error["plain"]


def parsed(*arguments: str) -> options.Options:
    return options.parse(["--layers=1", "--width=16", "--heads=2", "--context=8", *arguments])


def test_initial_weights_are_float32_draws_rounded_once():
    gpt = model.build(parsed(), 256, seed=4, device=torch.device("cpu"))
    drawn = torch.empty(256, 16).normal_(0, 0.02, generator=torch.Generator().manual_seed(4))
    assert gpt.tokens.weight.dtype == torch.bfloat16
    assert torch.equal(gpt.tokens.weight, drawn.bfloat16())


def test_cpu_forward_upcasts_and_gradients_are_bf16():
    """The loss is exactly that of a float32 model with the same weights; gradients are bf16."""
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu"))
    windows = torch.randint(256, (3, 9), generator=torch.Generator().manual_seed(0))
    loss = model.loss(gpt, windows)
    loss.backward()
    reference = model.build(parsed(), 256, seed=0, device=torch.device("cpu")).float()
    expected = torch.nn.functional.cross_entropy(
        reference(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
    )
    expected.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == expected.item()
    for weight, other in zip(gpt.parameters(), reference.parameters(), strict=True):
        assert weight.grad.dtype == torch.bfloat16
        assert torch.equal(weight.grad, other.grad.bfloat16())


def test_model_sees_only_the_past():
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu")).float()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5:] = 200
    before, after = gpt(tokens), gpt(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_learning_rate_rises_linearly_and_falls_to_a_tenth():
    chosen = parsed("--lr=1", "--steps=110", "--warmup=10")
    rates = [train.learning_rate(step, chosen) for step in range(1, 111)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[59] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))


def test_norm_layers_do_not_decay():
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu"))
    made = train.make_optimizer(gpt.parameters(), "plus", parsed(), track_metrics=False)
    assert [g["weight_decay"] for g in made.param_groups] == [0.1, 0]
    assert {w.dim() for w in made.param_groups[0]["params"]} == {2}
    assert {w.dim() for w in made.param_groups[1]["params"]} == {1}
    assert sum(len(g["params"]) for g in made.param_groups) == len(list(gpt.parameters()))


def test_compute_dtype_reaches_only_the_strategies_that_have_it():
    gpt = model.build(parsed(), 256, seed=0, device=torch.device("cpu"))
    chosen = parsed("--compute-dtype=bfloat16")
    for strategy in ALL:
        made = train.make_optimizer(gpt.parameters(), strategy, chosen, track_metrics=False)
        expected = torch.bfloat16 if strategy in ("plain", "plus") else torch.float32
        assert all(g["compute_dtype"] == expected for g in made.param_groups), strategy


def test_the_count_of_parameters_needs_no_model():
    """It is what the model is refused by that no machine can hold."""
    chosen = parsed("--layers=3", "--width=24", "--heads=3", "--context=7")
    gpt = model.build(chosen, 300, seed=0, device=torch.device("cpu"))
    assert model.parameters(chosen, 300) == sum(w.numel() for w in gpt.parameters())


def test_clip_bounds_the_gradient(pretrain, bare):
    """AdamW's eps keeps a gradient of norm 1e-12 from being blown up to a full step."""
    norms = []
    for clip in ("1", "1e-12"):
        folder = pretrain("--strategies=plus", f"--clip={clip}", name=f"clip{clip}")[1]
        norms.append(report.read_lines((folder / "metrics.jsonl").read_text())[0]["update_norm"])
    assert norms[1] < 0.1 * norms[0]


# -- report ----------------------------------------------------------------------------------------


def test_plus_within_and_outside_the_spread_of_master():
    """Master: mean 2.0, sample standard deviation 0.1."""
    master = {0: 1.9, 1: 2.0, 2: 2.1}
    for shift, words in ((0.09, "is within"), (-0.09, "is within"), (0.11, "is NOT within")):
        plus = {seed: value + shift for seed, value in master.items()}
        text = "\n".join(report.verdict({"plus": plus, "master": master}))
        assert f"plus {words} master's seed-to-seed spread" in text
        assert f"differ by {shift:+.4f}, one standard deviation of master is 0.1000" in text


def test_paired_difference_sees_what_the_spread_hides():
    master = {0: 1.9, 1: 2.0, 2: 2.1}
    always = {0: 1.911, 1: 2.010, 2: 2.109}
    sometimes = {0: 1.89, 1: 2.03, 2: 2.10}
    assert "0.0006, systematic" in report.verdict({"plus": always, "master": master})[2]
    unsure = report.verdict({"plus": sometimes, "master": master})[2]
    assert "not distinguishable from zero" in unsure
    assert "lower in 1 of 3 seeds" in unsure


def test_split16_sr_has_sentences_of_its_own():
    losses = {name: {0: 1.9, 1: 2.1} for name in ("split16_sr", "plus", "master")}
    text = report.verdict(losses)
    assert [line.split()[3] for line in text if line.startswith("Over")] == ["plus", "split16_sr"]
    assert text[-1].endswith("split16_sr is lower in 0 of 2 seeds.")


def test_one_seed_gives_no_verdict():
    (_, text) = report.verdict({"plus": {0: 1.0}, "master": {0: 1.0}})
    assert "--seeds 0 1 2 3 4" in text
    assert report.verdict({"plus": {0: 1.0}}) == []


def test_non_finite_values_are_null_in_metrics():
    """JSON has no NaN: readers in other languages would refuse the file."""
    line = report.to_line({"step": 1, "train_loss": math.nan, "edq": math.inf})
    assert line == '{"step": 1, "train_loss": null, "edq": null}\n'
    assert math.isnan(report.read_lines(line)[0]["train_loss"])


# -- strategies ------------------------------------------------------------------------------------


def test_every_precision_can_be_named() -> None:
    assert {*options.STRATEGIES, *options.OTHERS} == set(PRECISIONS) == plots.STYLE.keys()
    assert options.parse([]).strategies == options.STRATEGIES


@pytest.mark.slow
def test_the_others_train(tmp_path: Path) -> None:
    from pretrain import main

    texts = write_texts(tmp_path / "texts")
    named = ["--strategies", *options.OTHERS, f"--data={texts}/*.txt", f"--out={tmp_path}"]
    with torch_restored():
        assert main([*TINY, *named, "--name=run"]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["strategy"] for line in lines} == set(options.OTHERS)
    assert (tmp_path / "run" / "loss.png").stat().st_size > 0


# -- data ------------------------------------------------------------------------------------------


def load(*arguments: str) -> data.Corpus:
    return data.load(parse(["--context=4", *arguments]))


def write_tokens(path: Path, tokens: list[int]) -> Path:
    np.array(tokens, dtype="<u2").tofile(path)
    return path


@pytest.mark.slow
def test_standard_library_is_split_by_file():
    corpus = load()
    root = Path(sysconfig.get_path("stdlib"))
    train, val = set(corpus.train.files), set(corpus.val.files)
    assert len(train) > 300
    assert len(val) > 20
    assert not train & val
    assert {path.read_bytes() for path in train}.isdisjoint(path.read_bytes() for path in val)
    for path in train | val:
        assert path.suffix == ".py"
        inside = set(path.relative_to(root).parts)
        assert not inside & {"site-packages", "__pycache__", "test", "tests"}
    assert load().digest == corpus.digest
    # The tokens are the files' bytes, in sorted order, a zero byte between two.
    expected = b"\0".join(path.read_bytes() for path in sorted(corpus.val.files))
    assert corpus.val.sources[0].tobytes() == expected


@pytest.mark.parametrize("fraction", ["0.000001", "0.3", "0.999999"])
def test_both_parts_have_files_whatever_the_fraction(texts: Path, fraction: str):
    corpus = load(f"--data={texts}/*.txt", f"--val-fraction={fraction}")
    train, val = set(corpus.train.files), set(corpus.val.files)
    assert train
    assert val
    assert not train & val
    assert train | val == set(texts.iterdir())


def test_a_file_keeps_its_part_when_others_come_or_its_name_changes(texts: Path):
    """Mutant: a split by position or by path changes sides here."""
    before = load(f"--data={texts}/*.txt", "--val-fraction=0.4")
    val = {path.read_bytes() for path in before.val.files}
    (texts / "05.txt").rename(texts / "zz.txt")
    for number in range(20):
        (texts / f"0{number}-new.txt").write_text(f"another file {number}")
    after = load(f"--data={texts}/*.txt", "--val-fraction=0.4")
    old = {path.read_bytes() for path in after.val.files if "new" not in path.name}
    assert old == val


def test_bytes_need_not_be_text(texts: Path):
    every = bytes(range(256)) * 3
    (texts / "00.txt").write_bytes(every)
    corpus = load(f"--data={texts}/*.txt")
    assert every in b"".join(s.tobytes() for s in (*corpus.train.sources, *corpus.val.sources))


def test_copies_and_links_cannot_be_in_both_parts(texts: Path):
    """Mutant: a split by path puts some copy on the other side."""
    for path in list(texts.iterdir()):
        (texts / f"copy-of-{path.name}").write_bytes(path.read_bytes())
        (texts / f"link-to-{path.name}").symlink_to(path)
    corpus = load(f"--data={texts}/*.txt", "--val-fraction=0.4")
    contents = [{path.read_bytes() for path in part.files} for part in (corpus.train, corpus.val)]
    assert not contents[0] & contents[1]
    assert len(corpus.train.files) + len(corpus.val.files) == 24


def test_validation_files_of_ones_own(texts: Path):
    val = texts / "00.txt"
    corpus = load("--data", *map(str, sorted(texts.iterdir())[1:]), f"--val-data={val}")
    assert corpus.val.files == (val,)
    assert len(corpus.train.files) == 11
    with pytest.raises(InputError, match=r"--val-data: .*00.txt is also training data"):
        load(f"--data={texts}/*.txt", f"--val-data={val}")


def test_max_bytes_bounds_what_is_read(texts: Path):
    size = (texts / "00.txt").stat().st_size
    corpus = load(f"--data={texts}/*.txt", f"--max-bytes={3 * size}")
    assert len(corpus.train.files) + len(corpus.val.files) == 3
    assert "first 3 of 12, by --max-bytes" in corpus.origin


def test_a_file_of_40_gb_is_not_read_whole(tmp_path: Path):
    """It is cut where --max-bytes says, and so is one for validation."""
    paths = []
    for name in ("large", "val"):
        path = tmp_path / f"{name}.txt"
        path.write_bytes(name.encode())
        os.truncate(path, 40 * 10**9)
        paths.append(path)
    corpus = load(f"--data={paths[0]}", f"--val-data={paths[1]}", "--max-bytes=1000")
    assert (corpus.train.tokens, corpus.val.tokens) == (1000, 1000)
    assert corpus.origin.endswith(
        " (it is cut short by --max-bytes) (of --val-data it is cut short by --max-bytes)"
    )
    # The cut is at a byte, whatever file it falls into.
    small = tmp_path / "a.txt"
    small.write_bytes(b"0123456789")
    corpus = load("--data", str(small), str(paths[0]), f"--val-data={paths[1]}", "--max-bytes=15")
    assert corpus.train.sources[0].tobytes() == b"0123456789\0large"
    assert "(the first 2 of 2, cut short by --max-bytes)" in corpus.origin


def test_every_byte_is_in_the_digest(tmp_path: Path):
    """Bytes in the middle of a file above twice the size of a piece count, too."""
    train, val = tmp_path / "train.bin", tmp_path / "val.bin"
    np.zeros(5 << 16, dtype="<u2").tofile(train)
    np.zeros(9, dtype="<u2").tofile(val)
    both = [f"--data={train}", f"--val-data={val}", "--vocab-size=9"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "_CHUNK", 1 << 16)
        digests = {load(*both).digest}
        for place in (0, (5 << 15) - 1, (5 << 16) - 1):
            tokens = np.zeros(5 << 16, dtype="<u2")
            tokens[place] = 1
            tokens.tofile(train)
            digests.add(load(*both).digest)
    assert len(digests) == 4


def test_token_files_are_memory_mapped(tmp_path: Path):
    train = write_tokens(tmp_path / "train.bin", [5, 60000, 7, 8, 9, 10])
    val = write_tokens(tmp_path / "val.bin", [1, 2, 3, 4, 5])
    corpus = load(f"--data={train}", f"--val-data={val}")
    assert isinstance(corpus.train.sources[0], np.memmap)
    assert corpus.train.sources[0].dtype == np.uint16
    assert corpus.vocab_size == 60001
    assert corpus.train.tokens == 6
    windows = corpus.train.gather(np.array([0, 1]), 5)
    assert windows.tolist() == [[5, 60000, 7, 8, 9], [60000, 7, 8, 9, 10]]
    assert load(f"--data={train}", f"--val-data={val}", "--vocab-size=65536").vocab_size == 65536
    assert load(f"--data={train}", f"--val-data={val}").digest == corpus.digest
    write_tokens(train, [5, 60000, 7, 8, 9, 11])
    assert load(f"--data={train}", f"--val-data={val}").digest != corpus.digest


def test_token_files_are_split_by_file(tmp_path: Path):
    for number in range(8):
        write_tokens(tmp_path / f"{number}.bin", [number] * 9)
    corpus = load(f"--data={tmp_path}/*.bin", "--val-fraction=0.4")
    tokens = [{int(s[0]) for s in part.sources} for part in (corpus.train, corpus.val)]
    assert tokens[0] | tokens[1] == set(range(8))
    assert not tokens[0] & tokens[1]


def test_windows_stay_inside_one_source():
    """Three sources; the middle one is too short for any window."""
    part = data.Part((), (np.arange(6, dtype=np.uint16), np.full(4, 99, dtype=np.uint16),
                          np.arange(10, 17, dtype=np.uint16)))  # fmt: skip
    assert part.windows(5) == 5
    expected = [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [10, 11, 12, 13, 14], [11, 12, 13, 14, 15],
                [12, 13, 14, 15, 16]]  # fmt: skip
    assert part.gather(np.arange(5), 5).tolist() == expected
    assert data.evenly_spaced(part, count=3, length=5).tolist() == expected[::2]
    assert data.evenly_spaced(part, count=99, length=5).tolist() == expected
    # No more numbers are made than there are windows.
    assert data.evenly_spaced(part, count=10**15, length=5).tolist() == expected


def test_a_batch_depends_on_seed_and_step_alone():
    part = data.Part((), (np.arange(1000, dtype=np.uint16),))
    draw = {
        (seed, step): data.batch(part, seed=seed, step=step, size=3, length=4)
        for seed in (0, 1)
        for step in (2, 1)
    }
    again = data.batch(part, seed=0, step=2, size=3, length=4)
    assert np.array_equal(draw[0, 2], again)
    assert len({tuple(batch[:, 0]) for batch in draw.values()}) == 4
    starts = np.concatenate(
        [data.batch(part, seed=0, step=s, size=64, length=4)[:, 0] for s in range(400)]
    )
    assert (starts.min(), starts.max()) == (0, 996)
