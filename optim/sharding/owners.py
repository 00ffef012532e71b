"""Exchange of shared matrices: each is whole on one process for a while, then in parts again.

Muon's orthogonalisation needs all of a matrix. As many matrices as there are processes are
exchanged at a time, each to its own owner, in round robin (as in Dion, arXiv:2504.05295). So every
matrix is processed once, and no process has more than one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.optim.sharding import shards
from mcf.optim.sharding.processes import Group, OfMesh, Replicas
from mcf.optim.sharding.shards import is_cut


class Owners:
    """The processes that share some matrices, all of one mesh and split along the same dimensions.

    Or the processes that have the same plain matrices.

    Attributes:
        count: the number of processes, and of matrices that are exchanged at a time.
    """

    def __init__(self, cut: OfMesh | None, same: Group, device: torch.device) -> None:
        """Take the processes with different and with equal parts, and the parts' device."""
        # Matrices are exchanged in rows of this size: each has an owner among the processes with
        # different parts, and parts in all of them.
        self._cut, self._row_size = cut, 1 if cut is None else cut.size
        self._same, self._device = same, device
        self.count = self._row_size * same.size

    @classmethod
    def of(cls, p: Tensor, replicas: Replicas | None = None) -> Owners | None:
        """Return the owners for matrices like `p`.

        Return None for a plain matrix without replicas, and for a process that has no part of it.
        """
        if not shards.is_sharded(p):
            if replicas is None or replicas.size == 1:
                return None
            return cls(None, replicas, p.device)
        mesh: Any = p.device_mesh  # type: ignore[attr-defined]
        if mesh.get_coordinate() is None:
            return None
        every = [k for k in range(mesh.ndim) if mesh.size(k) > 1]
        cut = tuple(k for k in every if is_cut(p.placements[k]))  # type: ignore[attr-defined]
        same = tuple(k for k in every if k not in cut)
        parts = OfMesh(mesh, cut) if cut else None
        return cls(parts, OfMesh(mesh, same), torch.device(mesh.device_type))

    def turned(
        self,
        params: Sequence[Tensor],
        parts: Sequence[Tensor],
        turn: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Return the local parts of the results of `turn` on whole matrices.

        All processes call it, with the same parameters.

        Args:
            params: the parameters of at most `count` matrices, which define how each is shared.
            parts: the local parts of the matrices.
            turn: takes a matrix in its parameter's layout and returns one of its shape; called here
                for at most one matrix.
        """
        if not params:
            return []
        home = parts[0].device
        here = [x.to(self._device) for x in parts]
        # The rows of matrices, one for each process that has the same parts as this one.
        rows = [range(k, min(k + self._row_size, len(params))) for k in self._starts(len(params))]
        mine = rows[self._same.rank]
        found = dict(zip(mine, self._row(params, here, mine, turn), strict=True))
        for k, x in self._from_others(here, rows, found).items():
            found[k] = x
        return [found[k].to(home) for k in range(len(params))]

    def _starts(self, count: int) -> list[int]:
        return [min(r * self._row_size, count) for r in range(self._same.size)]

    def _row(
        self,
        params: Sequence[Tensor],
        here: Sequence[Tensor],
        row: range,
        turn: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Return the local parts of the results for a row of matrices, one owner each."""
        line = self._cut
        if line is None:
            return [turn(here[k]) for k in row]
        own = row[line.rank] if line.rank < len(row) else None
        places: list[Any] = []
        if own is not None:
            places = [line.places(params[own], k) for k in range(line.size)]
        sizes = [math.prod(map(len, indices)) for indices in places] or [0] * line.size
        given = [here[k].reshape(-1) for k in row]
        counts = [len(x) for x in given] + [0] * (line.size - len(row))
        like = here[0]
        arrived = line.exchange(torch.cat([like.new_empty(0), *given]), counts, sizes)
        back = like.new_empty(0)
        if own is not None:
            p = params[own]
            whole = like.new_empty(0).new_empty_strided(tuple(p.shape), p.stride())
            for indices, piece in zip(places, torch.split(arrived, sizes), strict=True):
                rows_, columns = indices
                whole[rows_[:, None], columns] = piece.view(len(rows_), len(columns))
            made = turn(whole)
            back = torch.cat([made[r[:, None], c].reshape(-1) for r, c in places])
        returned = torch.split(line.exchange(back, sizes, counts), counts)
        return [x.view(here[k].shape) for k, x in zip(row, returned, strict=False)]

    def _from_others(
        self, here: Sequence[Tensor], rows: Sequence[range], found: dict[int, Tensor]
    ) -> dict[int, Tensor]:
        """Return the local parts of other rows' results, from processes with the same parts."""
        line = self._same
        if line.size == 1:
            return {}
        longest = max(sum(here[k].numel() for k in row) for row in rows)
        flat = torch.cat([here[0].new_empty(0), *(x.reshape(-1) for x in found.values())])
        padded = flat.new_zeros(longest)
        padded[: len(flat)] = flat
        made = {}
        for row, x in zip(rows, line.all_gather(padded), strict=True):
            start = 0
            for k in row:
                stop = start + here[k].numel()
                made[k] = x[start:stop].view(here[k].shape)
                start = stop
        return made
