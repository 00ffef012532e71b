"""The GPU executor: Triton kernels, one launch for all rows of tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.elimination import Elimination
from mcf.kernels.executor import Executor
from mcf.kernels.executor import Launch as Prepared
from mcf.kernels.fold import Fold
from mcf.kernels.reflection import Reflection
from mcf.kernels.rotation import Rotations
from mcf.kernels.tables import as_tensor, capturing, to_device
from mcf.kernels.triton import (
    elimination_kernels,
    fold_kernels,
    launching,
    reflection_kernels,
    rotation_kernels,
)
from mcf.kernels.triton.element_kernels import block, build

# Triton's widest memory access, in bytes.
_WIDEST = 16


class Work(NamedTuple):
    """The blocks of some rows of tensors.

    Args:
        alignment: the alignment of all addresses of the rows, in bytes.
        grid: the number of blocks.
        counts: the number of blocks of each row of the launch, 0 for those that are left out.
        owners: the row of each block.
        blocks: the number of each block in its row.
    """

    alignment: int
    grid: int
    counts: Tensor
    owners: Tensor
    blocks: Tensor


class Launch(Prepared):
    """A kernel and the sizes of its rows of tensors; see `mcf.kernels.executor.Launch`."""

    def __init__(self, spec: Elementwise, sizes: Sequence[int], device: torch.device) -> None:
        """Prepare tables for rows of `sizes` elements on `device`."""
        self._spec = spec
        self._device = device
        self._block = block(spec, interpreted=device.type == "cpu")
        self._counts = np.array([-(-n // self._block) for n in sizes], dtype=np.int64)
        self._sizes = self._table(np.array(sizes, dtype=np.int64))
        self._known: dict[bytes, list[Work]] = {}
        # Precompute the case of aligned rows, before a CUDA graph is captured.
        self._works(np.ones(len(sizes), dtype=bool))

    def _table(self, values: Any) -> Tensor:
        return to_device(torch.from_numpy(values), self._device)

    def _works(self, aligned: Any) -> list[Work]:
        """Split the rows by alignment: at multiples of 16 bytes, and others with narrow accesses.

        A single unaligned row would make all accesses of a launch narrow.
        """
        key = aligned.tobytes()
        found = self._known.get(key)
        if found is None:
            both = ((_WIDEST, aligned), (1, ~aligned))
            found = [self._work(a, self._counts * rows) for a, rows in both if rows.any()]
            # Work computed during a capture exists only when the graph is replayed, so it is not
            # cached.
            if not capturing(self._device):
                self._known = {key: found, **dict(list(self._known.items())[:7])}
        return [work for work in found if work.grid]

    def _work(self, alignment: int, counts: Any) -> Work:
        grid = int(counts.sum())
        here = self._table(counts)
        if capturing(self._device):
            # The lists are too long for kernel arguments, so the device computes them.
            return Work(alignment, grid, here, *work_list(here, grid))
        owners, blocks = work_list(torch.from_numpy(counts), grid)
        found = to_device(owners, self._device), to_device(blocks, self._device)
        return Work(alignment, grid, here, *found)

    def run(
        self, addresses: Sequence[Sequence[int]], scalars: Any, live: Tensor | None = None
    ) -> Tensor | None:
        """Apply the kernel; see `mcf.kernels.executor.Launch`. Nothing synchronises."""
        spec = self._spec
        # Addresses from 2**63 on are not in use.
        table = np.array(addresses, dtype=np.int64).T
        pointers = self._table(np.ascontiguousarray(table))
        # Round here, so that no thread loads and converts float64.
        values = to_device(as_tensor(scalars).to(spec.register.dtype), self._device)
        # Where `live` is 0 the sizes are 0, so every block is masked out.
        sizes = self._sizes if live is None else self._sizes * live.to(torch.int64)
        total: Tensor | None = None
        for work in self._works((table % _WIDEST == 0).all(axis=1) & (not spec.long)):
            sums = torch.empty(work.grid, spec.sum_count, dtype=torch.float64, device=self._device)
            tables = (pointers, sizes, work.owners, work.blocks, values, sums)
            launching.launch(
                self._device,
                functools.partial(build, spec, many=True),
                work.grid,
                *tables,
                few=spec.few,
                ALIGNMENT=work.alignment,
            )
            if spec.sums is not None:
                mine = torch.segment_reduce(
                    sums, "sum", lengths=work.counts, axis=0, unsafe=True, initial=0
                )
                total = mine if total is None else total + mine
        if spec.sums is None:
            return None
        if total is None:
            shape = (len(self._counts), spec.sum_count)
            total = torch.zeros(shape, dtype=torch.float64, device=self._device)
        return total


def work_list(counts: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return the row of each block and its index there, from the number of blocks of each row."""
    ends = counts.cumsum(0)
    every = torch.arange(total, device=counts.device)
    owners = torch.searchsorted(ends, every, right=True)
    return owners, every - (ends - counts)[owners]


