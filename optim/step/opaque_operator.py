"""The opaque operator that runs a registered kernel on tensors; `torch.compile` leaves it alone.

Kernels that draw random numbers number the elements of a row in order from one index on. In a
matrix that is sharded by columns, every local row begins at another index of the whole, so it is
stepped as one row each.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.tables import table_of, to_device
from mcf.optim.parameters import randomness

_kernels: dict[str, Elementwise] = {}


def registered(spec: Elementwise) -> Elementwise:
    """Register a kernel so that `update_` finds it; return the kernel."""
    _kernels[f"{spec.name}_{spec.serial}"] = spec
    return spec


_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "update_(str kernel, Tensor(a!)[] written, Tensor[] read, Tensor scalars, "
    "Tensor? live=None, int[] first=[]) -> Tensor"
)


def _update(
    name: str,
    written: list[Tensor],
    read: list[Tensor],
    scalars: Tensor,
    live: Tensor | None = None,
    first: Sequence[int] = (),
) -> Tensor:
    spec = _kernels[name]
    sources = {True: iter(written), False: iter(read)}
    rows = [[next(sources[f.written]) for f in spec.fields] for _ in range(scalars.shape[0])]
    sums = registry.run(spec, rows, scalars, live, first)
    return _no_sums(name, written, read, scalars) if sums is None else sums


def _no_sums(
    name: str, written: list[Tensor], read: list[Tensor], scalars: Tensor, *rest: Any
) -> Tensor:
    """Return an empty tensor of the sums' shape."""
    return written[0].new_empty((scalars.shape[0], _kernels[name].sum_count), dtype=torch.float64)


_library.impl("update_", _update, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("mcf::update_", _no_sums, lib=_library)


def update_(
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    live: Tensor | None = None,
    first: Sequence[int] = (),
) -> Tensor:
    """Step every row of tensors in place in one opaque operator (`mcf.kernels.registry.run`).

    Returns:
        The metrics' sums, float64 of shape [len(rows), spec.sum_count], on the rows' device.
    """
    written = [t for row in rows for f, t in zip(spec.fields, row, strict=True) if f.written]
    read = [t for row in rows for f, t in zip(spec.fields, row, strict=True) if not f.written]
    sums: Tensor = torch.ops.mcf.update_(
        f"{spec.name}_{spec.serial}", written, read, scalars, live, list(first)
    )
    torch.autograd.graph.increment_version(written)
    return sums


class Cut:
    """Stretches of contiguous indices, of all parameters of a step.

    Attributes:
        owners: the index of each stretch's parameter.
        starts: the offset of each stretch in the local tensor.
        lengths: the number of elements of each stretch.
        first: the index of each stretch's first element in the whole tensor.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        """Compute the stretches of parameters, some of which have several."""
        found = [randomness.stretches(p) for p in params]
        counts = [len(s.starts) for s in found]
        self.owners = np.repeat(np.arange(len(params)), counts)
        self.starts, self.lengths, self.first = (
            np.concatenate([np.asarray(x, np.int64) for x in column])
            for column in zip(*found, strict=True)
        )

    @classmethod
    def of(cls, params: Sequence[Tensor]) -> Cut | None:
        """Return the stretches, or None if each parameter has at most one."""
        return None if all(map(randomness.in_one, params)) else cls(params)

    def rows(self, rows: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Return the rows of all stretches, from one row of contiguous tensors per parameter."""
        flat = [[t.view(-1) for t in row] for row in rows]

        def stretch(t: Tensor, size: int, start: int, length: int) -> Tensor:
            # A code with two numbers per element has half as many elements.
            per = size // max(1, t.numel())
            return t.narrow(0, start // per, length // per)

        return [
            [stretch(t, flat[k][0].numel(), int(start), int(length)) for t in flat[k]]
            for k, start, length in zip(self.owners, self.starts, self.lengths, strict=True)
        ]

    def addresses(self, column: array[int], itemsize: float) -> array[int]:
        """Return the addresses of the stretches of tensors, one tensor per parameter."""
        places = np.asarray(column, np.uint64)[self.owners]
        made: Any = places + (self.starts * itemsize).astype(np.uint64)
        return array("Q", made.tobytes())


def update(
    spec: Elementwise,
    params: Sequence[Tensor],
    rows: Sequence[Sequence[Tensor]],
    values: Tensor,
    live: Tensor | None,
    first: Sequence[int],
) -> Tensor:
    """Run `update_` on the local parts of some parameters; return the sums of each.

    Args:
        spec: the kernel.
        params: the parameters, one per row.
        rows: the kernel's tensors.
        values: a table of scalars, one line per row.
        live: 0 on the device if the step must change nothing; None if it always runs.
        first: the index of each row's first element; empty if the table has it.
    """
    cut = Cut.of(params) if spec.random else None
    if cut is None:
        return update_(spec, rows, values, live, first)
    flat = [[t.contiguous() for t in row] for row in rows]
    sums = torch.zeros(len(rows), spec.sum_count, dtype=torch.float64, device=rows[0][0].device)
    if len(cut.owners):
        owners = table_of(cut.owners.tolist(), torch.int64)
        lines = values.index_select(0, to_device(owners, values.device))
        indices = cut.first.tolist()
        if not first:
            # The last of `streams.COLUMNS`.
            lines[:, -1] = to_device(table_of(indices), lines.device)
        found = update_(spec, cut.rows(flat), lines, live, indices if first else ())
        sums.index_add_(0, to_device(owners, sums.device), found)
    columns, dense = zip(*rows, strict=True), zip(*flat, strict=True)
    for field, row, kept in zip(spec.fields, columns, dense, strict=True):
        if field.written:
            for t, u in zip(row, kept, strict=True):
                if t is not u:
                    t.copy_(u)
    return sums
