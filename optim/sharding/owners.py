"""Whole matrices for a moment: each of several shared ones goes to one process, and back in parts.

For what needs all of a matrix (Muon's orthogonalisation). As many matrices as there are processes
travel at a time, each to an owner of its own, in round robin (as in Dion, arXiv:2504.05295): so
every matrix is worked on once in the world, and no process has more than one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.optim.sharding import shards
from mcf.optim.sharding.shards import is_cut


class Owners:
    """The processes that share some matrices, all of one mesh and cut along the same dimensions.

    Attributes:
        count: how many there are, and how many matrices travel at a time.
    """

    def __init__(self, p: Tensor) -> None:
        """Of a matrix like those that will travel."""
        mesh: Any = p.device_mesh  # type: ignore[attr-defined]
        every = [k for k in range(mesh.ndim) if mesh.size(k) > 1]
        cut = tuple(k for k in every if is_cut(p.placements[k]))  # type: ignore[attr-defined]
        same = tuple(k for k in every if k not in cut)
        self._mesh = mesh
        self._cut, self._same = _Line(mesh, cut), _Line(mesh, same)
        self.count = self._cut.size * self._same.size

    @classmethod
    def of(cls, p: Tensor) -> Owners | None:
        """None for a plain matrix, and for a process that has no part of it."""
        if not shards.is_sharded(p) or p.device_mesh.get_coordinate() is None:  # type: ignore[attr-defined]
            return None
        return cls(p)

    def turned(
        self,
        params: Sequence[Tensor],
        parts: Sequence[Tensor],
        turn: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """The parts that are here of what `turn` makes of whole matrices.

        All processes call it, with the same parameters.

        Args:
            params: of at most `count` matrices, which say how each is shared.
            parts: what is here of the matrices.
            turn: takes a matrix in its parameter's layout and returns one of its shape; called
                here for one of them at most.
        """
        if not params:
            return []
        home = parts[0].device
        device = torch.device(self._mesh.device_type)
        here = [x.to(device) for x in parts]
        # Those that processes with the same parts as this one work on.
        rows = [range(k, min(k + self._cut.size, len(params))) for k in self._starts(len(params))]
        mine = rows[self._same.me]
        found = dict(zip(mine, self._row(params, here, mine, turn), strict=True))
        for k, x in self._from_others(here, rows, found).items():
            found[k] = x
        return [found[k].to(home) for k in range(len(params))]

    def _starts(self, count: int) -> list[int]:
        return [min(r * self._cut.size, count) for r in range(self._same.size)]

    def _row(
        self,
        params: Sequence[Tensor],
        here: Sequence[Tensor],
        row: range,
        turn: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """The parts that are here of the matrices of a row, each of which gets an owner."""
        line = self._cut
        own = row[line.me] if line.me < len(row) else None
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
        """The parts of the other rows' matrices, of processes that have the same parts."""
        line = self._same
        if line.size == 1:
            return {}
        longest = max(sum(here[k].numel() for k in row) for row in rows)
        flat = torch.cat([here[0].new_empty(0), *(x.reshape(-1) for x in found.values())])
        padded = flat.new_zeros(longest)
        padded[: len(flat)] = flat
        made = {}
        for row, x in zip(rows, line.gather(padded), strict=True):
            start = 0
            for k in row:
                stop = start + here[k].numel()
                made[k] = x[start:stop].view(here[k].shape)
                start = stop
        return made


class _Line:
    """The processes along some dimensions of a mesh, in row-major order, and which is this one."""

    def __init__(self, mesh: Any, dims: tuple[int, ...]) -> None:
        self._mesh, self._dims = mesh, dims
        self.size = math.prod(mesh.size(d) for d in dims)
        at = mesh.get_coordinate()
        self.me = 0
        for d in dims:
            self.me = self.me * mesh.size(d) + at[d]

    def places(self, p: Tensor, k: int) -> list[Tensor]:
        """The indices of each dimension of a tensor that the k-th of them has."""
        at = list(self._mesh.get_coordinate())
        for d in reversed(self._dims):
            k, at[d] = divmod(k, self._mesh.size(d))
        device = torch.device(self._mesh.device_type)
        return [
            torch.arange(n, device=device) if x is None else torch.from_numpy(x).to(device)
            for n, x in zip(p.shape, shards.indices(p, tuple(at)), strict=True)
        ]

    def exchange(self, t: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """So many elements to each of them, and so many from each."""
        if self.size == 1:
            return t
        from torch import distributed

        made = t.new_empty(sum(taken))
        group = _group(self._mesh, self._dims)
        distributed.all_to_all_single(made, t, list(taken), list(given), group=group)
        return made

    def gather(self, t: Tensor) -> list[Tensor]:
        """What each of them has, tensors of one size."""
        from torch import distributed

        made = [torch.empty_like(t) for _ in range(self.size)]
        distributed.all_gather(made, t, group=_group(self._mesh, self._dims))
        return made


# By the mesh itself and not by its value: that of process groups that were destroyed is equal.
_GROUPS: dict[int, tuple[Any, dict[tuple[int, ...], Any]]] = {}


def _group(mesh: Any, dims: tuple[int, ...]) -> Any:
    """The processes along some dimensions of a mesh: a group that is made at the first call."""
    if len(dims) == 1:
        return mesh.get_group(dims[0])
    owner, known = _GROUPS.get(id(mesh), (None, {}))
    if owner is not mesh:
        known = {}
        _GROUPS[id(mesh)] = mesh, known
    if dims not in known:
        from torch import distributed

        at = mesh.get_coordinate()
        place = tuple(slice(None) if d in dims else at[d] for d in range(mesh.ndim))
        ranks = mesh.mesh[place].reshape(-1).tolist()
        # Called by its members alone.
        known[dims] = distributed.new_group(ranks, use_local_synchronization=True)
    return known[dims]
