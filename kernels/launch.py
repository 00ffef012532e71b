"""Bring tensors of any layout before an executor, which sees only dense ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise

Run = Callable[[Elementwise, Sequence[Sequence[Tensor]], Tensor], Tensor | None]

# Elements that are copied at a time where tensors are not dense or their layouts differ: bounds
# the extra memory.
SLAB = 1 << 16


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill one stretch of memory without holes or overlap, in any order."""
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


def _same_layout(row: Sequence[Tensor]) -> bool:
    first = row[0]
    if all(t.is_contiguous() for t in row):
        return True
    return is_dense(first) and all(t.stride() == first.stride() for t in row)


def _slabs(row: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut tensors of one shape into corresponding parts of at most SLAB elements."""
    shape = row[0].shape
    if row[0].numel() <= SLAB:
        yield list(row)
        return
    dim = max(range(len(shape)), key=lambda d: shape[d])
    step = max(1, shape[dim] * SLAB // row[0].numel())
    for start in range(0, shape[dim], step):
        length = min(step, shape[dim] - start)
        yield from _slabs([t.narrow(dim, start, length) for t in row])


def launch(
    run: Run, spec: Elementwise, rows: Sequence[Sequence[Tensor]], scalars: Tensor
) -> Tensor | None:
    """Apply a kernel to rows of tensors of any strides; see `mcf.kernels.numba.launch.run`."""
    regular = [k for k, row in enumerate(rows) if _same_layout(row)]
    device = rows[0][0].device
    sums = torch.zeros(len(rows), spec.sum_count, dtype=torch.float64, device=device)

    def apply(some: Sequence[Sequence[Tensor]], indices: Sequence[int]) -> None:
        result = run(spec, some, scalars[indices])
        if result is not None:
            sums.index_add_(0, torch.tensor(indices, device=device), result)

    if regular:
        apply([rows[k] for k in regular], regular)
    for k in sorted(set(range(len(rows))) - set(regular)):
        for part in _slabs(rows[k]):
            copies = [t.contiguous() for t in part]
            apply([copies], [k])
            for field, t, copy in zip(spec.fields, part, copies, strict=True):
                if field.written and copy is not t:
                    t.copy_(copy)
    return sums if spec.sums is not None else None
