"""Kernels that draw random numbers, on parts that are several stretches of their whole tensors.

A kernel counts the elements of a row from one index on, in order. Of a matrix that is cut by its
columns every row of what is here begins elsewhere in the whole: so it is stepped as so many rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.tables import table_of, to_device
from mcf.optim.parameters import randomness
from mcf.optim.step.opaque_operator import update_


class Cut:
    """The stretches of all of a step's parameters.

    Attributes:
        owners: for each stretch the number of its parameter.
        starts: of each the first element among those that are here.
        lengths: their numbers of elements.
        first: the index of each one's first element in its whole tensor.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        """Of parameters some of which are not in one stretch."""
        found = [randomness.stretches(p) for p in params]
        counts = [len(s.starts) for s in found]
        self.owners = np.repeat(np.arange(len(params)), counts)
        self.starts, self.lengths, self.first = (
            np.concatenate([np.asarray(x, np.int64) for x in column])
            for column in zip(*found, strict=True)
        )

    @classmethod
    def of(cls, params: Sequence[Tensor]) -> Cut | None:
        """None where each parameter is one stretch, or nothing."""
        return None if all(map(randomness.in_one, params)) else cls(params)

    def rows(self, rows: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Each stretch of some rows of contiguous tensors, one for each parameter."""
        flat = [[t.view(-1) for t in row] for row in rows]

        def stretch(t: Tensor, size: int, start: int, length: int) -> Tensor:
            # Of two numbers to an element half as many.
            per = size // max(1, t.numel())
            return t.narrow(0, start // per, length // per)

        return [
            [stretch(t, flat[k][0].numel(), int(start), int(length)) for t in flat[k]]
            for k, start, length in zip(self.owners, self.starts, self.lengths, strict=True)
        ]

    def addresses(self, column: array[int], itemsize: float) -> array[int]:
        """Of the stretches of tensors, one for each parameter, of elements of so many bytes."""
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
    """`update_` of what is here of some parameters; the sums of each.

    Args:
        spec: the kernel.
        params: the parameters, of each of which there is a row.
        rows: the kernel's tensors.
        values: a table of scalars, a line for each row.
        live: see `update_`.
        first: the index of each row's first element, where the table does not have it.
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
