"""The CPU executor: compiled loops over sets of tensors, on PyTorch's number of threads."""

from __future__ import annotations

import functools
import importlib.util
import math
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.executor import Executor
from mcf.kernels.executor import Launch as Prepared
from mcf.kernels.fold import BLOCK, Fold
from mcf.kernels.formats import FP32
from mcf.kernels.numba.loops import (
    blocks_in_place,
    fold_loops,
    integer_sums,
    picking,
    prepared,
)
from mcf.kernels.numba.loops.element_loops import Table, build
from mcf.kernels.numba.loops.matrices.factorisations import CpuFactoriser
from mcf.kernels.numba.loops.rows import row_loops
from mcf.kernels.numba.runtime import streaming, team
from mcf.kernels.numba.runtime.team import SERIAL
from mcf.kernels.row_tasks import RowTask
from mcf.kernels.tables import table_of

# Loops on disk load without Numba. The import fails here if Numba is missing, where the registry
# can still choose another executor.
if importlib.util.find_spec("numba") is None:
    raise ModuleNotFoundError("No module named 'numba'", name="numba")

# Elements per item: large enough to hide the loop's start, small enough to share among threads. It
# is independent of the number of threads, so that sums have the same bits for any number.
ITEM = 16384
# An element of a high-operation-count kernel counts as so many others: it takes 20 ns or more,
# arithmetic of pairs 1 ns per element. Such kernels sum nothing, so items may be smaller.
_LONG = 16

_WORD = 8
_WORDS = len(Table._fields)


