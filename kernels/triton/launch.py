"""Launch Triton kernels: one for all rows of tensors."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.tables import as_tensor, capturing, to_device
from mcf.kernels.triton.build import block, build, options
from mcf.kernels.triton.primitives import Dialect

# The interpreter replaces parts of `triton.language` while it runs: one thread at a time.
_interpreter = threading.Lock()


# Triton's widest access, in bytes.
_WIDEST = 16


class Prepared:
    """A kernel and the sizes of its rows of tensors: all that stays the same from step to step."""

    def __init__(self, spec: Elementwise, sizes: Sequence[int], device: torch.device) -> None:
        """See `run`; `sizes` are the numbers of elements of the rows, which are on `device`."""
        self._spec = spec
        self._device = device
        self._block = block(spec)
        counts = np.array([-(-n // self._block) for n in sizes], dtype=np.int64)
        self._grid = int(counts.sum())
        self._counts = self._table(counts)
        self._sizes = self._table(np.array(sizes, dtype=np.int64))
        if capturing(device):
            # Too many for the arguments of kernels, and the device can count too.
            self._owners, self._blocks = work_list(self._counts, self._grid)
        else:
            owners, blocks = work_list(torch.from_numpy(counts), self._grid)
            self._owners, self._blocks = to_device(owners, device), to_device(blocks, device)

    def _table(self, values: Any) -> Tensor:
        return to_device(torch.from_numpy(values), self._device)

    def run(
        self, addresses: Sequence[Sequence[int]], scalars: Any, live: Tensor | None = None
    ) -> Tensor | None:
        """Apply the kernel in one launch, without waiting for the device.

        Args:
            addresses: of the tensors, a list for each field with those of all rows.
            scalars: a NumPy array [rows, scalars], or a float64 tensor.
            live: one number on the device; where it is 0 nothing is read or written. None for 1.

        Returns:
            The sums, float64 [rows, terms] on the device, or None.
        """
        spec = self._spec
        # Beyond 2**63 are no addresses in use.
        table = np.array(addresses, dtype=np.int64).T
        pointers = self._table(np.ascontiguousarray(table))
        values = to_device(as_tensor(scalars).double(), self._device)
        sums = torch.empty(self._grid, spec.sum_count, dtype=torch.float64, device=self._device)
        alignment = 1 if (table % _WIDEST).any() else _WIDEST
        if self._grid:
            # Tensors of no elements, of which every block is masked out.
            sizes = self._sizes if live is None else self._sizes * live.to(torch.int64)
            tables = (pointers, sizes, self._owners, self._blocks, values, sums)
            with _on(self._device, spec) as (dialect, settings):
                kernel = build(spec, dialect, many=True)
                kernel[(self._grid,)](*tables, ALIGNMENT=alignment, BLOCK=self._block, **settings)
        if spec.sums is None:
            return None
        return torch.segment_reduce(
            sums, "sum", lengths=self._counts, axis=0, unsafe=True, initial=0
        )


def work_list(counts: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The row of each block, and its number in the row, from the number of blocks of each row."""
    ends = counts.cumsum(0)
    every = torch.arange(total, device=counts.device)
    owners = torch.searchsorted(ends, every, right=True)
    return owners, every - (ends - counts)[owners]


@contextlib.contextmanager
def _on(device: torch.device, spec: Elementwise) -> Iterator[tuple[Dialect, dict[str, Any]]]:
    """Makes a device current; gives the dialect and the options of launches on it."""
    if device.type == "cpu":
        # NumPy warns where IEEE arithmetic just goes on to infinity or NaN.
        with _interpreter, np.errstate(all="ignore"):
            yield Dialect.INTERPRETER, {}
        return
    with torch.cuda.device(device):
        target = _target(torch.cuda.current_device())
        yield Dialect.of(target), options(target, spec.few)


def run(
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    live: Tensor | None = None,
) -> Tensor | None:
    """Apply a kernel to each row of tensors; see `mcf.kernels.numba.launch.run`.

    CPU tensors run in Triton's interpreter. On a GPU nothing here waits for the device.
    """
    device = rows[0][0].device
    if len(rows) > 1 or live is not None:
        prepared = Prepared(spec, [row[0].numel() for row in rows], device)
        columns = zip(*rows, strict=True)
        return prepared.run([[t.data_ptr() for t in column] for column in columns], scalars, live)
    return _launch(spec, rows[0], to_device(scalars, device))


@functools.cache
def _target(index: int) -> Any:
    """What Triton compiles for on a device, which is the current one."""
    return triton.runtime.driver.active.get_current_target()


def _launch(spec: Elementwise, row: Sequence[Tensor], scalars: Tensor) -> Tensor | None:
    """One row: its tensors are the kernel's arguments, and no table is needed."""
    device = row[0].device
    n = row[0].numel()
    blocks = -(-n // block(spec))
    sums = torch.empty(blocks, spec.sum_count, dtype=torch.float64, device=device)
    if blocks:
        with _on(device, spec) as (dialect, settings):
            arguments = [*(t.detach() for t in row), scalars, sums, n]
            build(spec, dialect)[(blocks,)](*arguments, BLOCK=block(spec), **settings)
    return None if spec.sums is None else sums.sum(0, keepdim=True)
