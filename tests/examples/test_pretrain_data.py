"""Data of the pretraining example: what is read, how it is split, which windows are drawn."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from pretraining import data
from pretraining.errors import InputError
from pretraining.options import parse


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


def test_bytes_need_not_be_text(texts: Path):
    every = bytes(range(256))
    (texts / "00.txt").write_bytes(every * 3)
    corpus = load(f"--data={texts}/*.txt")
    joined = b"\0".join(s.tobytes() for s in (*corpus.train.sources, *corpus.val.sources))
    assert every * 3 in joined


def test_every_byte_is_in_the_digest(tmp_path: Path):
    """Also those in the middle of a file above twice the size of a piece."""
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
