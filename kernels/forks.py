"""Tell forked children, which have none of their parent's threads."""

from __future__ import annotations

import os

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


def forked() -> bool:
    """Return whether this process is a forked child."""
    return _forked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
