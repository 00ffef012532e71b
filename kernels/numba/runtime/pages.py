"""Request 2 MiB pages for large memory that a loop writes first; affects speed, never bits.

glibc maps each block above 32 MiB from the system and unmaps it when it is freed. Every such result
is therefore new memory, mapped and cleared in pages of 4 KiB: three quarters of the time of an
addition. Linux provides pages of 2 MiB on request (madvise(2)).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from pathlib import Path

# Size in bytes above which glibc maps blocks (M_MMAP_THRESHOLD, mallopt(3)).
LARGE = 32 << 20
_CHOICE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@functools.cache
def _advised() -> Callable[[int, int, int], int] | None:
    """Return madvise of this process; None if it is missing or large pages need no request."""
    try:
        if "[madvise]" not in _CHOICE.read_text():
            return None
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function  # type: ignore[no-any-return]


def ask(address: int, size: int) -> bool:
    """Request large pages for a number of bytes at an address, before they are written.

    Returns:
        Whether the system accepted the request; it need not provide large pages.
    """
    function = _advised() if size >= LARGE else None
    if function is None:
        return False
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (address + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    return function(first, whole, mmap.MADV_HUGEPAGE) == 0
