"""Groups of processes: those that share a parameter, those of a mesh, and replicas.

An exchange moves each element once, in its own dtype: (n - 1) / n of the bytes, as many as a
reduce-scatter that adds in that dtype.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mcf.kernels.tables import table_of
from mcf.optim.sharding import shards
from mcf.optim.sharding.shards import ByIdentity, is_cut, is_sharded, same_place


class Across(NamedTuple):
    """The processes that have the other parts of a tensor: those along dimensions of a mesh.

    Processes along the mesh's other dimensions have the same parts, and reduce the same numbers.
    """

    mesh: Any
    dims: tuple[int, ...]

    def reduce(self, t: Tensor, operation: str) -> Tensor:
        """Return a tensor reduced elementwise over all these processes, all of which call this.

        Args:
            t: int32, int64 or float64, which every backend can move and reduce.
            operation: "sum" or "max"; not "max" of floats, because backends drop NaN.
        """
        from torch import distributed

        op = {"sum": distributed.ReduceOp.SUM, "max": distributed.ReduceOp.MAX}[operation]
        # Parameters may be kept on the CPU, with a mesh of GPUs.
        made = t.to(self.mesh.device_type, copy=True)
        for dim in self.dims:
            distributed.all_reduce(made, op, group=self.mesh.get_group(dim))
        return made.to(t.device)


def across(p: Tensor) -> Across | None:
    """Return the processes that have the other parts of a parameter; None if all of it is local."""
    if not is_sharded(p):
        return None
    spec = p._spec  # type: ignore[attr-defined]
    known = _KNOWN.get(spec)
    if known is not None:
        return known or None
    mesh = spec.mesh
    dims = [k for k, place in enumerate(spec.placements) if is_cut(place) and mesh.size(k) > 1]
    # A process outside the mesh has no part and takes no part in collectives.
    found = Across(mesh, tuple(dims)) if dims and mesh.get_coordinate() is not None else None
    _KNOWN.set(spec, found or False)
    return found


# Results per layout; False if all of a parameter is local.
_KNOWN: ByIdentity[Across | Literal[False]] = ByIdentity()


def place_gradient(p: Tensor) -> None:
    """Bring a parameter's gradient into the parameter's layout, if their mesh is the same.

    A Partial gradient, of which each process has a summand, is summed. The result replaces
    `p.grad`. All processes of the mesh call this.
    """
    grad: Any = p.grad
    if not is_sharded(p) or not is_sharded(grad) or same_place(p, grad):
        return
    if grad.device_mesh == p.device_mesh:  # type: ignore[attr-defined]
        p.grad = grad.redistribute(placements=p.placements)  # type: ignore[attr-defined]


def every(params: Iterable[Tensor]) -> list[Across]:
    """Return all groups of processes that share any of some parameters.

    The order is the same on every process, if all have the same parameters in the same order.
    Parameters without gradients count, because processes may differ in which ones those are.
    """
    return list(dict.fromkeys(found for p in params if (found := across(p)) is not None))


def everyone(params: Iterable[Tensor]) -> list[Across]:
    """Return all processes of all meshes of some parameters, replicas among them.

    Common decisions are reduced over these: replicas have the same gradients, but a device that
    fails has its own. The order is the same on every process, as in `every`.
    """
    specs = {id(p._spec): p._spec for p in params if is_sharded(p)}  # type: ignore[attr-defined]
    return list(dict.fromkeys(found for spec in specs.values() if (found := _all(spec.mesh))))


def has_replicas(p: Tensor) -> bool:
    """Return whether several processes have the same part of a parameter, by its placements."""
    if not is_sharded(p):
        return False
    mesh, places = p._spec.mesh, p._spec.placements  # type: ignore[attr-defined]
    return any(not is_cut(place) and mesh.size(k) > 1 for k, place in enumerate(places))


def _all(mesh: Any) -> Across | None:
    dims = tuple(k for k in range(mesh.ndim) if mesh.size(k) > 1)
    return Across(mesh, dims) if dims and mesh.get_coordinate() is not None else None


class Group:
    """A group of processes that includes this one; a single process needs no group.

    Attributes:
        group: the group of torch.distributed.
        size: the number of processes.
        rank: the index of this process among them.
    """

    group: Any
    size: int
    rank: int

    def __init__(self, group: Any = None, name: str = "group") -> None:
        """Take a group of torch.distributed; None for all processes, or for this one alone.

        Raises:
            RuntimeError: for a group if torch.distributed is not initialized.
            TypeError: for another object than a group, under the argument's name.
            ValueError: for a group without this process.
        """
        from torch import distributed

        self.group, self.size, self.rank = group, 1, 0
        if not distributed.is_available() or not distributed.is_initialized():
            if group is not None:
                raise RuntimeError(
                    f"{name} was given, and torch.distributed is not initialized; allowed is "
                    "None, or a group after init_process_group"
                )
            return
        # `new_group` returns a marker instead of a group to processes that are not in it.
        outside = group is distributed.GroupMember.NON_GROUP_MEMBER
        if not (group is None or outside or isinstance(group, distributed.ProcessGroup)):
            raise TypeError(
                f"{name} must be a torch.distributed.ProcessGroup or None, got "
                f"{type(group).__name__}"
            )
        self.size, self.rank = distributed.get_world_size(group), distributed.get_rank(group)
        if self.rank < 0:
            raise ValueError(
                f"{name} does not have this process (rank {distributed.get_rank()}); all that call "
                "or step have to be in it"
            )

    def piece(self, count: int) -> int:
        """Return the length of each process's piece of a tensor of `count` elements."""
        return -(-count // self.size)

    def exchange(self, t: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Send `given` elements of a flat tensor to each process; return `taken` from each."""
        if self.size == 1:
            return t
        from torch import distributed

        made = t.new_empty(sum(taken))
        # As bytes, because backends do not move all dtypes and nothing is added here.
        out, sent = ([n * t.element_size() for n in counts] for counts in (taken, given))
        distributed.all_to_all_single(
            made.view(torch.uint8), t.view(torch.uint8), out, sent, group=self.group
        )
        return made

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Exchange contiguous rows [size, n]: row k of the result is process k's for this one."""
        counts = [rows.shape[1]] * self.size
        return self.exchange(rows.view(-1), counts, counts).view(rows.shape)

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


class OfMesh(Group):
    """The processes along some dimensions of a mesh, in row-major order."""

    def __init__(self, mesh: Any, dims: tuple[int, ...]) -> None:
        self._mesh, self._dims = mesh, dims
        self.size = math.prod(mesh.size(d) for d in dims)
        at = mesh.get_coordinate()
        self.rank = 0
        for d in dims:
            self.rank = self.rank * mesh.size(d) + at[d]

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


class Replicas(Group):
    """The processes of a group, all of which have the same plain parameters and gradients."""

    def __init__(self, process_group: Any) -> None:
        super().__init__(process_group, "process_group")
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
        given = table_of(mine, torch.int64).to(params[0].device)
        every = [tuple(row) for row in self.all_gather(given).tolist()]
        for rank, theirs in enumerate(every):
            if theirs != every[0]:
                raise ValueError(
                    "process_group has processes with other matrices to step: process 0 has "
                    f"{every[0][0]}, process {rank} {theirs[0]}, and they differ in shapes or "
                    "dtypes; allowed are processes with the same parameters, and gradients for the "
                    "same of them"
                )
        self._agreed.add(mine)


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
