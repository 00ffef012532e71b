"""Signals that wait while a step writes: an interrupt finds all of it done, or nothing."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from typing import Any

# Those whose handlers raise, in Python itself (Ctrl-C) or by custom of training scripts.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2")
# Numbers, and functions of the interpreter's own: `signal` makes enumerations of both, at 30 us.
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]


class Deferred:
    """Inside the `with` block signals that have a handler in Python wait; then they are handled.

    In the main thread, the only one that handles signals.
    """

    def __enter__(self) -> None:
        """Let signals wait."""
        self._waiting: list[tuple[int, Any]] = []
        self._before: dict[int, Any] = {}
        self._replaced: list[int] = []
        if threading.current_thread() is not threading.main_thread():
            return
        self._before = {s: h for s in _SIGNALS if callable(h := _signal.getsignal(s))}
        try:
            for number in self._before:
                self._replaced.append(number)
                _signal.signal(number, self._record)
        except BaseException:
            self.__exit__()
            raise

    def _record(self, number: int, frame: Any) -> None:
        self._waiting.append((number, frame))

    def __exit__(self, *error: object) -> None:
        """Handle them."""
        _restore([(number, self._before[number]) for number in self._replaced])
        _handle([(self._before[number], number, frame) for number, frame in self._waiting])


def _handle(calls: list[tuple[Any, int, Any]]) -> None:
    """Call handlers in their order, all of them also where the first of them raises."""
    if calls:
        handler, number, frame = calls[0]
        try:
            handler(number, frame)
        finally:
            _handle(calls[1:])


def _restore(handlers: list[tuple[int, Any]]) -> None:
    """Put handlers back, all of them also where the first of them raises at once."""
    if handlers:
        try:
            _signal.signal(*handlers[-1])
        finally:
            _restore(handlers[:-1])
