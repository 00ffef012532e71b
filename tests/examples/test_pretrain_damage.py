"""Every file of a run, damaged in every way: the same bits come out, or one line says why not.

Mutants these tests catch: no checksum, no comparison of the training or of the run, no older
checkpoint, an older checkpoint overwritten by the damaged one.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretraining import checkpoint, identity
from pretraining.checkpoint import Training
from pretraining.errors import RunError

from tests.examples.runs import (
    TWO,
    assert_same_bits,
    contents,
    messages,
    refusal,
    temporaries,
    weights,
)

pytestmark = pytest.mark.usefixtures("bare")
CPU = torch.device("cpu")


@pytest.fixture
def through(pretrain) -> Path:
    """A finished run, which stays whole."""
    code, folder = pretrain(*TWO, name="through")
    assert code == 0
    return folder


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "first byte only": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "with a byte more": lambda data: data + b"\n\0",
    "zeros": lambda data: bytes(len(data)),
    "first bit flipped": lambda data: flipped(data, 0, 7),
    "a bit in the middle flipped": lambda data: flipped(data, len(data) // 2),
    "last bit flipped": lambda data: flipped(data, len(data) - 1),
    "other text": lambda data: b"\xff\xfe not UTF-8 \x1b[31m\n",
    "null": lambda data: b"null",
    "list": lambda data: b"[1, 2]\n",
    "number": lambda data: b"1e999",
    "empty dictionary": lambda data: b"{}",
    "deep": lambda data: b"[" * 100_000,
}
SPECIAL: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "loop of links": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "40 GB": lambda path: path.touch() or os.truncate(path, 40 * 10**9),
}
# Made anew by every process, whatever is there.
DERIVED = ["metrics.jsonl", "summary.csv", "lock", "holder.json"]
FILES = [
    "run.json", "costs.json", *DERIVED, "checkpoints/plus-seed0.pt",
    "checkpoints/plus-seed0.previous.pt", "checkpoints/master-seed0.pt",
]  # fmt: skip


def is_whole(name: str, how: str) -> bool:
    """Whether a file says what it said: JSON does without its last newline."""
    return name in ("run.json", "costs.json") and how == "without its last byte"


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("name", FILES)
def test_damaged_file(pretrain, through: Path, capsys, name: str):
    """Resumed to the same bits with a line at most, or refused with one line and left as it is."""
    other = through.with_name("other")
    codes = {}
    for how, damage in [*list(DAMAGES.items())[:: 4 if name in DERIVED else 1], *SPECIAL.items()]:
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(through, other)
        path = other / name
        if how in DAMAGES:
            path.write_bytes(
                damage(path.read_bytes() if name not in ("lock", "holder.json") else b"0")
            )
        else:
            path.unlink(missing_ok=True)
            damage(path)
        before = contents(other) if how in DAMAGES else None
        capsys.readouterr()
        codes[how], _ = pretrain(*TWO, "--resume", name="other")
        lines = messages(capsys)
        assert not temporaries(other), how
        if codes[how]:
            assert codes[how] == 1, (how, lines)
            assert len(lines) == 1
            assert lines[0].startswith("pretrain.py: error: ")
            assert before is None or contents(other) == before, how
            continue
        assert_same_bits(other, through)
        told = not (name in DERIVED or "previous" in name or is_whole(name, how))
        assert len(lines) == told, (how, lines)
        assert all(line.startswith("note: ") and name in line for line in lines)
    refused = {how for how, code in codes.items() if code}
    if name == "run.json":
        assert refused == {how for how in codes if not is_whole(name, how)}
    elif name in (*DERIVED, "costs.json"):
        # What is no file may be more than can be made good.
        assert refused <= SPECIAL.keys()
    else:
        assert not refused


def test_what_the_older_checkpoint_made_good_is_good_again(pretrain, through: Path, capsys):
    path = through / "checkpoints" / "plus-seed0.pt"
    path.write_bytes(path.read_bytes()[:-1])
    assert pretrain(*TWO, "--resume", name="through")[0] == 0
    assert len(messages(capsys)) == 1
    assert pretrain(*TWO, "--resume", name="through")[0] == 0
    assert not messages(capsys)
    assert_same_bits(through, pretrain(*TWO, name="expected")[1])


def test_no_bit_of_a_checkpoint_can_flip(through: Path):
    """Every byte of the seal, and every hundredth of the rest."""
    training = the_training(through)
    whole = training.path.read_bytes()
    seal = len(whole) - whole.rindex(b"PK\5\6")
    places = [*range(0, len(whole) - seal, 100), *range(len(whole) - seal, len(whole))]
    training.older.unlink()
    for place in places:
        training.path.write_bytes(flipped(whole, place, place % 8))
        with pytest.raises(RunError):
            checkpoint.restore(training, CPU)
    training.path.write_bytes(whole)
    assert checkpoint.restore(training, CPU)["step"] == 7


@pytest.mark.parametrize("name", ["run.json", "costs.json"])
def test_no_bit_of_a_marker_can_flip(through: Path, name: str):
    """Most of those that flip a digit leave good JSON behind."""
    whole = (through / name).read_bytes()
    assert identity.unsealed(whole)
    for place in range(len(whole)):
        # Of the bits that make another letter or digit; bit 5 would make 1e-08 an equal 1E-08.
        for bit in (0, 1):
            with pytest.raises(ValueError, match=r"^its? "):
                identity.unsealed(flipped(whole, place, bit))


def the_training(folder: Path, strategy: str = "plus", seed: int = 0) -> Training:
    run = json.loads(seal_of(folder / "checkpoints" / "plus-seed0.pt"))["run"]
    return Training(strategy, seed, run, folder)


def seal_of(path: Path) -> bytes:
    data = path.read_bytes()
    start = data.index(b'{"format"', data.rindex(b"PK\5\6"))
    return data[start:-80]


def test_a_checkpoint_is_what_torch_loads(through: Path):
    state = torch.load(through / "checkpoints" / "plus-seed0.pt", weights_only=True, mmap=True)
    assert state["step"] == 7
    seal = json.loads(seal_of(through / "checkpoints" / "plus-seed0.pt"))
    assert seal["format"] == "mcf-pretrain-checkpoint"
    assert seal["job"] == {"strategy": "plus", "seed": 0}
    assert seal["step"] == 7
    assert {"python", "torch", "numba", "mcf", "processor"} <= seal["versions"].keys()


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("arguments", "source", "words"),
    [
        ([], "master-seed0.pt", "another training's checkpoint"),
        (["--seeds=1"], "plus-seed1.pt", "another training's checkpoint"),
        (["--width=32"], "plus-seed0.pt", "a checkpoint of other options or data"),
        (["--lr=0.5"], "plus-seed0.pt", "a checkpoint of other options or data"),
    ],
)
def test_other_checkpoints_are_not_taken(pretrain, capsys, through: Path, arguments, source, words):
    """A whole and sealed checkpoint of another strategy, seed, width or rate."""
    _, foreign = pretrain(*TWO, *arguments, name="foreign")
    path = through / "checkpoints" / "plus-seed0.pt"
    shutil.copy(foreign / "checkpoints" / source, path)
    expected = pretrain(*TWO, name="expected")[1]
    capsys.readouterr()
    assert pretrain(*TWO, "--resume", name="through")[0] == 0
    (line,) = messages(capsys)
    assert words in line
    assert "plus, seed 0 goes on from the older checkpoint, step 6" in line
    assert_same_bits(through, expected)
    kept = through / "checkpoints" / "plus-seed0.unusable.pt"
    assert kept.read_bytes() == (foreign / "checkpoints" / source).read_bytes()


def test_nothing_usable_is_refused_and_left(pretrain, capsys, through: Path):
    for name in ("plus-seed0.pt", "plus-seed0.previous.pt"):
        path = through / "checkpoints" / name
        path.write_bytes(flipped(path.read_bytes(), 1000))
    before = contents(through)
    capsys.readouterr()
    text = refusal(capsys, pretrain(*TWO, "--resume", name="through")[0], 1)
    assert "plus-seed0.pt is damaged (its checksum does not fit)" in text
    assert "the older plus-seed0.previous.pt is damaged" in text
    assert "to train plus, seed 0 again from its start, move both away" in text
    assert contents(through) == before


def test_checkpoints_of_older_versions_are_named_so(pretrain, capsys, through: Path):
    """Older checkpoints had no seal; emptied states in one were resumed without a word."""
    path = through / "checkpoints" / "plus-seed0.pt"
    (path.parent / "plus-seed0.previous.pt").unlink()
    state = torch.load(path, weights_only=True)
    buffer = io.BytesIO()
    torch.save(state | {"model": {}}, buffer)
    path.write_bytes(buffer.getvalue())
    capsys.readouterr()
    text = refusal(capsys, pretrain(*TWO, "--resume", name="through")[0], 1)
    assert "is cut short, or of an older pretrain.py (it has no seal)" in text


def test_formats_of_later_versions_are_named_so(through: Path, monkeypatch):
    training = the_training(through)
    training.older.unlink()
    monkeypatch.setattr(checkpoint, "VERSION", 1)
    with pytest.raises(RunError, match=r"has format 2, and this pretrain\.py knows 1"):
        checkpoint.restore(training, CPU)


def test_a_damaged_training_costs_no_other(pretrain, through: Path, capsys):
    """Both generations of the first are gone; the second is not trained again."""
    kept = (through / "checkpoints" / "master-seed0.pt").read_bytes()
    final = weights(through)
    for path in (through / "checkpoints").glob("plus-*"):
        path.unlink()
    metrics = (through / "metrics.jsonl").read_bytes()
    assert pretrain(*TWO, "--resume", name="through")[0] == 0
    assert (through / "checkpoints" / "master-seed0.pt").read_bytes() == kept
    assert (through / "metrics.jsonl").read_bytes() == metrics
    assert all(torch.equal(weight, final[name]) for name, weight in weights(through).items())
