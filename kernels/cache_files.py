"""Cache files shared by the processes of one user, in a folder that nobody else can write.

Their content is executed, so nothing is read from a path that another user can write. The cache
folder, its subfolder and the file are opened one relative to the other without following links.
Each has to belong to this user and to be writable by no other. Parent folders may be links and may
belong to others: a folder that passes is this user's own, with this user's content, wherever it has
been moved.

A file appears complete, by a rename; if several processes write one file, any may win. After any
error the file counts as missing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Bytes and number of files above which the least recently used files are removed.
LIMIT, FILES = 1 << 30, 50_000
# A process checks these limits once per so many files that it writes.
_OFTEN = 64
# Seconds: access times have a resolution of one day; a temporary file this old is an orphan.
_DAY, _ORPHAN = 86400, 3600
# A larger file was not written by this module.
_LARGEST = 1 << 26
_FOLDER = "loops"

_log = logging.getLogger(__name__)
_said: set[str] = set()
_written = itertools.count()


class _Refused(OSError):
    """Raised for a path that another user can write."""


def available() -> bool:
    """Return whether this system reports file permissions and opens files relative to a folder."""
    return hasattr(os, "geteuid") and os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


def root() -> Path | None:
    """Return the cache folder, which need not exist; None if caching is disabled.

    The folder is `MCF_CACHE_DIR` (empty or 0 disables it), else `mcf` in `XDG_CACHE_HOME` or
    `~/.cache`.
    """
    chosen = os.environ.get("MCF_CACHE_DIR")
    if not available() or chosen in ("", "0"):
        return None
    if chosen is not None:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):
        return Path(shared, "mcf")
    home = os.path.expanduser("~")
    # A process that runs for another user (sudo) would leave files there that the user does not
    # own.
    with suppress(OSError):
        if os.path.isabs(home) and os.stat(home).st_uid == os.geteuid():
            return Path(home, ".cache", "mcf")
    return None


def read(name: str) -> bytes | None:
    """Return the content of a cache file, or None."""
    with suppress(OSError), _opened(create=False) as folder:
        # Do not block on a named pipe.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            # Check the type first: a folder can be opened as well.
            status = os.fstat(file)
            _check(status, stat.S_ISREG, f"{root()}/{_FOLDER}/{name}")
            if status.st_size > _LARGEST:
                return None
            if status.st_mtime < time.time() - _DAY:
                with suppress(OSError):
                    os.utime(file)
            with open(file, "rb", closefd=False) as stream:
                return stream.read()
        finally:
            os.close(file)
    return None


def write(name: str, data: bytes) -> None:
    """Write a cache file atomically; leave nothing behind on failure."""
    with suppress(OSError), _opened(create=True) as folder:
        temporary = f".{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            # Not flushed to disk: a file truncated by a crash fails its checksum.
            with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as stream:
                stream.write(data)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        if next(_written) % _OFTEN == 0:
            _prune(folder)


@contextmanager
def _opened(create: bool) -> Iterator[int]:
    """Open the folder of the files as a descriptor, after checking it."""
    place = root()
    if place is None:
        raise FileNotFoundError
    if create:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    above = _folder(str(place), str(place), None, create)
    try:
        inner = _folder(_FOLDER, f"{place}/{_FOLDER}", above, create)
        try:
            yield inner
        finally:
            os.close(inner)
    finally:
        os.close(above)


def _folder(path: str, name: str, above: int | None, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=above)
    if stat.S_ISLNK(os.stat(path, dir_fd=above, follow_symlinks=False).st_mode):
        _refuse(name, "is a link")
    found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        _check(os.fstat(found), stat.S_ISDIR, name)
    except BaseException:
        os.close(found)
        raise
    return found


def _check(status: os.stat_result, kind: object, name: str) -> None:
    assert callable(kind)
    if not kind(status.st_mode):
        raise FileNotFoundError
    if status.st_uid != os.geteuid():
        _refuse(name, f"belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _refuse(name, f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})")


def _refuse(name: str, reason: str) -> None:
    """Warn once why compiled loops are not read from a path."""
    if name not in _said:
        _said.add(name)
        _log.warning(
            "mcf: compiled loops are not kept in %s: it %s. Remove it, or name a folder of yours "
            "by MCF_CACHE_DIR (MCF_CACHE_DIR=0 for none).",
            name,
            reason,
        )
    raise _Refused


def _prune(folder: int) -> None:
    """Remove the least recently used files, down to three quarters of the limits."""
    now, found = time.time(), []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if not entry.name.startswith("."):
                    found.append((status.st_mtime, status.st_size, entry.name))
                elif status.st_mtime < now - _ORPHAN:
                    os.unlink(entry.name, dir_fd=folder)
    size, count = sum(each for _, each, _ in found), len(found)
    if size <= LIMIT and count <= FILES:
        return
    for _, each, name in sorted(found):
        if size <= LIMIT * 3 // 4 and count <= FILES * 3 // 4:
            return
        # Another process may have removed it first.
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        size, count = size - each, count - 1


def packed(magic: bytes, key: str, header: dict[str, Any], data: bytes) -> bytes:
    """Pack a file: a magic line, a checksum of all that follows, a line of JSON, the data."""
    rest = json.dumps({"key": key, **header}).encode() + b"\n" + data
    return magic + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def unpacked(magic: bytes, key: str, content: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return the header and data of a file; None if it is invalid or has another key."""
    start = len(magic) + 65
    rest = content[start:]
    if content[:start] != magic + hashlib.sha256(rest).hexdigest().encode() + b"\n":
        return None
    line, _, data = rest.partition(b"\n")
    header = json.loads(line)
    return (header, data) if header["key"] == key else None
