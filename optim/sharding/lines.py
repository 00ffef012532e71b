"""Ordered processes among which matrices are divided: those of a mesh or of a group."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.tables import table_of
from mcf.optim.sharding import shards
from mcf.optim.sharding.by_identity import ByIdentity


class Line:
    """Some processes in an order, and the index of this one.

    Attributes:
        size: the number of processes.
        me: the index of this process.
        group: their group of torch.distributed.
    """

    size: int
    me: int
    group: Any

    def exchange(self, t: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Send `given` elements to each process, and return `taken` elements from each."""
        from torch import distributed

        made = t.new_empty(sum(taken))
        distributed.all_to_all_single(made, t, list(taken), list(given), group=self.group)
        return made

    def gather(self, t: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, which have one size."""
        from torch import distributed

        made = [torch.empty_like(t) for _ in range(self.size)]
        distributed.all_gather(made, t, group=self.group)
        return made


class OfMesh(Line):
    """The processes along some dimensions of a mesh, in row-major order."""

    def __init__(self, mesh: Any, dims: tuple[int, ...]) -> None:
        self._mesh, self._dims = mesh, dims
        self.size = math.prod(mesh.size(d) for d in dims)
        at = mesh.get_coordinate()
        self.me = 0
        for d in dims:
            self.me = self.me * mesh.size(d) + at[d]

    def places(self, p: Tensor, k: int) -> list[Tensor]:
        """Return the indices of each dimension of a tensor that the k-th process has."""
        at = list(self._mesh.get_coordinate())
        for d in reversed(self._dims):
            k, at[d] = divmod(k, self._mesh.size(d))
        device = torch.device(self._mesh.device_type)
        return [
            torch.arange(n, device=device) if x is None else torch.from_numpy(x).to(device)
            for n, x in zip(p.shape, shards.indices(p, tuple(at)), strict=True)
        ]

    @property
    def group(self) -> Any:
        """The group of torch.distributed along the dimensions."""
        return _group(self._mesh, self._dims)


class Replicas(Line):
    """The processes of a group, all of which have the same plain parameters and gradients."""

    def __init__(self, process_group: Any) -> None:
        """Check a group of torch.distributed.

        Raises:
            TypeError: for another object than a group.
            RuntimeError: if torch.distributed is not initialized.
            ValueError: for a group without this process.
        """
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            raise RuntimeError(
                "process_group was given, and torch.distributed is not initialized; allowed is "
                "None, or a group after init_process_group"
            )
        # `new_group` returns a marker instead of a group to processes that are not in it.
        if process_group is distributed.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(_NOT_IN.format(distributed.get_rank()))
        if not isinstance(process_group, distributed.ProcessGroup):
            raise TypeError(
                "process_group must be a torch.distributed.ProcessGroup or None, got "
                f"{type(process_group).__name__}"
            )
        self.group, self.size = process_group, distributed.get_world_size(process_group)
        self.me = distributed.get_rank(process_group)
        if self.me < 0:
            raise ValueError(_NOT_IN.format(distributed.get_rank()))
        self._agreed: set[tuple[int, int]] = set()

    def agree(self, params: Sequence[Tensor]) -> None:
        """Check once per list that all processes step the same matrices.

        Raises:
            ValueError: on every process, if two differ.
        """
        kinds = repr([(tuple(p.shape), p.dtype) for p in params])
        mine = len(params), zlib.crc32(kinds.encode())
        if mine in self._agreed or self.size == 1:
            return
        every = [
            (int(t[0]), int(t[1]))
            for t in self.gather(table_of(mine, torch.int64).to(params[0].device))
        ]
        for rank, theirs in enumerate(every):
            if theirs != every[0]:
                raise ValueError(
                    "process_group has processes with other matrices to step: process 0 has "
                    f"{every[0][0]}, process {rank} {theirs[0]}, and they differ in shapes or "
                    "dtypes; allowed are processes with the same parameters, and gradients for the "
                    "same of them"
                )
        self._agreed.add(mine)


_NOT_IN = "process_group does not have this process (rank {}); all that step have to be in it"


_GROUPS: ByIdentity[dict[tuple[int, ...], Any]] = ByIdentity()


def _group(mesh: Any, dims: tuple[int, ...]) -> Any:
    """Return the group of processes along some dimensions of a mesh, created at the first call."""
    if len(dims) == 1:
        return mesh.get_group(dims[0])
    known = _GROUPS.get(mesh)
    if known is None:
        known = {}
        _GROUPS.set(mesh, known)
    if dims not in known:
        from torch import distributed

        at = mesh.get_coordinate()
        place = tuple(slice(None) if d in dims else at[d] for d in range(mesh.ndim))
        ranks = mesh.mesh[place].reshape(-1).tolist()
        # Only its members call this.
        known[dims] = distributed.new_group(ranks, use_local_synchronization=True)
    return known[dims]
