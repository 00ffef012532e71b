"""Files of a run: written whole or not at all; read only where they are regular files."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pretraining.errors import RunError

# Where a system has no such flag, it has no such danger or no such distinction.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE = os.O_WRONLY | getattr(os, "O_BINARY", 0)
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
}  # fmt: skip
# Linux writes at most 2 GiB at once.
_MOST = 1 << 30
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


def reason(error: OSError) -> str:
    """Return the system's words for an error."""
    return error.strerror or str(error)


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a RunError that says what could not be done to which file."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot {action} {path}: {reason(error)}") from None


def open_regular(path: Path) -> int:
    """Return a descriptor to read a regular file with; never wait for a pipe's other end.

    Raises:
        OSError: where it cannot be opened or is something else, such as a pipe or a device.
    """
    # Looked at first, since to open a device may already do something to it.
    _refuse_irregular(os.stat(path))
    descriptor = os.open(path, _READ)
    try:
        _refuse_irregular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_irregular(found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'special')}, not a regular file")


def read_start(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file, or all where there are fewer.

    Raises:
        OSError: see `open_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)


def write_atomically(
    path: Path, content: bytes | memoryview | str, keep: Path | None = None
) -> None:
    """Write a file so that at every moment its name holds either the old or the new content.

    The temporary file has a name of its own, stands beside it (a rename is atomic only within one
    file system), reaches the disk before it takes the name, and is removed after a failure; the
    folder reaches the disk after the rename.

    Args:
        path: the file.
        content: all of it.
        keep: the name that the old content is to have from now on; between the two renames `path`
            is missing.

    Raises:
        RunError: where something fails.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with explained("write", path):
        try:
            descriptor = os.open(temporary, _WRITE | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if keep is not None:
                with suppress(FileNotFoundError):
                    os.replace(path, keep)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(path.parent)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest[:_MOST]) :]


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk, where the system can do that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no such call for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether `write_atomically` makes such names."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process left; for folders that are locked and known to be a run's."""
    with explained("clean", folder):
        for name in os.listdir(folder):
            if not is_temporary(name):
                continue
            if os.path.isdir(folder / name) and not os.path.islink(folder / name):
                shutil.rmtree(folder / name)
            else:
                os.unlink(folder / name)


class Log:
    """A text file that begins with `text`, and grows by whole lines."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        write_atomically(path, text)
        with explained("write", path):
            self._descriptor = os.open(path, _WRITE | os.O_APPEND)

    def append(self, line: str) -> None:
        """Write one line at once.

        Raises:
            RunError: where it cannot be written.
        """
        with explained("write", self._path):
            _write_all(self._descriptor, line.encode())

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.close(self._descriptor)
