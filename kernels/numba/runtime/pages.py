"""Large pages for large memory that a loop is the first to write: a matter of speed, never of bits.

glibc takes each block beyond 32 MiB from the system and gives it back as soon as it is freed, so
that every such result is new memory, handed out and cleared a page of 4 KiB at a time: three
quarters of the time of an addition. Linux has pages of 2 MiB for who asks (madvise(2)).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from pathlib import Path

# Bytes beyond which glibc's blocks are the system's (M_MMAP_THRESHOLD, mallopt(3)).
LARGE = 32 << 20
_CHOICE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@functools.cache
def _advised() -> Callable[[int, int, int], int] | None:
    """madvise of this process; None where it has none, or where pages are none of its business."""
    try:
        if "[madvise]" not in _CHOICE.read_text():
            return None
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function  # type: ignore[no-any-return]


def ask(address: int, size: int) -> bool:
    """Ask for large pages for so many bytes at an address that are going to be written.

    Returns:
        Whether the system took notice; what it makes of it is its own affair.
    """
    function = _advised() if size >= LARGE else None
    if function is None:
        return False
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (address + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    return function(first, whole, mmap.MADV_HUGEPAGE) == 0
