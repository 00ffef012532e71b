"""Deferred signals: an interrupt finds a step either done or not begun."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from typing import Any

# Signals whose handlers raise, in Python itself (Ctrl-C) or by convention in training scripts.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2")
# Numbers, and the interpreter's own functions: the module `signal` converts to enums, in 30 us.
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]


class Deferred:
    """A context in which signals with handlers in Python wait until its end.

    It acts in the main thread, the only one that handles signals.
    """

    def __enter__(self) -> None:
        """Defer signals."""
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
        """Restore the handlers and call them for the deferred signals."""
        _restore([(number, self._before[number]) for number in self._replaced])
        _handle([(self._before[number], number, frame) for number, frame in self._waiting])


def _handle(calls: list[tuple[Any, int, Any]]) -> None:
    """Call all handlers in order, even if an earlier one raises."""
    if calls:
        handler, number, frame = calls[0]
        try:
            handler(number, frame)
        finally:
            _handle(calls[1:])


def _restore(handlers: list[tuple[int, Any]]) -> None:
    """Restore all handlers, even if an earlier one raises at once."""
    if handlers:
        try:
            _signal.signal(*handlers[-1])
        finally:
            _restore(handlers[:-1])
