"""Sums and maxima over the processes that have the other parts of a parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from torch import Tensor

from mcf.optim.sharding.by_identity import ByIdentity
from mcf.optim.sharding.shards import is_cut, is_sharded, same_place


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
