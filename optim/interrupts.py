"""Signals that wait while a step writes: an interrupt finds all of it done, or nothing."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

# Those whose handlers raise, in Python itself (Ctrl-C) or by custom of training scripts.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2")
# Numbers, and functions of the interpreter's own: `signal` makes enumerations of both, at 30 us.
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Inside the `with` block signals that have a handler in Python wait; then they are handled.

    In the main thread, the only one that handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, Any]] = []

    def record(number: int, frame: Any) -> None:
        waiting.append((number, frame))

    before: dict[int, Any] = {s: h for s in _SIGNALS if callable(h := _signal.getsignal(s))}
    replaced: list[int] = []
    try:
        for number in before:
            replaced.append(number)
            _signal.signal(number, record)
        yield
    finally:
        _restore([(number, before[number]) for number in replaced])
        _handle([(before[number], number, frame) for number, frame in waiting])


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
