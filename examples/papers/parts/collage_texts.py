"""Two real texts that every Python brings along, and labels of their parts.

- "code": sources of the standard library, 4 MB of them, without the text below.
- "reference": the English reference of the language, as `help()` shows it (`pydoc_data.topics`).

A token is a byte; those above 126, few in both, are one token. A document (a file, a topic) is in
the training part or in what is held out, by its hash. The labels are for fine-tuning:

- "package": which of eight packages of the standard library a snippet is from;
- "words": whether the byte in the middle of a snippet stands in a comment or string, or in code,
  as Python's tokenizer says. Half of the snippets are of each kind.

The last fifth of each file is held out of both.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import tokenize
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pretraining import sources
from pretraining.data import Corpus, Part

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

BYTES = 128
# Of encoders alone.
CLS, SEP, MASK = 128, 129, 130
TOKENS = 131
MOST = 4_000_000
PACKAGES = (
    "asyncio", "ctypes", "email", "http", "importlib", "multiprocessing", "unittest", "xml",
)  # fmt: skip
HELD_OUT = 5
WORDS = frozenset(
    getattr(tokenize, name)
    for name in ("COMMENT", "STRING", "FSTRING_MIDDLE", "TSTRING_MIDDLE")
    if hasattr(tokenize, name)
)


def tokens(text: bytes) -> Bytes:
    """Bytes, those above 126 made one."""
    return np.minimum(np.frombuffer(text, np.uint8), BYTES - 1)


def corpus(name: str, most: int = MOST) -> Corpus:
    """One of the texts, at most that many bytes of it."""
    documents = _code(most) if name == "code" else _reference(most)
    scores = {key: hashlib.sha256(text).digest() for key, text in documents.items()}
    # A tenth, but not less than the document that comes first.
    limit = max(bytes([26]), min(scores.values()) + b"\0")
    parts = {True: [], False: []}  # type: dict[bool, list[bytes]]
    for key, text in documents.items():
        parts[scores[key] < limit].append(text)
    val, train = (
        Part((), (tokens(b"\0".join(parts[held_out])),)) for held_out in (True, False)
    )  # fmt: skip
    digest = hashlib.sha256(b"".join(p.sources[0].tobytes() for p in (train, val))).hexdigest()
    return Corpus(train, val, BYTES, name, digest)


def _code(most: int) -> dict[str, bytes]:
    paths = [p for p in sources.standard_library() if "pydoc_data" not in p.parts]
    found, _ = sources.read(paths, most, "--texts")
    return {str(path): text for path, text in found.items()}


def _reference(most: int) -> dict[str, bytes]:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    found = {}
    for name, text in sorted(topics.items()):
        if most <= 0:
            break
        found[name] = text.encode()[:most]
        most -= len(text)
    return found


@dataclass(frozen=True)
class Labelled:
    """A task of fine-tuning.

    Attributes:
        name: "package" or "words".
        classes: how many labels there are.
        train, val: text and the label of each byte in it; -1 where a byte has none.
    """

    name: str
    classes: int
    train: tuple[Bytes, Labels]
    val: tuple[Bytes, Labels]

    def batch(
        self, key: list[int], size: int, length: int, held_out: bool = False
    ) -> tuple[Labels, Labels]:
        """Snippets [size, length] and their labels [size], as many of each label; drawn by key."""
        text, labels = self.val if held_out else self.train
        draw = np.random.default_rng(key)
        middle = length // 2
        inner = labels[middle : len(labels) - length + middle]
        starts = []
        for label, count in enumerate(np.bincount(np.arange(size) % self.classes)):
            starts.append(draw.choice(np.flatnonzero(inner == label), count))
        found = np.concatenate(starts)
        return (
            text[found[:, None] + np.arange(length)].astype(np.int64),
            inner[found].astype(np.int64),
        )


@functools.lru_cache(4)
def labelled(name: str, files: int = 99) -> Labelled:
    """A task, made of the first files of each package."""
    made = _by_package if name == "package" else _by_kind
    parts: dict[bool, list[tuple[Bytes, Labels]]] = {True: [], False: []}
    paths = sources.standard_library()
    for number, package in enumerate(PACKAGES):
        own = [p for p in paths if package in p.parts[-3:-1]][:files]
        for path in own:
            text = path.read_bytes()
            labels = made(text, number)
            cut = len(text) - len(text) // HELD_OUT
            for held_out, part in ((False, slice(cut)), (True, slice(cut, None))):
                # No snippet's middle byte stands where two files meet.
                parts[held_out].append((tokens(text[part]), labels[part]))
    train, val = (
        tuple(np.concatenate(x) for x in zip(*parts[k], strict=True)) for k in (False, True)
    )
    return Labelled(name, len(PACKAGES) if name == "package" else 2, train, val)  # type: ignore[arg-type]


def _by_package(text: bytes, number: int) -> Labels:
    return np.full(len(text), number)


def _by_kind(text: bytes, number: int) -> Labels:
    """1 in comments and strings, 0 elsewhere, -1 for white space and where lines are not ASCII."""
    labels = np.zeros(len(text), np.int64)
    lines = text.splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)])
    for token in tokenize.tokenize(io.BytesIO(text).readline):
        if token.type in WORDS:
            (row, column), (last, end) = token.start, token.end
            labels[starts[row - 1] + column : starts[last - 1] + end] = 1
    for start, line in zip(starts, lines, strict=False):
        if not line.isascii():
            labels[start : start + len(line)] = -1
    raw = np.frombuffer(text, np.uint8)
    labels[np.isin(raw, np.frombuffer(b" \t\r\n", np.uint8))] = -1
    return labels
