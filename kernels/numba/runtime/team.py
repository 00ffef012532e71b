"""Threads for CPU loops: PyTorch's OpenMP team if there is one, else a pool of Python threads.

OpenMP workers spin for a while after PyTorch's last parallel operation. A separate thread would
have to share a core with one of them.

A callback is native code, `void(uint64 data)`, that any number of threads call concurrently. It
takes its items from counters with `memory.claim` until none is left, so that results must not
depend on which thread computes an item.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from mcf.kernels.forks import forked
from mcf.kernels.numba.runtime import streaming

# Below this number of elements a second thread costs more than it saves. Arithmetic and sums of
# pairs take 0.5 to 1 ns per element in cache, so the threshold is 30 to 70 microseconds. Waking one
# thread takes some 30, and with many processors the last one arrives later. On an oversubscribed
# machine a team waits until each thread was scheduled, which takes milliseconds.
SERIAL = 65536

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_uint64)

_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_pool_lock = threading.Lock()


@functools.cache
def _openmp() -> Any:
    """Return GOMP_parallel of the library that PyTorch itself runs on, or None."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # Symbols are also looked up in the dependencies of this library.
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
        threads: maximum number of threads that call it, including the caller's.
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


# Read by native code that calls the team itself (`shared`): the address of GOMP_parallel and the
# number of threads that it may use.
words = array("Q", [0, 1])


def is_native() -> bool:
    """Return whether native code can call the team."""
    return _openmp() is not None


def announce() -> None:
    """Store the number of threads that the next native call may use.

    Another thread may overwrite it before the call; the number changes no bit.
    """
    entry = None if forked() else _openmp()
    threads = 1 if entry is None else torch.get_num_threads()
    if threads != words[1]:
        if entry is not None:
            words[0] = ctypes.cast(entry, ctypes.c_void_p).value or 0
        words[1] = threads


@functools.cache
def native(address: int) -> Callable[[int], None]:
    """Return the function at an address, called without the GIL."""
    return _Callback(address)


# Fields of one share: next item, end, first item, and padding to a cache line, so that threads do
# not disturb each other. A thread first takes the share of its arrival index, whose items are
# contiguous in memory, then items left in other shares.
SHARE = 8


def call(
    address: int,
    items: int,
    size: int,
    fields: Iterable[int],
    entries: int = 0,
    works: int | None = None,
) -> None:
    """Run a loop over items, on several threads if it is large.

    Args:
        address: of the loop.
        items: the number of items.
        size: the number of elements, see SERIAL.
        fields: the fields of the argument struct after its head.
        entries: the 64-bit entries of workspace per thread.
        works: the address of existing workspaces.
    """
    parts = max(1, min(torch.get_num_threads() if size > SERIAL else 1, items))
    own = shares(items, parts)
    workspace = torch.empty(0 if works else parts * entries, dtype=torch.int64, device="cpu")
    streaming.ask_pages(workspace.data_ptr(), 8 * workspace.numel())
    head = own.buffer_info()[0], parts, works or workspace.data_ptr(), entries
    table = array("Q", [*head, *fields])
    run(address, table.buffer_info()[0], parts)


def shares(items: int, parts: int) -> array[int]:
    """Cut items 0, 1, ... into parts: next, end, first, padding."""
    words = array("q", bytes(8 * SHARE * (parts + 1)))
    for part in range(parts):
        words[SHARE * (part + 1)] = items * part // parts
        words[SHARE * (part + 1) + 1] = items * (part + 1) // parts
        words[SHARE * (part + 1) + 2] = words[SHARE * (part + 1)]
    return words
