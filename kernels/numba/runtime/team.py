"""Threads for CPU loops: torch's own OpenMP team where there is one, else a pool of Python threads.

OpenMP workers spin for a while after torch's last parallel operation. A thread of our own would
have to share a core with one of them.

A callback is native code, `void(uint64 data)`, that any number of threads call at once. It takes
its items from counters with `memory.claim` until none is left, so that results must not depend on
which thread computes an item.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from mcf.kernels.forks import forked

# Below this many elements a second thread costs more than it saves. Arithmetic and sums of pairs
# take half a nanosecond to one an element in the caches, so that this is 30 to 70 microseconds. To
# wake one thread takes some 30, and of many processors the last comes later. Where others have the
# processors, a team waits until each of its threads had its turn, which takes milliseconds.
SERIAL = 65536

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_uint64)

_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_pool_lock = threading.Lock()


@functools.cache
def _openmp() -> Any:
    """GOMP_parallel of the library that torch itself runs on, or None."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # A symbol is looked for in the libraries that this one depends on, too.
        entry = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    entry.restype = None
    return entry


def _threads(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    with _pool_lock:
        if _pool is None or _pool_size < size:
            _pool = ThreadPoolExecutor(size, thread_name_prefix="mcf")
            _pool_size = size
        return _pool


def _after_fork() -> None:
    # The child has the pool object but none of its threads.
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def run(address: int, data: int, threads: int) -> None:
    """Call native code on several threads and wait for all.

    Args:
        address: a function `void(uint64)` that does not need the GIL.
        data: its argument.
        threads: how many threads call it; there may come fewer, and one is the caller's.
    """
    call = native(address)
    if threads <= 1:
        call(data)
        return
    # GNU OpenMP waits forever in a forked child for the threads that its parent had.
    entry = None if forked() else _openmp()
    if entry is not None:
        entry(address, data, threads, 0)
        return
    others = [_threads(threads).submit(call, data) for _ in range(threads - 1)]
    call(data)
    for other in others:
        other.result()


# What native code reads that calls the team itself (`shared`): where GOMP_parallel is and how many
# threads it may call.
words = array("Q", [0, 1])


def is_native() -> bool:
    """Whether native code can call the team."""
    return _openmp() is not None


def announce() -> None:
    """Write down how many threads native code that is called next may use.

    Another thread's number may come between: then it is that number, which changes no bit.
    """
    entry = None if forked() else _openmp()
    threads = 1 if entry is None else torch.get_num_threads()
    if threads != words[1]:
        if entry is not None:
            words[0] = ctypes.cast(entry, ctypes.c_void_p).value or 0
        words[1] = threads


@functools.cache
def native(address: int) -> Callable[[int], None]:
    """The function at an address, called without the GIL."""
    return _Callback(address)


# The words of one share: the next item, the end, the first item, and what fills a line of the
# cache, so that threads do not disturb each other.
SHARE = 8

# The loops over a table's items in generated code, where `shares` is their address and `parts`
# their number. A thread takes the share of its arrival first, whose items lie side by side in
# memory, and then what others have left over.
ITEMS = (
    "arrival = claim(shares, 0)",
    "for turn in range(parts):",
    f"    share = {SHARE} * ((arrival + turn) % parts + 1)",
    "    end = number(shares, share + 1)",
    "    while True:",
    "        item = claim(shares, share)",
    "        if item >= end:",
    "            break",
)
ITEMS_DEPTH = 2
# The variables of these lines: a word of a table that has such a name would be overwritten.
ITEMS_NAMES = frozenset({"arrival", "turn", "share", "end", "item"})


def shares(items: int, parts: int) -> array[int]:
    """Items 0, 1, ... cut into parts as ITEMS takes them: the number of threads that came first."""
    words = array("q", bytes(8 * SHARE * (parts + 1)))
    for part in range(parts):
        words[SHARE * (part + 1)] = items * part // parts
        words[SHARE * (part + 1) + 1] = items * (part + 1) // parts
        words[SHARE * (part + 1) + 2] = words[SHARE * (part + 1)]
    return words
