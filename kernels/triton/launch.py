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
        counts = np.array([-(-n // block(spec)) for n in sizes], dtype=np.int64)
        owners = np.repeat(np.arange(len(sizes)), counts)
        first = np.cumsum(counts) - counts
        self._grid = len(owners)
        self._counts = self._table(counts)
        self._sizes = self._table(np.array(sizes, dtype=np.int64))
        self._owners = self._table(owners)
        self._blocks = self._table(np.arange(self._grid) - first[owners])

    def _table(self, values: Any) -> Tensor:
        return to_device(torch.from_numpy(values), self._device)

    def run(self, addresses: Sequence[Sequence[int]], scalars: Any) -> Tensor | None:
        """Apply the kernel in one launch, without waiting for the device.

        Args:
            addresses: of the tensors, a list for each field with those of all rows.
            scalars: a NumPy array [rows, scalars], or a float64 tensor.

        Returns:
            The sums, float64 [rows, terms] on the device, or None.
        """
        spec = self._spec
        # Beyond 2**63 are no addresses in use.
        table = np.array(addresses, dtype=np.int64).T
        pointers = self._table(np.ascontiguousarray(table))
        values = to_device(torch.as_tensor(scalars, dtype=torch.float64), self._device)
        sums = torch.empty(self._grid, spec.sum_count, dtype=torch.float64, device=self._device)
        alignment = 1 if (table % _WIDEST).any() else _WIDEST
        if self._grid:
            tables = (pointers, self._sizes, self._owners, self._blocks, values, sums)
            with _on(self._device) as (dialect, settings):
                kernel = build(spec, dialect, many=True)
                kernel[(self._grid,)](*tables, ALIGNMENT=alignment, BLOCK=block(spec), **settings)
        if spec.sums is None:
            return None
        return torch.segment_reduce(
            sums, "sum", lengths=self._counts, axis=0, unsafe=True, initial=0
        )


def to_device(t: Tensor, device: torch.device) -> Tensor:
    """A small table where the kernel reads it; the host does not wait."""
    if device.type == "cpu" or t.device == device or not t.numel():
        return t.to(device)
    # Pinned, so that the copy needs no synchronisation, whatever its size.
    return t.pin_memory().to(device, non_blocking=True)


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[tuple[Dialect, dict[str, Any]]]:
    """Makes a device current; gives the dialect and the options of launches on it."""
    if device.type == "cpu":
        # NumPy warns where IEEE arithmetic just goes on to infinity or NaN.
        with _interpreter, np.errstate(all="ignore"):
            yield Dialect.INTERPRETER, {}
        return
    with torch.cuda.device(device):
        target = _target(torch.cuda.current_device())
        yield Dialect.of(target), options(target)


def run(spec: Elementwise, rows: Sequence[Sequence[Tensor]], scalars: Tensor) -> Tensor | None:
    """Apply a kernel to each row of tensors; see `mcf.kernels.numba.launch.run`.

    CPU tensors run in Triton's interpreter. On a GPU nothing here waits for the device.
    """
    device = rows[0][0].device
    if len(rows) > 1:
        prepared = Prepared(spec, [row[0].numel() for row in rows], device)
        columns = zip(*rows, strict=True)
        return prepared.run([[t.data_ptr() for t in column] for column in columns], scalars)
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
        with _on(device) as (dialect, settings):
            arguments = [*(t.detach() for t in row), scalars, sums, n]
            build(spec, dialect)[(blocks,)](*arguments, BLOCK=block(spec), **settings)
    return None if spec.sums is None else sums.sum(0, keepdim=True)
