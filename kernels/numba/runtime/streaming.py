"""Whether what a loop writes goes past the processor's cache: a matter of speed, never of bits."""

from __future__ import annotations

import functools
from pathlib import Path

# Bytes of a line of the cache.
LINE = 64
# The most of a last level that counts for each processor that shares it. Machines have 1 to 16 MiB
# for a thread. A virtual machine is told the size of the whole socket's, which it shares with
# others that it does not see: hundreds of MiB for two processors, of which it may keep a small
# part. Less than this is not believed: some are not told of their last level.
SHARE = 16 << 20
# Where nothing is known.
_USUAL = 32 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@functools.cache
def last_level() -> int:
    """Bytes of the last level of cache that this machine's processors can expect to keep."""
    return capacity(_CACHES)


def capacity(folder: Path) -> int:
    """The same of a folder of Linux that describes a processor's caches; 32 MiB of any other."""
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
    """`491520K` in bytes."""
    number = text.strip()
    return int(number.removesuffix("K")) << 10 if number.endswith("K") else int(number)


def _count(text: str) -> int:
    """How many processors a list like `0-3,8` names; an empty one names this one."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return max(1, sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges))


def worthwhile(moved: int) -> bool:
    """Whether a loop that reads and writes so many bytes finds none of them in the cache again."""
    return moved >= last_level()
