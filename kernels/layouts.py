"""Convert tensors of any layout for an executor, which accepts only dense ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mcf.kernels import streams
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.tables import table_of, to_device

Run = Callable[[Elementwise, Sequence[Sequence[Tensor]], Tensor, Tensor | None], Tensor | None]

# Elements copied at a time if tensors are not dense or their layouts differ; bounds extra memory.
SLAB = 1 << 16


def is_dense(t: Tensor) -> bool:
    """Return whether the elements fill a range of memory without holes or overlap, in any order."""
    if t.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def same_layout(row: Sequence[Tensor]) -> bool:
    """Return whether all tensors are dense and store their elements in the same order."""
    first = row[0]
    if all(t.is_contiguous() for t in row):
        return True
    return is_dense(first) and all(t.stride() == first.stride() for t in row)


def _part(t: Tensor, size: int, dim: int, start: int, length: int) -> Tensor:
    """Narrow a dimension that has `size` elements, of which `t` may pack two into one."""
    here = t.shape[dim]
    if here == size:
        return t.narrow(dim, start, length)
    return t.narrow(dim, start * here // size, length * here // size)


def _slabs(row: Sequence[Tensor], first: int = 0) -> Iterator[tuple[list[Tensor], int]]:
    """Cut tensors of one shape into corresponding parts of at most SLAB elements.

    Each part is contiguous in row-major order and comes with the index of its first element.
    """
    shape, size = row[0].shape, row[0].numel()
    if size <= SLAB:
        yield list(row), first
        return
    dim = next(d for d, n in enumerate(shape) if n > 1)
    step = max(1, shape[dim] * SLAB // size)
    if any(t.shape[dim] != shape[dim] for t in row):
        # Cut at whole bytes.
        step = max(2, step - step % 2)
    for start in range(0, shape[dim], step):
        length = min(step, shape[dim] - start)
        part = [_part(t, shape[dim], dim, start, length) for t in row]
        yield from _slabs(part, first + start * (size // shape[dim]))


# Indices in one period agree in their upper 32-bit word.
_PERIOD = 1 << 32


def _below_period(row: Sequence[Tensor], index: int) -> Iterator[tuple[list[Tensor], int]]:
    """Cut contiguous tensors at multiples of _PERIOD; `index` is that of the first element."""
    size = row[0].numel()
    if index % _PERIOD + size <= _PERIOD:
        yield list(row), index
        return
    start = 0
    while start < size:
        end = min(size, start + _PERIOD - (index + start) % _PERIOD)
        yield [_part(t.view(-1), size, 0, start, end - start) for t in row], index + start
        start = end


def launch(
    run: Run,
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    live: Tensor | None = None,
    first: Sequence[int] = (),
) -> Tensor | None:
    """Apply a kernel to rows of tensors of any strides; see `mcf.kernels.executor.Executor`."""
    if spec.random:
        return _launch_random(run, spec, rows, scalars, live, first)
    uniform = [k for k, field in enumerate(spec.fields) if field.uniform]
    if uniform:
        assert live is None, "a launch over uniform fields that may be dead is not implemented"
        _launch_uniform(run, spec, rows, scalars, uniform)
        return None
    regular = [k for k, row in enumerate(rows) if same_layout(row)]
    sums = sums_of_nothing(spec, len(rows), rows[0][0].device)

    def apply(some: Sequence[Sequence[Tensor]], indices: Sequence[int]) -> None:
        result = run(spec, some, _rows(scalars, indices), live)
        if result is not None and sums is not None:
            _add(sums, indices, result)

    if regular:
        apply([rows[k] for k in regular], regular)
    for k in sorted(set(range(len(rows))) - set(regular)):
        for part, _ in _slabs(rows[k]):
            copies = [t.contiguous() for t in part]
            apply([copies], [k])
            for field, t, copy in zip(spec.fields, part, copies, strict=True):
                if field.written and copy is not t:
                    t.copy_(copy)
    return sums


def sums_of_nothing(spec: Elementwise, rows: int, device: torch.device) -> Tensor | None:
    """Return zeros for the sums of a kernel, or None if it has none (some devices lack float64)."""
    if spec.sums is None:
        return None
    return torch.zeros(rows, spec.sum_count, dtype=torch.float64, device=device)


def _rows(table: Tensor, indices: Sequence[int]) -> Tensor:
    """Return some rows of a table, without synchronising with its device."""
    if list(indices) == list(range(len(table))):
        return table
    return table[to_device(table_of(indices, torch.int64), table.device)]


def _add(sums: Tensor, indices: Sequence[int], result: Tensor) -> None:
    """Add to some rows of the sums, without synchronising with their device."""
    sums.index_add_(0, to_device(table_of(indices, torch.int64), sums.device), result)


def _launch_random(
    run: Run,
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    live: Tensor | None,
    first: Sequence[int],
) -> Tensor | None:
    """Launch a kernel that draws random numbers, with elements numbered in row-major order."""
    device = rows[0][0].device
    sums = torch.zeros(len(rows), spec.sum_count, dtype=torch.float64, device=device)
    # If the first indices are not given separately, the table is on the CPU.
    indices = first or [int(index) for index in scalars[:, -1].tolist()]
    pieces: list[list[Tensor]] = []
    starts: list[int] = []
    owners: list[int] = []

    def flush() -> None:
        if pieces:
            mine = _rows(scalars, owners)
            table = torch.cat([mine[:, :-2], streams.table(mine[:, -2], starts)], 1)
            result = run(spec, pieces, table, live)
            if result is not None:
                _add(sums, owners, result)
        for part in (pieces, starts, owners):
            part.clear()

    def add(part: list[Tensor], k: int, index: int) -> None:
        for stretch, start in _below_period(part, index):
            pieces.append(stretch)
            starts.append(start)
            owners.append(k)

    for k, row in enumerate(rows):
        if all(t.is_contiguous() for t in row):
            add(list(row), k, indices[k])
            continue
        for part, start in _slabs(row, indices[k]):
            copies = [t.contiguous() for t in part]
            add(copies, k, start)
            flush()
            for field, t, copy in zip(spec.fields, part, copies, strict=True):
                if field.written and copy is not t:
                    t.copy_(copy)
    flush()
    return sums if spec.sums is not None else None


def _launch_uniform(
    run: Run,
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    uniform: Sequence[int],
) -> None:
    """Launch a kernel with one-element tensors on rows that are not all dense."""
    assert spec.sums is None, "sums over uniform fields are not implemented"
    full = [k for k in range(len(spec.fields)) if k not in uniform]
    for j, row in enumerate(rows):
        for part, _ in _slabs([row[k] for k in full]):
            pieces = list(row)
            for k, t in zip(full, part, strict=True):
                pieces[k] = t.contiguous()
            run(spec, [pieces], scalars[j : j + 1], None)
            for k, t in zip(full, part, strict=True):
                if spec.fields[k].written and pieces[k] is not t:
                    t.copy_(pieces[k])
