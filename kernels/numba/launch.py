"""Run a CPU loop over many tensors on torch's number of threads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32
from mcf.kernels.numba import streaming, team
from mcf.kernels.numba.build import Table, build

# Whether Numba can be had shows here, where the registry can still choose another executor.
if find_spec("numba") is None:
    raise ImportError("No module named 'numba'", name="numba")

# Elements per item: long enough to hide the loop's start, short enough to share among threads.
# Independent of the number of threads, so that the sums have the same bits for any number.
ITEM = 16384
# Below this many elements a second thread costs more than it saves.
SERIAL = 65536


class Prepared:
    """A kernel and the sizes of its rows of tensors: all that stays the same from step to step."""

    def __init__(
        self, spec: Elementwise, sizes: Sequence[int], device: torch.device | None = None
    ) -> None:
        """See `run`; `sizes` are the numbers of elements of the rows, which are on the CPU."""
        self._loop = build(spec)
        self._spec = spec
        self._kind = np.float32 if spec.register == FP32 else np.float64
        self._total = sum(sizes)
        self._length = len(sizes)
        per_row = np.array([-(-n // ITEM) for n in sizes], dtype=np.int64)
        self._owner = np.repeat(np.arange(len(sizes)), per_row)
        first = np.cumsum(per_row) - per_row
        self._starts = (np.arange(len(self._owner)) - first[self._owner]) * ITEM
        ends = np.array(sizes, dtype=np.int64)
        self._stops = np.minimum(ends[self._owner], self._starts + ITEM)
        self._fixed = [x.ctypes.data for x in (self._owner, self._starts, self._stops)]
        fields = spec.fields
        moved = sum(f.format.itemsize * (f.read + f.written) for f in fields if not f.uniform)
        # Lines that a loop also reads are in the cache already.
        only_written = spec.sums is None and not any(f.read and f.written for f in fields)
        self._large = only_written and streaming.worthwhile(moved * self._total)
        self._written = [k for k, f in enumerate(fields) if f.written]

    def run(self, addresses: Sequence[Sequence[int]], scalars: Any) -> Any:
        """Apply the kernel.

        Args:
            addresses: of the tensors, a list for each field with those of all rows.
            scalars: a NumPy array [rows, scalars].

        Returns:
            The sums as a float64 NumPy array, or None.
        """
        items, terms = len(self._owner), self._spec.sum_count
        pointers = array("Q", bytes(8 * len(addresses) * self._length))
        for k, column in enumerate(addresses):
            pointers[k :: len(addresses)] = array("Q", column)
        values = np.ascontiguousarray(scalars, dtype=self._kind) if self._spec.scalars else None
        sums = np.empty((items, terms)) if terms else None
        threads = torch.get_num_threads() if self._total > SERIAL else 1
        parts = max(1, min(threads, items))
        shares = team.shares(items, parts)
        table = Table(
            pointers.buffer_info()[0],
            *self._fixed,
            values.ctypes.data if values is not None else 0,
            sums.ctypes.data if sums is not None else 0,
            parts,
            shares.buffer_info()[0],
        )
        data = array("Q", table)
        streamed = self._large and self._on_lines(addresses)
        loop = self._loop.streamed if streamed else self._loop.address
        team.run(loop, data.buffer_info()[0], parts)
        if sums is None:
            return None
        total = np.zeros((self._length, terms))
        np.add.at(total, self._owner, sums)
        return total

    def _on_lines(self, addresses: Sequence[Sequence[int]]) -> bool:
        """Whether all that is written begins where a line of the cache does."""
        return all(a % streaming.LINE == 0 for k in self._written for a in addresses[k])


# A loop over small tensors meets few sizes, and to prepare costs as much as such a call.
@lru_cache(maxsize=256)
def _prepared(spec: Elementwise, sizes: tuple[int, ...]) -> Prepared:
    return Prepared(spec, sizes)


def run(
    spec: Elementwise,
    rows: Sequence[Sequence[torch.Tensor]],
    scalars: torch.Tensor,
    live: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Apply a kernel to each row of tensors.

    Args:
        spec: the kernel.
        rows: per row one dense tensor for each field, all of one size and layout, on the CPU.
        scalars: float64, shape [len(rows), len(spec.scalars)]; rounded once to the registers.
        live: one number on the device of the rows; where it is 0 nothing is written, and the sums
            are 0. None for 1.

    Returns:
        The sums, float64 of shape [len(rows), spec.sum_count], or None if the kernel has none.
    """
    if live is not None and not live.item():
        if spec.sums is None:
            return None
        return torch.zeros(len(rows), spec.sum_count, dtype=torch.float64, device="cpu")
    prepared = _prepared(spec, tuple(row[0].numel() for row in rows))
    values = scalars.numpy() if spec.scalars else None
    columns = zip(*rows, strict=True)
    sums = prepared.run([[t.data_ptr() for t in column] for column in columns], values)
    return None if sums is None else torch.from_numpy(sums)


def in_parallel(part: Callable[[int, int], None], work: Any) -> None:
    """Call part(begin, end) over all items, shared among torch's number of threads.

    Args:
        part: computes items begin to end - 1; releases the GIL.
        work: how many elements each item has; one thread takes them all if there are few.
    """
    done = np.cumsum(work)
    total = int(done[-1]) if len(done) else 0
    count = torch.get_num_threads() if total > SERIAL else 1
    # Equal shares of elements, cut between items.
    cuts = np.searchsorted(done, np.arange(1, count) * (total / count))
    edges = [0, *cuts.tolist(), len(work)]
    team.parallel([partial(part, a, b) for a, b in pairwise(edges)], count)