class Launch(Prepared):
    """A loop and the row sizes of its tensors; see `mcf.kernels.executor.Launch`."""

    def __init__(self, spec: Elementwise, sizes: Sequence[int]) -> None:
        """Prepare the launch, see `run`; `sizes` are the numbers of elements of the rows."""
        self._loop = build(spec)
        self._spec = spec
        self._kind = np.float32 if spec.register == FP32 else np.float64
        self._total = sum(sizes)
        self._length = len(sizes)
        self._many, item = self._total > SERIAL, ITEM
        if spec.long and self._total > SERIAL // _LONG and team.is_native():
            self._many, item = True, ITEM // _LONG
        per_row = np.array([-(-n // item) for n in sizes], dtype=np.int64)
        self._owner = np.repeat(np.arange(len(sizes)), per_row)
        first = np.cumsum(per_row) - per_row
        self._starts = (np.arange(len(self._owner)) - first[self._owner]) * item
        ends = np.array(sizes, dtype=np.int64)
        self._stops = np.minimum(ends[self._owner], self._starts + item)
        rows, starts, stops = (x.ctypes.data for x in (self._owner, self._starts, self._stops))
        self._head = Table(rows=rows, starts=starts, stops=stops)
        fields = spec.fields
        moved = sum(f.format.itemsize * (f.read + f.written) for f in fields if not f.uniform)
        # Lines that a loop also reads are in the cache already.
        only_written = (
            spec.sums is None and not spec.long and not any(f.read and f.written for f in fields)
        )
        self._large = only_written and streaming.worthwhile(moved * self._total)
        self._written = [k for k, f in enumerate(fields) if f.written]
        # Large rows of fields that are only written are allocated in large pages: their bytes.
        sizes_of = {k: [int(fields[k].format.itemsize) * n for n in sizes] for k in self._written}
        self._new = [
            (k, row)
            for k, row in sizes_of.items()
            if not fields[k].read and max(row, default=0) >= streaming.LARGE
        ]
        self._tables: dict[int, array[int]] = {}

    def _table(self, parts: int) -> array[int]:
        """Return the initial argument struct: its fields, space for the addresses, the shares."""
        if parts not in self._tables:
            table = self._head._replace(parts=parts)
            room = array("Q", bytes(_WORD * len(self._spec.fields) * self._length))
            shares = array("Q", team.shares(len(self._owner), parts).tobytes())
            self._tables[parts] = array("Q", table) + room + shares
        return self._tables[parts]

    def run(
        self, addresses: Sequence[Sequence[int]], scalars: Any, live: Tensor | None = None
    ) -> Any:
        """Run the loop, see `mcf.kernels.executor.Launch`; the sums are a NumPy array."""
        spec = self._spec
        if live is not None and not live.item():
            return np.zeros((self._length, spec.sum_count)) if spec.sums is not None else None
        items = len(self._owner)
        threads = torch.get_num_threads() if self._many else 1
        parts = max(1, min(threads, items))
        # A copy, since threads may modify it concurrently.
        table = self._table(parts)[:]
        place, fields = table.buffer_info()[0], len(addresses)
        end = _WORDS + fields * self._length
        for k, column in enumerate(addresses):
            table[_WORDS + k : end : fields] = array("Q", column)
        table[_ADDRESSES], table[_SHARES] = place + _WORD * _WORDS, place + _WORD * end
        if spec.scalars:
            values = np.ascontiguousarray(scalars, dtype=self._kind)
            table[_SCALARS] = values.ctypes.data
        sums = None
        if spec.sum_count:
            sums = np.empty((items, spec.sum_count))
            table[_SUMS] = sums.ctypes.data
        for k, row in self._new:
            for address, size in zip(addresses[k], row, strict=True):
                streaming.ask_pages(address, size)
        streamed = self._large and self._on_lines(addresses)
        loop = self._loop.streamed if streamed else self._loop.address
        if parts == 1:
            team.native(loop)(place)
        else:
            team.run(loop, place, parts)
        if sums is None:
            return None
        total = np.zeros((self._length, spec.sum_count))
        np.add.at(total, self._owner, sums)
        return total

    def row(self, scalars: Any) -> Callable[[list[int]], Any]:
        """Return the call for one row, see `mcf.kernels.executor.Launch`."""
        counts = self._spec.sums is not None
        if self._large or self._new or self._spec.sum_count != counts:
            return super().row(scalars)
        if self._many and (self._spec.counts < counts or not team.is_native()):
            return super().row(scalars)
        values = self._scalars(scalars)
        given = 0 if values is None else values.ctypes.data
        fields = self._head._replace(scalars=given)._asdict()
        items, keep = len(self._owner), (self, values)
        return prepared.Call(
            self._loop.address, fields, len(self._spec.fields), items,
            counts=items * counts, shared=self._many, keep=keep,
        )  # fmt: skip

    def in_place(self, scalars: Any) -> Callable[[list[int]], Sequence[range]] | None:
        """Return the call in place, see `mcf.kernels.executor.Launch`."""
        if self._length > 1 or not blocks_in_place.allows(self._spec):
            return None
        values = self._scalars(scalars)
        return blocks_in_place.InPlace(self._loop, self._spec, self._total, self._many, values)

    def _scalars(self, scalars: Any) -> Any:
        """Return the scalars in the loop's format; None if it has none."""
        return np.ascontiguousarray(scalars, dtype=self._kind) if self._spec.scalars else None

    @functools.cached_property
    def one(self) -> Callable[[list[int]], Any]:
        """Return `row` of a kernel without scalars."""
        return self.row(None)

    def _on_lines(self, addresses: Sequence[Sequence[int]]) -> bool:
        """Return whether all written operands are aligned to cache lines."""
        return all(a % streaming.LINE == 0 for k in self._written for a in addresses[k])


_SHARES, _ADDRESSES, _SCALARS, _SUMS = map(
    Table._fields.index, ("shares", "addresses", "scalars", "sums")
)


# Loops over small tensors see a small number of sizes, and preparing costs as much as such a call.
@lru_cache(maxsize=256)
def _prepared(spec: Elementwise, sizes: tuple[int, ...]) -> Launch:
    return Launch(spec, sizes)


class Cpu(CpuFactoriser, Executor):
    """Executor of loops that Numba compiles once and that are cached on disk."""

    name = "numba"
    devices = ("cpu",)
    tensors = "CPU tensors"
    longest = 60_000
    native = True
    small = True

    def run(
        self,
        spec: Elementwise,
        rows: Sequence[Sequence[Tensor]],
        scalars: Tensor,
        live: Tensor | None = None,
    ) -> Tensor | None:
        launch = _prepared(spec, tuple([row[0].numel() for row in rows]))
        if len(rows) == 1 and live is None and not spec.scalars:
            found = launch.one([t.data_ptr() for t in rows[0]])
            if found is None:
                return None
            return torch.tensor([[*found]], dtype=torch.float64, device="cpu")
        values = scalars.numpy() if spec.scalars else None
        columns = zip(*rows, strict=True)
        sums = launch.run([[t.data_ptr() for t in column] for column in columns], values, live)
        return None if sums is None else torch.from_numpy(sums)

    def prepare(self, spec: Elementwise, sizes: Sequence[int], device: torch.device) -> Launch:
        return Launch(spec, sizes)

    def fold(self, spec: Fold, operands: list[list[Tensor]]) -> Tensor:
        return fold_loops.fold(spec, operands)

    def fold_within(
        self, spec: Fold, operands: list[list[Tensor]], least: float, most: float
    ) -> tuple[Tensor, bool] | None:
        return fold_loops.fold_within(spec, operands, least, most)

    def fold_columns(self, spec: Fold, x: list[Tensor], count: int, inner: int) -> Tensor | None:
        return fold_loops.columns(spec, x, count, inner)

    def fold_deviations(
        self, spec: Fold, x: list[Tensor], centre: list[Tensor], count: int, inner: int
    ) -> Tensor | None:
        return fold_loops.deviations(spec, x, centre, count, inner)

    def prepare_fold(
        self, spec: Fold, rows: int, length: int, device: torch.device
    ) -> Callable[[list[int], int], None] | None:
        if length > BLOCK or rows * length > SERIAL:
            return prepared.long_fold(spec, rows, length)
        return prepared.one_fold(spec, rows, length)

    def prepare_product(
        self, spec: Fold, shape: tuple[int, int, int, int], device: torch.device
    ) -> Callable[[list[int], int], None] | None:
        """Prepare a product, see `Executor`; small ones run on the calling thread."""
        large = math.prod(shape) > SERIAL
        return prepared.product(spec, shape, large) if team.is_native() or not large else None

    def product(self, spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
        return fold_loops.product(spec, left, right)

    def rows(self, task: RowTask, shape: tuple[int, int], tensors: Sequence[Tensor]) -> bool:
        return row_loops.run(task, shape, [t.data_ptr() for t in tensors])

    def prepare_rows(
        self, task: RowTask, shape: tuple[int, int], device: torch.device
    ) -> Callable[[list[int]], None] | None:
        return row_loops.prepared(task, shape) if math.prod(shape) <= SERIAL else None

    def add_digits(self, x: Tensor, exponent: Tensor, digits: Tensor, base: int) -> None:
        integer_sums.add_digits(x, exponent, digits, base)

    def picked(self, x: Sequence[Tensor], mask: Tensor) -> list[Tensor] | None:
        """See `Executor`."""
        return picking.picked(x, mask)

    def replaced(
        self, x: Sequence[Tensor], mask: Tensor, source: Sequence[Tensor]
    ) -> list[Tensor] | None:
        """See `Executor`."""
        return picking.replaced(x, mask, source)

    def square_sums(
        self, t: Tensor, first: Tensor, second: Tensor, high: int, low: int
    ) -> tuple[Tensor, Tensor]:
        """Sum squares, see `Executor`; supports 16-bit formats and float32."""
        if t.dtype == torch.float64:
            return super().square_sums(t, first, second, high, low)
        found = integer_sums.square_sums(t, first.item(), second.item(), high, low)
        high_sum, low_sum = table_of(found, torch.int64).unbind()
        return high_sum, low_sum


EXECUTOR = Cpu()
