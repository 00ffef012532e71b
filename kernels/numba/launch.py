"""Run a CPU loop over many tensors on torch's number of threads."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32
from mcf.kernels.numba.build import LANES, build

# Elements per item: long enough to hide the loop's start, short enough to share among threads.
# Independent of the number of threads, so that the sums have the same bits for any number.
ITEM = 16384
# Below this many elements a second thread costs more than it saves.
SERIAL = 65536

_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_pool_lock = threading.Lock()


def _threads(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    with _pool_lock:
        if _pool is None or _pool_size < size:
            _pool = ThreadPoolExecutor(size, thread_name_prefix="mcf")
            _pool_size = size
        return _pool


def _forget_pool() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


# A forked child has the pool object but none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def run(
    spec: Elementwise, rows: Sequence[Sequence[torch.Tensor]], scalars: torch.Tensor
) -> torch.Tensor | None:
    """Apply a kernel to each row of tensors.

    Args:
        spec: the kernel.
        rows: per row one dense tensor for each field, all of one size and layout, on the CPU.
        scalars: float64, shape [len(rows), len(spec.scalars)]; rounded once to the registers.

    Returns:
        The sums, float64 of shape [len(rows), spec.sum_count], or None if the kernel has none.
    """
    kernel = build(spec)
    sizes = np.array([row[0].numel() for row in rows], dtype=np.int64)
    items_per_row = -(-sizes // ITEM)
    owner = np.repeat(np.arange(len(rows)), items_per_row)
    first = np.cumsum(items_per_row) - items_per_row
    start = (np.arange(len(owner)) - first[owner]) * ITEM
    lengths = np.minimum(sizes[owner] - start, ITEM)
    base = np.array([[t.data_ptr() for t in row] for row in rows], dtype=np.uint64)
    base = base.reshape(len(rows), len(spec.fields))
    widths = np.array([f.format.dtype.itemsize for f in spec.fields if f.format.dtype], np.uint64)
    addresses = base[owner] + start[:, None].astype(np.uint64) * widths
    kind = np.float32 if spec.register == FP32 else np.float64
    values = np.ascontiguousarray(scalars.numpy().astype(kind))
    sums = np.zeros((len(owner), spec.sum_count))

    def part(begin: int, end: int) -> None:
        lanes = np.empty(spec.sum_count * LANES, kind)
        kernel(addresses, lengths, owner, values, lanes.ctypes.data, sums, begin, end)

    count = torch.get_num_threads() if sizes.sum() > SERIAL else 1
    # Equal shares of elements, cut between items.
    done = np.cumsum(lengths)
    cuts = np.searchsorted(done, np.arange(1, count) * (done[-1] / count if len(done) else 0))
    edges = [0, *cuts.tolist(), len(owner)]
    others = [_threads(count).submit(part, a, b) for a, b in itertools.pairwise(edges[1:])]
    part(edges[0], edges[1])
    for other in others:
        other.result()
    if spec.sums is None:
        return None
    total = np.zeros((len(rows), spec.sum_count))
    np.add.at(total, owner, sums)
    return torch.from_numpy(total)
