"""Training and validation data: byte-level text or memory-mapped uint16 tokens, split by file."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretraining import console, sources
from pretraining.errors import InputError
from pretraining.options import Options

Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

_BYTES = 256
_CHUNK = 1 << 24
# Reading this many tokens takes seconds, and a word is due.
_MANY = 1 << 29


@dataclass(frozen=True)
class Part:
    """The tokens of one part of the data.

    Attributes:
        files: the files it was read from.
        sources: one token array for each stretch that a window may not leave; text files are
            joined by a zero byte into one stretch, each `.bin` file is its own.
    """

    files: tuple[Path, ...]
    sources: tuple[Tokens, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens in all sources."""
        return sum(len(source) for source in self.sources)

    def windows(self, length: int) -> int:
        """Number of windows of `length` tokens, overlapping ones included."""
        return sum(max(0, len(source) - length + 1) for source in self.sources)

    def gather(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Return the windows numbered `starts`, shape [len(starts), length], as int64."""
        counts = [max(0, len(source) - length + 1) for source in self.sources]
        ends = np.cumsum(counts)
        rows = []
        for start in starts:
            index = int(np.searchsorted(ends, start, side="right"))
            first = int(start) - int(ends[index] - counts[index])
            rows.append(self.sources[index][first : first + length])
        return np.stack(rows).astype(np.int64)


@dataclass(frozen=True)
class Corpus:
    """A training and a validation part that share no file.

    Attributes:
        train, val: the parts.
        vocab_size: tokens are below it.
        origin: what it is, in words.
        digest: SHA-256 of all tokens of both parts; a resumed run must see the same.
    """

    train: Part
    val: Part
    vocab_size: int
    origin: str
    digest: str


def load(options: Options) -> Corpus:
    """Find, check, read and split the data that `options` ask for.

    Raises:
        InputError: where a file is missing, empty, unreadable or malformed, or a part too short.
    """
    if options.data:
        files = sources.find(options.data, "--data")
        val_files = sources.find(options.val_data, "--val-data") if options.val_data else []
        origin = f"{len(files) + len(val_files)} files"
    else:
        files, val_files = sources.standard_library(), []
        origin = f"the sources of Python {sysconfig.get_python_version()}'s standard library"
    kinds = {path.suffix == ".bin" for path in [*files, *val_files]}
    if len(kinds) > 1:
        raise InputError("--data: .bin token files and text files cannot be mixed")
    if kinds == {True}:
        corpus = _tokens(files, val_files, options, origin)
    else:
        if options.vocab_size is not None:
            raise InputError("--vocab-size: is for .bin files; text has 256 tokens, one per byte")
        corpus = _text(files, val_files, options, origin)
    length = options.context + 1
    for part, label in ((corpus.train, "training"), (corpus.val, "validation")):
        if not part.windows(length):
            raise InputError(
                f"--data: the {label} part ({part.tokens} tokens in {len(part.files)} file(s)) is "
                f"too short for one window of --context {options.context} + 1 tokens"
            )
    return corpus


def batch(part: Part, *, seed: int, step: int, size: int, length: int) -> npt.NDArray[np.int64]:
    """Return the batch of one step, shape [size, length]: a function of its arguments alone.

    Since no generator runs from step to step, a resumed run needs no generator state.
    """
    generator = np.random.default_rng([seed, step])
    return part.gather(generator.integers(part.windows(length), size=size), length)


def evenly_spaced(part: Part, *, count: int, length: int) -> npt.NDArray[np.int64]:
    """Return at most `count` windows, evenly spaced over the part, shape [<= count, length]."""
    last = part.windows(length) - 1
    count = min(count, last + 1)
    return part.gather(np.unique(np.linspace(0, last, count).astype(np.int64)), length)


def _split(hashes: dict[Path, bytes], fraction: float) -> tuple[list[Path], list[Path]]:
    """Divide files by hash: equal hashes fall into the same part, whatever else is there."""
    if len(set(hashes.values())) < 2:
        raise InputError(
            "--data: one file cannot give a training and a validation part; add --val-data"
        )
    limit = int(fraction * 2**64)
    score = {path: int.from_bytes(digest[:8], "big") for path, digest in hashes.items()}
    # With few files a part may come out empty; then the extreme one goes there.
    limit = min(max(limit, min(score.values()) + 1), max(score.values()))
    train = [path for path in hashes if score[path] >= limit]
    return train, [path for path in hashes if score[path] < limit]


def _text(files: list[Path], val_files: list[Path], options: Options, origin: str) -> Corpus:
    contents, limited = sources.read(files, options.max_bytes, "--data")
    origin += limited
    # By content, so that a copy of a training file cannot be a validation file.
    hashes = {path: hashlib.sha256(content).digest() for path, content in contents.items()}
    if val_files:
        train = contents
        val, limited = sources.read(val_files, options.max_bytes, "--val-data")
        origin += limited.replace("(", "(of --val-data ", 1)
        val_hashes = {path: hashlib.sha256(content).digest() for path, content in val.items()}
        _refuse_shared(hashes, val_hashes)
    else:
        train_files, val_files = _split(hashes, options.val_fraction)
        train = {path: contents[path] for path in train_files}
        val = {path: contents[path] for path in val_files}

    def part(texts: dict[Path, bytes]) -> Part:
        joined = b"\0".join(texts.values())
        return Part(tuple(texts), (np.frombuffer(joined, dtype=np.uint8),))

    return _corpus(part(train), part(val), _BYTES, origin)


def _tokens(files: list[Path], val_files: list[Path], options: Options, origin: str) -> Corpus:
    maps = {path: sources.memory_map(path, "--data") for path in files}
    # Token files may be far larger than memory: the name and not the content is hashed.
    hashes = {path: hashlib.sha256(path.name.encode()).digest() for path in maps}
    if val_files:
        train = maps
        val = {path: sources.memory_map(path, "--val-data") for path in val_files}
        _refuse_shared(
            {path: os.path.realpath(path).encode() for path in train},
            {path: os.path.realpath(path).encode() for path in val},
        )
    else:
        train_files, val_files = _split(hashes, options.val_fraction)
        train = {path: maps[path] for path in train_files}
        val = {path: maps[path] for path in val_files}
    total = sum(len(tokens) for tokens in (train | val).values())
    if total > _MANY:
        console.tell(f"reading {total:,} tokens once, to check and to identify them")
    largest = {path: _largest(tokens) for path, tokens in (train | val).items()}
    vocab_size = options.vocab_size or max(largest.values()) + 1
    for path, token in largest.items():
        if token >= vocab_size:
            raise InputError(f"--vocab-size: {path} holds token {token}, not below {vocab_size}")

    def part(tokens: dict[Path, npt.NDArray[np.uint16]]) -> Part:
        return Part(tuple(tokens), tuple(tokens.values()))

    return _corpus(part(train), part(val), vocab_size, origin)


def _corpus(train: Part, val: Part, vocab_size: int, origin: str) -> Corpus:
    digest = hashlib.sha256()
    for part in (train, val):
        digest.update(len(part.sources).to_bytes(8, "big"))
        for source in part.sources:
            digest.update(len(source).to_bytes(8, "big"))
            for i in range(0, len(source), _CHUNK):
                digest.update(np.ascontiguousarray(source[i : i + _CHUNK]).data)
    return Corpus(train, val, vocab_size, origin, digest.hexdigest())


def _largest(tokens: npt.NDArray[np.uint16]) -> int:
    return max(int(tokens[i : i + _CHUNK].max()) for i in range(0, len(tokens), _CHUNK))


def _refuse_shared(train: dict[Path, bytes], val: dict[Path, bytes]) -> None:
    of_train = {mark: path for path, mark in train.items()}
    for path, mark in val.items():
        if mark in of_train:
            raise InputError(f"--val-data: {path} is also training data ({of_train[mark]})")
