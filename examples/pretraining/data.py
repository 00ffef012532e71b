"""Training and validation data: byte-level text or memory-mapped uint16 tokens, split by file."""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretraining.errors import InputError
from pretraining.options import Options

Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

# Not part of the library's own text: installed packages, caches, and its test suite, which some
# distributions leave out.
_SKIPPED = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
)
_BYTES = 256
_CHUNK = 1 << 24


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
        digest: identifies files and contents; a resumed run must see the same.
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
        files = _find(options.data, "--data")
        val_files = _find(options.val_data, "--val-data") if options.val_data else []
        origin = f"{len(files) + len(val_files)} files"
    else:
        files, val_files = _standard_library(), []
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
    return part.gather(np.unique(np.linspace(0, last, count).astype(np.int64)), length)


def _find(patterns: tuple[str, ...], option: str) -> list[Path]:
    found: dict[str, Path] = {}
    for pattern in patterns:
        # A file whose own name holds [ or * is taken as it stands.
        matches = [pattern] if os.path.lexists(pattern) else glob.glob(pattern, recursive=True)
        files = [Path(match) for match in matches if not os.path.isdir(match)]
        if not files:
            if os.path.isdir(pattern):
                raise InputError(
                    f"{option}: {pattern} is a folder; name its files, such as {pattern}/**/*.txt"
                )
            raise InputError(f"{option}: no file matches {pattern}")
        # Two names of one file would put it into both parts.
        found |= {os.path.realpath(path): path for path in files}
    return [found[real] for real in sorted(found)]


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _SKIPPED.intersection(path.relative_to(root).parts[:-1])
        and path.is_file()
        and path.stat().st_size
    ]
    if len(files) < 2:
        raise InputError(f"--data: no sources of the standard library under {root}; give --data")
    return files


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"--data: cannot read {path}: {error.strerror}") from None
    if not content:
        raise InputError(f"--data: {path} is empty")
    return content


def _map(path: Path) -> npt.NDArray[np.uint16]:
    try:
        size = path.stat().st_size
        if size and size % 2 == 0:
            return np.memmap(path, dtype="<u2", mode="r")
    except OSError as error:
        raise InputError(f"--data: cannot read {path}: {error.strerror}") from None
    raise InputError(
        f"--data: {path} is empty"
        if not size
        else f"--data: {path} has {size} bytes, not a whole number of uint16 tokens"
    )


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
    contents: dict[Path, bytes] = {}
    room = options.max_bytes
    for path in files:
        if room <= 0:
            origin += f" (the first {len(contents)} of {len(files)}, by --max-bytes)"
            break
        contents[path] = _read(path)
        room -= len(contents[path])
    # By content, so that a copy of a training file cannot be a validation file.
    hashes = {path: hashlib.sha256(content).digest() for path, content in contents.items()}
    if val_files:
        train, val = contents, {path: _read(path) for path in val_files}
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
    maps = {path: _map(path) for path in files}
    # Token files may be far larger than memory: the name and not the content is hashed.
    hashes = {path: hashlib.sha256(path.name.encode()).digest() for path in maps}
    if val_files:
        train, val = maps, {path: _map(path) for path in val_files}
        _refuse_shared(
            {path: os.path.realpath(path).encode() for path in train},
            {path: os.path.realpath(path).encode() for path in val},
        )
    else:
        train_files, val_files = _split(hashes, options.val_fraction)
        train = {path: maps[path] for path in train_files}
        val = {path: maps[path] for path in val_files}
    largest = {path: _largest(tokens) for path, tokens in (train | val).items()}
    vocab_size = options.vocab_size or max(largest.values()) + 1
    for path, token in largest.items():
        if token >= vocab_size:
            raise InputError(f"--vocab-size: {path} holds token {token}, not below {vocab_size}")

    def part(tokens: dict[Path, npt.NDArray[np.uint16]]) -> Part:
        return Part(tuple(tokens), tuple(tokens.values()))

    return _corpus(part(train), part(val), vocab_size, origin)


def _corpus(train: Part, val: Part, vocab_size: int, origin: str) -> Corpus:
    # Ends of the sources stand for the whole: a token file is not read through for this.
    digest = hashlib.sha256()
    for source in (*train.sources, b"", *val.sources):
        digest.update(len(source).to_bytes(8, "big"))
        digest.update(bytes(source[:_CHUNK]))
        digest.update(bytes(source[-_CHUNK:]))
    return Corpus(train, val, vocab_size, origin, digest.hexdigest())


def _largest(tokens: npt.NDArray[np.uint16]) -> int:
    return max(int(tokens[i : i + _CHUNK].max()) for i in range(0, len(tokens), _CHUNK))


def _refuse_shared(train: dict[Path, bytes], val: dict[Path, bytes]) -> None:
    of_train = {mark: path for path, mark in train.items()}
    for path, mark in val.items():
        if mark in of_train:
            raise InputError(f"--val-data: {path} is also training data ({of_train[mark]})")
