"""Exchange of tensors that all processes have: each gets all versions of its own piece.

A flat tensor is cut into as many pieces of equal length as there are processes, the last ones
padded with zeros. An all-to-all moves each element once, in its own dtype: (n - 1) / n of the
bytes, as many as a reduce-scatter that adds in that dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.tables import table_of


class Group:
    """A group of processes that includes this one; a single process needs no group.

    Args:
        group: a group of torch.distributed; None for all processes, or for this one if there is no
            process group at all.
    """

    def __init__(self, group: Any = None) -> None:
        from torch import distributed

        self.group = group
        alone = not distributed.is_available() or not distributed.is_initialized()
        if alone and group is not None:
            raise RuntimeError("group was given, and torch.distributed is not initialized")
        self.size = 1 if alone else distributed.get_world_size(group)
        self.rank = 0 if alone else distributed.get_rank(group)
        if self.rank < 0:
            raise ValueError("group does not have this process; all that call have to be in it")

    def piece(self, count: int) -> int:
        """Return the length of each process's piece of a tensor of `count` elements."""
        return -(-count // self.size)

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Exchange contiguous rows [size, n]: row k of the result is process k's for this one."""
        if self.size == 1:
            return rows
        from torch import distributed

        found = torch.empty_like(rows)
        # As bytes, because backends do not move all dtypes and nothing is added here.
        distributed.all_to_all_single(
            found.view(torch.uint8).view(-1), rows.view(torch.uint8).view(-1), group=self.group
        )
        return found

    def all_gather(self, row: Tensor) -> Tensor:
        """Return the rows of all processes, [size, n]."""
        if self.size == 1:
            return row[None]
        from torch import distributed

        found = row.new_empty(self.size, row.numel())
        # torch before 2.13 has the old name only.
        gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
        gather(
            found.view(torch.uint8).view(-1), row.contiguous().view(torch.uint8), group=self.group
        )
        return found

    def largest(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Return the elementwise maximum of all processes' whole numbers."""
        if self.size == 1:
            return list(numbers)
        from torch import distributed

        found = table_of(numbers, torch.int64).to(device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.group)
        return [int(x) for x in found.tolist()]


def dealt(group: Group, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return, for each process, its version of this process's piece of each tensor.

    Args:
        group: the group, whose processes all call this with tensors of the same sizes.
        tensors: tensors of one dtype and device.
    """
    lengths = [group.piece(t.numel()) for t in tensors]
    rows = tensors[0].new_empty(group.size, sum(lengths))
    for t, part in zip(tensors, torch.split(rows, lengths, dim=1), strict=True):
        flat = t.reshape(-1)
        whole = flat.numel() // part.shape[1] if part.shape[1] else 0
        cut = whole * part.shape[1]
        part[:whole] = flat[:cut].view(whole, -1) if whole else part[:0]
        part[whole:] = 0
        if cut < flat.numel():
            part[whole, : flat.numel() - cut] = flat[cut:]
    return [list(torch.split(row, lengths)) for row in group.all_to_all(rows)]


def collected(group: Group, pieces: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Fill tensors, on every process, with the pieces of all processes."""
    found = group.all_gather(torch.cat(list(pieces)))
    lengths = [len(p) for p in pieces]
    for t, part in zip(tensors, torch.split(found, lengths, dim=1), strict=True):
        t.copy_(part.reshape(-1)[: t.numel()].view(t.shape))
