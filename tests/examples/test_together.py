"""Pretraining by several processes: the same bits for any number of them, whatever happens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain import main
from pretraining.options import parse

from tests.examples import together_cases as cases
from tests.helpers.everyday import everyday
from tests.helpers.processes import World, world

__all__ = ["world"]


def run(
    world: World, size: int, folder: Path, how: str, *arguments: str, name: str = "", **how_not: Any
) -> tuple[list[int], list[str], Path]:
    """Exit codes, what each process said, the run's folder."""
    name = name or f"{how}{size}"
    words = [f"--parallel={how}", f"--name={name}", *arguments]
    found = world.run(size, cases.train_named, str(folder), words, how_not)
    return [code for code, _ in found], [said for _, said in found], folder / "runs" / name


def assert_same(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    a, b = cases.tensors(one), cases.tensors(other)
    assert a.keys() == b.keys()
    assert len(a) > 20
    for name in a:
        x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a[name], b[name]))
        assert torch.equal(x, y), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.examples.tiny import write_texts

    made = tmp_path_factory.mktemp("together")
    write_texts(made / "texts")
    return made


@pytest.fixture(scope="module")
def one(world: World, folder: Path) -> Path:
    """An undisturbed run by one process."""
    codes, said, path = run(world, 1, folder, "ddp")
    assert (codes, said) == ([0], [""])
    return path


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ("fsdp", 2),
        pytest.param("ddp", 2, marks=pytest.mark.slow),
        pytest.param("ddp", 4, marks=pytest.mark.slow),
        pytest.param("fsdp", 4, marks=pytest.mark.slow),
        pytest.param("hsdp", 4, marks=pytest.mark.slow),
        pytest.param("none", 1, marks=pytest.mark.slow),
    ],
)
def test_the_same_bits(world: World, folder: Path, one: Path, how: str, size: int) -> None:
    more = ["--shards=2"] if how == "hsdp" else []
    codes, said, path = run(world, size, folder, how, *more)
    assert (codes, said) == ([0] * size, [""] * size)
    assert_same(path, one)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize(("how", "size"), [("tp", 2), ("fsdp+tp", 4)])
def test_tensor_parallel_trains(
    world: World, folder: Path, one: Path, how: str, size: int, sequence: bool
) -> None:
    """Its sums inside a matrix product are others, so that bits are too."""
    more = ["--sequence-parallel", "--reduce=engine"] if sequence else []
    codes, _, path = run(world, size, folder, how, *more, name=f"{how}{size}{sequence}")
    assert codes == [0] * size
    mine, theirs = cases.tensors(path), cases.tensors(one)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert mine[name].shape == theirs[name].shape
    from pretraining import report

    lines = [report.read_lines((x / "metrics.jsonl").read_text()) for x in (path, one)]
    for a, b in zip(*lines, strict=True):
        # Losses of 5.5 that differ by rounding errors of float32, times what updates make of them.
        assert abs(a["train_loss"] - b["train_loss"]) < 1e-2


@pytest.mark.slow
def test_sums_of_the_engine_have_other_bits(world: World, folder: Path, one: Path) -> None:
    codes, _, path = run(world, 2, folder, "ddp", "--reduce=engine", name="engine")
    assert codes == [0, 0]
    assert (path / "metrics.jsonl").read_bytes() != (one / "metrics.jsonl").read_bytes()


def test_it_goes_on_with_another_number_of_processes(world: World, folder: Path, one: Path) -> None:
    """After a signal that came to one process; and in another layout."""
    how_not = {"accident": "asked_to_stop 3", "rank": 1}
    codes, said, path = run(world, 2, folder, "fsdp", name="stopped", **how_not)
    assert codes == [143, 143]
    assert said[0].startswith("pretrain.py: interrupted by SIGTERM; go on from the last")
    assert "torchrun --standalone --nproc-per-node 2" in said[0]
    assert said[1] == ""
    assert [p.name for p in cases.newest(path)] == ["step-00000003", "step-00000002"]
    codes, said, path = run(world, 1, folder, "ddp", "--resume", name="stopped")
    assert (codes, said) == ([0], [""])
    assert_same(path, one)


