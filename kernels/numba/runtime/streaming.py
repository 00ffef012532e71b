"""Large results: pages of 2 MiB, and stores past the cache; both affect speed, never bits.

glibc maps each block above 32 MiB from the system and unmaps it when it is freed. Every such result
is therefore new memory, mapped and cleared in pages of 4 KiB. Linux provides pages of 2 MiB on
request (madvise(2)). An addition of 5e6 pairs takes 4.2 times as long without them; delete this
when the allocator keeps such blocks or asks for large pages itself. For stores past the cache see
`mcf.kernels.numba.compile.rewrite`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from pathlib import Path

# Bytes of a cache line.
LINE = 64
# Upper limit of the last-level cache per processor that shares it. Machines have 1 to 16 MiB per
# thread. A virtual machine reports the size of the socket's cache, which it shares with others that
# it does not see: hundreds of MiB for two processors, of which it may keep a small part. Smaller
# sizes are not believed either: some virtual machines report no last level.
SHARE = 16 << 20
# Default where the size is unknown.
_USUAL = 32 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@functools.cache
def last_level() -> int:
    """Return the bytes of last-level cache that this machine's processors can expect to keep."""
    return capacity(_CACHES)


def capacity(folder: Path) -> int:
    """Return `last_level` for a sysfs folder of one processor's caches; 32 MiB if unreadable."""
    found = []
    for cache in folder.glob("index*"):
        try:
            size = _bytes((cache / "size").read_text())
            sharers = _count((cache / "shared_cpu_list").read_text())
        except (OSError, ValueError):
            continue
        found.append(min(size, SHARE * sharers))
    return max(SHARE, *found) if found else _USUAL


def _bytes(text: str) -> int:
    """Convert a size such as `491520K` to bytes."""
    number = text.strip()
    return int(number.removesuffix("K")) << 10 if number.endswith("K") else int(number)


def _count(text: str) -> int:
    """Return the number of processors in a list such as `0-3,8`; 1 for an empty list."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return max(1, sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges))


def worthwhile(moved: int) -> bool:
    """Return whether a loop that moves so many bytes leaves none of them in the cache for reuse."""
    return moved >= last_level()


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


def ask_pages(address: int, size: int) -> bool:
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
