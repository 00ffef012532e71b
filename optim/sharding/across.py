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
        """A tensor reduced elementwise over all of them, who all call it.

        Args:
            t: int32, int64 or float64, of which every backend moves and reduces all.
            operation: "sum" or "max"; of floats no maximum, from which backends drop NaN.
        """
        from torch import distributed

        op = {"sum": distributed.ReduceOp.SUM, "max": distributed.ReduceOp.MAX}[operation]
        # Also where parameters are kept on the CPU, beside a mesh of GPUs.
        made = t.to(self.mesh.device_type, copy=True)
        for dim in self.dims:
            distributed.all_reduce(made, op, group=self.mesh.get_group(dim))
        return made.to(t.device)


def across(p: Tensor) -> Across | None:
    """Who has the other parts of a parameter; None where all of it is here."""
    if not is_sharded(p):
        return None
    spec = p._spec  # type: ignore[attr-defined]
    known = _KNOWN.get(spec)
    if known is not None:
        return known or None
    mesh = spec.mesh
    dims = [k for k, place in enumerate(spec.placements) if is_cut(place) and mesh.size(k) > 1]
    # A process outside the mesh has no part, and is not asked.
    found = Across(mesh, tuple(dims)) if dims and mesh.get_coordinate() is not None else None
    _KNOWN.set(spec, found or False)
    return found


# Of each layout that was asked for, also where all of a parameter is here (False).
_KNOWN: ByIdentity[Across | Literal[False]] = ByIdentity()


def place_gradient(p: Tensor) -> None:
    """Bring a parameter's gradient into the parameter's layout, where their mesh is the same.

    One of which each process has a summand (Partial) is summed. It is `p.grad` from then on. All
    processes of the mesh call this.
    """
    grad: Any = p.grad
    if not is_sharded(p) or not is_sharded(grad) or same_place(p, grad):
        return
    if grad.device_mesh == p.device_mesh:  # type: ignore[attr-defined]
        p.grad = grad.redistribute(placements=p.placements)  # type: ignore[attr-defined]


def every(params: Iterable[Tensor]) -> list[Across]:
    """All groups of processes that share any of some parameters.

    In the same order on every process, if it has the same parameters in the same order: also
    those without gradients count, which one process may have and another not.
    """
    return list(dict.fromkeys(found for p in params if (found := across(p)) is not None))


def everyone(params: Iterable[Tensor]) -> list[Across]:
    """All processes of all meshes of some parameters, replicas among them.

    What all have to decide alike is reduced over these: replicas have the same gradients, but a
    device that fails has its own. In the same order on every process, as `every`.
    """
    specs = {id(p._spec): p._spec for p in params if is_sharded(p)}  # type: ignore[attr-defined]
    return list(dict.fromkeys(found for spec in specs.values() if (found := _all(spec.mesh))))


def has_replicas(p: Tensor) -> bool:
    """Whether several processes have the same part of a parameter, as its placements say."""
    if not is_sharded(p):
        return False
    mesh, places = p._spec.mesh, p._spec.placements  # type: ignore[attr-defined]
    return any(not is_cut(place) and mesh.size(k) > 1 for k, place in enumerate(places))


def _all(mesh: Any) -> Across | None:
    dims = tuple(k for k in range(mesh.ndim) if mesh.size(k) > 1)
    return Across(mesh, dims) if dims and mesh.get_coordinate() is not None else None
