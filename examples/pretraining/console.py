"""What a person sees. A closed pipe or a full disk behind stdout does not end a run.

Results go to stdout, all else to stderr. What is not printable in a message (file names hold what
they like) is escaped, so that a message is one line and no terminal obeys it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

_lost: list[str] = []


def printable(text: str) -> str:
    r"""Return `text` with newlines, control characters and lone surrogates as \n, \x1b, \udcff."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """Print to stdout; where that fails, once, note it for `lost`, and be silent from then on."""
    if _lost:
        return
    stream = sys.stdout
    try:
        if stream is None:
            raise OSError("stdout is closed")
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError) as error:
        _lost.append(getattr(error, "strerror", None) or str(error))
        # What the stream still holds would fail again when Python ends, with a code of its own.
        if stream is not None and stream is sys.__stdout__:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def lost() -> str | None:
    """Return why stdout failed since the last call, or None."""
    return _lost.pop() if _lost else None


def lacks_memory(error: Exception) -> str | None:
    """Return the words of an error that says that memory is lacking, None for any other.

    torch has a class of its own for GPUs only.
    """
    first = str(error).split("\n")[0]
    if isinstance(error, MemoryError) or "alloc" in first or "out of memory" in first:
        return f"not enough memory: {first}".rstrip(": ")
    return None


def lost_process(error: Exception) -> str | None:
    """Return the words of an error that says that another process of the run is gone."""
    first = str(error).split("\n")[0]
    names = {kind.__name__ for kind in type(error).__mro__}
    if "DistError" in names or "gloo" in first or "NCCL" in first or "Connection" in first:
        return f"another process of this run has ended or does not answer: {first}"
    return None


def tell(text: str) -> None:
    """Print one line to stderr, if anybody listens there."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


class Lenient:
    """A stream for progress bars: what cannot be written is dropped.

    A terminal that hangs up sends SIGHUP, and every write to it fails from then on; the run shall
    end with a checkpoint all the same.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        """Flush where that works."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
