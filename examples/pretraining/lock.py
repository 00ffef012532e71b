"""One process at a time in a run's folder, by the operating system's lock on a file in it.

The lock dies with its process, however that ends. Who holds it stands in a second file, since a
locked file cannot be read on every system; that file is information and protects nothing.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path

import filelock

from pretraining import console, files
from pretraining.errors import RunError

LOCK, HOLDER = "lock", "holder.json"
# What systems answer where a file system has no locks: network and cluster file systems, mostly.
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})


class FolderLock:
    """The lock of one folder; `acquire` takes it or says who has it.

    Where the file system has no locks the run goes on and says so: on such a system nothing else
    can be had, and most people run one process of a name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = filelock.FileLock(folder / LOCK)

    def acquire(self) -> None:
        """Take the lock at once.

        Raises:
            RunError: where another process has it, or the file cannot be made.
        """
        try:
            # filelock warns where it has to make do with the existence of a file.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self._lock.acquire(timeout=0)
            if caught:
                self._warn("by its file's existence only")
        except filelock.Timeout:
            raise RunError(
                f"{self._folder} is in use by {self._holder()}; wait for it to end, or choose "
                "another --name"
            ) from None
        except (OSError, NotImplementedError) as error:
            number = getattr(error, "errno", errno.ENOSYS)
            if number not in _UNSUPPORTED:
                raise RunError(
                    f"cannot lock {self._folder}: {getattr(error, 'strerror', None) or error}"
                ) from None
            self._warn(f"not at all ({getattr(error, 'strerror', None) or error})")

    def sign(self) -> None:
        """Write down who holds the lock."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        files.write_atomically(self._folder / HOLDER, json.dumps(holder) + "\n")

    def release(self, *, signed: bool = True) -> None:
        """Give the lock back."""
        if signed:
            with suppress(OSError):
                os.unlink(self._folder / HOLDER)
        with suppress(OSError):
            self._lock.release()

    def _holder(self) -> str:
        try:
            found = json.loads(files.read_start(self._folder / HOLDER, 1 << 16))
            return f"process {found['pid']} on {found['host']} since {found['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def _warn(self, how: str) -> None:
        console.tell(
            f"note: this file system locks {self._folder} {how}: see to it that no second process "
            "runs under this --name, from another machine above all"
        )
