"""Finding and reading data files: regular files only, and no more of them than asked for."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretraining import files
from pretraining.errors import InputError

# Not part of the library's own text: installed packages, caches, and its test suite, which some
# distributions leave out.
_SKIPPED = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
)
# A pattern with ** follows links to folders, and two that lead back make 2^40 names of one file.
_MOST_NAMES = 1_000_000


def find(patterns: tuple[str, ...], option: str) -> list[Path]:
    """Return the files that match, each once, by whatever names it was found.

    Raises:
        InputError: where a pattern matches nothing, a folder only, or names without end.
    """
    found: dict[str, Path] = {}
    names = 0
    for pattern in patterns:
        matched = False
        for match in _matches(pattern):
            names += 1
            if names > _MOST_NAMES:
                raise InputError(
                    f"{option}: {pattern} matches more than {_MOST_NAMES:,} names; is there a "
                    "link to a folder above it?"
                )
            if not os.path.isdir(match):
                matched = True
                # Two names of one file would put it into both parts.
                found[os.path.realpath(match)] = Path(match)
        if not matched:
            if os.path.isdir(pattern):
                raise InputError(
                    f"{option}: {pattern} is a folder; name its files, such as {pattern}/**/*.txt"
                )
            raise InputError(f"{option}: no file matches {pattern}")
    return [found[real] for real in sorted(found)]


def _matches(pattern: str) -> Iterator[str]:
    if "\0" in pattern:
        return iter(())
    # A file whose own name holds [ or * is taken as it stands.
    return iter([pattern]) if os.path.lexists(pattern) else glob.iglob(pattern, recursive=True)


def standard_library() -> list[Path]:
    """Return the sources of Python's standard library, sorted."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _SKIPPED.intersection(path.relative_to(root).parts[:-1])
        and path.is_file()
        and path.stat().st_size
    ]
    if len(paths) < 2:
        raise InputError(f"--data: no sources of the standard library under {root}; give --data")
    return paths


def read(paths: list[Path], room: int, option: str) -> tuple[dict[Path, bytes], str]:
    """Return the contents of text files, `room` bytes in all, and what was left out, in words.

    Raises:
        InputError: where a file is missing, unreadable, empty or not a regular file.
    """
    contents: dict[Path, bytes] = {}
    for path in paths:
        if not room:
            return contents, f" (the first {len(contents)} of {len(paths)}, by --max-bytes)"
        # One byte more tells whether that is all.
        content = _read(path, room + 1, option)
        contents[path] = content[:room]
        if len(content) > room:
            what = "it is" if len(paths) == 1 else f"the first {len(contents)} of {len(paths)},"
            return contents, f" ({what} cut short by --max-bytes)"
        room -= len(content)
    return contents, ""


def _read(path: Path, most: int, option: str) -> bytes:
    try:
        content = files.read_start(path, most)
    except OSError as error:
        raise InputError(f"{option}: cannot read {path}: {files.reason(error)}") from None
    if not content:
        raise InputError(f"{option}: {path} is empty")
    return content


def memory_map(path: Path, option: str) -> npt.NDArray[np.uint16]:
    """Return the tokens of a `.bin` file, which are read when they are looked at.

    Raises:
        InputError: as `read`, and where it has an odd number of bytes.
    """
    try:
        with os.fdopen(files.open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size and size % 2 == 0:
                return np.memmap(file, dtype="<u2", mode="r")
    except OSError as error:
        raise InputError(f"{option}: cannot read {path}: {files.reason(error)}") from None
    if not size:
        raise InputError(f"{option}: {path} is empty")
    raise InputError(f"{option}: {path} has {size} bytes, not a whole number of uint16 tokens")
