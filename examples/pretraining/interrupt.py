"""SIGINT, SIGTERM and SIGHUP: between two steps of a training, at once everywhere else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pretraining.errors import Stopped

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupt:
    """While entered, the first signal raises `Stopped`, or only sets `asked` inside `patience()`.

    The second signal of a kind acts as it always did. Signals that the process was told to ignore
    (nohup, a shell's background job) stay ignored; threads other than the main one cannot set
    handlers, and set none.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._patient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
                before = signal.getsignal(number)
                # None: a handler that was not set from Python, and could not be put back.
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Let the body look at `asked` itself."""
        self.check()
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def check(self) -> None:
        """Raise `Stopped` where a signal has come."""
        if self.asked is not None:
            raise Stopped(self.asked)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        signal.signal(number, self._before[number])
        if not self._patient:
            raise Stopped(number)