@pytest.mark.parametrize(
    ("accident", "words"),
    [
        ("wrong_loss 3", "update 3: the loss is nan in process 1"),
        ("wrong_gradient 3", "update 3: "),
    ],
)
def test_a_nan_of_one_process_ends_all_with_one_line(
    world: World, folder: Path, accident: str, words: str
) -> None:
    name = accident.split()[0]
    codes, said, _ = run(world, 2, folder, "fsdp", name=name, accident=accident, rank=1)
    assert codes == [1, 1]
    assert said[0].startswith(f"pretrain.py: error: {words}")
    assert said[0].count("\n") == 0
    assert said[1] == ""


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_full_disk_of_one_process(world: World, folder: Path, one: Path, rank: int) -> None:
    name = f"full{rank}"
    how_not = {"accident": "full_disk 2000", "rank": rank}
    codes, said, path = run(world, 2, folder, "fsdp", name=name, **how_not)
    assert codes == [1, 1]
    assert "cannot write" in said[0]
    assert "File too large" in said[0]
    assert said[0].count("\n") == 0
    assert said[1] == ""
    assert cases.newest(path) == []
    assert not list(path.rglob("*.tmp"))
    codes, said, path = run(world, 2, folder, "fsdp", "--resume", name=name)
    assert (codes, said) == ([0, 0], ["", ""])
    assert_same(path, one)


def damaged(path: Path, how: str) -> None:
    """Let something happen to a checkpoint's largest file."""
    [*_, file] = sorted(path.glob("*.distcp"), key=lambda p: p.stat().st_size)
    if how == "lost":
        file.unlink()
    elif how == "short":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "flipped":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif how == "manifest":
        (path / "manifest.json").unlink()


WORDS = {
    "lost": "has lost __", "short": "bytes of", "flipped": "the checksum of __",
    "manifest": "has no manifest that can be read",
}  # fmt: skip


@pytest.mark.parametrize("how", everyday(WORDS, ["flipped"]))
def test_a_damaged_checkpoint_costs_some_updates(
    world: World, folder: Path, one: Path, how: str
) -> None:
    path = folder / "runs" / f"damaged-{how}"
    shutil.copytree(one, path)
    damaged(cases.newest(path)[0], how)
    codes, said, _ = run(world, 2, folder, "fsdp", "--resume", name=path.name)
    assert codes == [0, 0]
    assert WORDS[how] in said[0]
    assert said[0].endswith("going on from the older step-00000004")
    assert said[1] == ""
    assert_same(path, one)
    for found in cases.newest(path):
        damaged(found, how)
    codes, said, _ = run(world, 2, folder, "fsdp", "--resume", name=path.name)
    assert codes == [1, 1]
    assert said[0].count(WORDS[how]) == 2
    assert "to train again from the start, move them away" in said[0]
    assert said[1] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--parallel=all"], "--parallel: invalid choice: 'all'"),
        (["--model=llama-1m", "--width=64"], "--width: --model llama-1m has its own"),
        (["--micro-batch=3"], "--micro-batch: 3 does not divide --batch-size 4"),
        (["--shards=2"], "--shards: needs --parallel hsdp"),
        (["--parallel=hsdp", "--shards=2"], "--shards: 2 does not divide 1 processes"),
        (["--sequence-parallel"], "--sequence-parallel: needs --parallel tp or fsdp+tp"),
        (["--parallel=tp", "--sequence-parallel", "--reduce=exact"], "--reduce: exact does not go"),
        (["--parallel=fsdp+tp"], "--tensor: 2 does not divide 1 processes"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    try:
        code: Any = main([*arguments, "--name=refused"])
    except SystemExit as stop:
        code = stop.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 1
    assert words in lines[0]


def test_options_of_runs_by_one_process_are_what_they_were() -> None:
    """The digest of a run's options, which a resumed run compares, has no new ones in it."""
    assert "parallel" not in parse([]).fixed()
    fixed = parse(["--model=llama-1m", "--parallel=ddp"]).fixed()
    assert (fixed["model"], fixed["reduce"]) == ("llama-1m", "engine")
    assert (fixed["layers"], fixed["width"], fixed["context"]) == (4, 128, 256)
    # A run goes on in another layout.
    assert "parallel" not in fixed