def _launch(spec: Elementwise, row: Sequence[Tensor], scalars: Tensor) -> Tensor | None:
    """Launch a kernel on one row, with tensors as arguments instead of a table of addresses."""
    device = row[0].device
    n = row[0].numel()
    size = block(spec, interpreted=device.type == "cpu")
    blocks = -(-n // size)
    sums = torch.empty(blocks, spec.sum_count, dtype=torch.float64, device=device)
    if blocks:
        build_one = functools.partial(build, spec)
        launching.launch(device, build_one, blocks, *row, scalars, sums, n, few=spec.few)
    return None if spec.sums is None else sums.sum(0, keepdim=True)


class Gpu(Executor):
    """Run Triton kernels without synchronising; CPU tensors run in Triton's interpreter."""

    name = "triton"
    devices = ("cpu", "cuda")
    tensors = "GPU and CPU tensors"
    # Limit of operations per kernel. Measured with a step of three bodies (5,652) and its
    # derivatives (15,126): the second compiles as fast as two halves of it, and spills less than
    # both together.
    longest = 16_000
    # A thread has 255 registers. Dependent instructions cost nothing while other threads run.
    crowded = True

    def run(
        self,
        spec: Elementwise,
        rows: Sequence[Sequence[Tensor]],
        scalars: Tensor,
        live: Tensor | None = None,
    ) -> Tensor | None:
        device = rows[0][0].device
        if len(rows) == 1 and live is None:
            # Round here, so that a kernel of float32 registers contains no float64.
            return _launch(spec, rows[0], to_device(scalars.to(spec.register.dtype), device))
        columns = zip(*rows, strict=True)
        addresses = [[t.data_ptr() for t in column] for column in columns]
        return self.prepare(spec, [row[0].numel() for row in rows], device).run(
            addresses, scalars, live
        )

    def prepare(self, spec: Elementwise, sizes: Sequence[int], device: torch.device) -> Launch:
        return Launch(spec, sizes, device)

    def fold(self, spec: Fold, operands: list[list[Tensor]]) -> Tensor:
        return fold_kernels.fold(spec, operands)

    def product(self, spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
        return fold_kernels.product(spec, left, right)

    def eliminate(
        self,
        spec: Elimination,
        a: Sequence[Tensor],
        start: int,
        width: int,
        info: Tensor,
        pivots: Tensor | None = None,
        exchange: bool = True,
        sides: Sequence[Tensor] | None = None,
        determinant: Sequence[Tensor] | None = None,
    ) -> bool:
        """Factorise a panel; right-hand sides, determinants and wide panels are unsupported."""
        if sides is not None or determinant is not None or width > elimination_kernels.WIDTH:
            return False
        elimination_kernels.panel(spec, a, start, width, info, pivots, exchange)
        return True

    def substitute(
        self,
        spec: Elimination,
        a: Sequence[Tensor],
        x: Sequence[Tensor],
        upper: bool,
        unit: bool,
    ) -> bool:
        if x[0].shape[1] > elimination_kernels.WIDTH:
            return False
        elimination_kernels.substitute(spec, a, x, upper, unit)
        return True

    def reflect(
        self,
        spec: Reflection,
        r: Sequence[Tensor],
        start: int,
        v: Sequence[Tensor],
        t: Sequence[Tensor],
        whole: bool = False,
        q: Sequence[Tensor] | None = None,
    ) -> bool:
        """Reflect a real panel; updates of other columns and Q are unsupported."""
        if spec.parts == 2 or whole or q is not None or v[0].shape[2] > reflection_kernels.WIDTH:
            return False
        reflection_kernels.panel(spec, r, start, v, t)
        return True

    def rotate(
        self, spec: Rotations, x: Sequence[Tensor], width: int, counted: int, tolerance: int
    ) -> Tensor | None:
        """Run real Jacobi sweeps; complex ones are unsupported."""
        if spec.parts == 2:
            return None
        return rotation_kernels.rotate(spec, x, width, counted, tolerance)


EXECUTOR = Gpu()
