"""The local part of a tensor that processes share, and its elements' indices in the whole.

This module is the boundary of sharding: kernels, storages and rules see plain tensors only. A
DTensor parameter is stepped through its local part (`local`), and its states are DTensors in its
layout (`like`). Code that depends on an element's index, such as random numbers, uses the
`stretches`, so that the bits are the same for any layout and any number of processes.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = frozenset((Tensor, Parameter))


def is_sharded(t: Any) -> bool:
    """Return whether a tensor is a DTensor, even a replicated one."""
    if type(t) in _PLAIN:
        return False
    # The import takes long; without it there is no DTensor.
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(t, kind)


def local(t: Tensor) -> Tensor:
    """Return the local part of a tensor, itself if it is not sharded; not copied."""
    if not is_sharded(t):
        return t
    here: Any = t._local_tensor  # type: ignore[attr-defined]
    # The local tensor may be the result of a pending collective operation.
    found: Tensor = here.wait() if hasattr(here, "trigger_wait") else here
    return found


def like(p: Tensor, here: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return a tensor in a parameter's layout whose local part is `here`; not copied.

    Args:
        p: the parameter; if it is plain, the tensor is `here`.
        here: a tensor of p's local shape and any dtype. Trailing dimensions may be added, p's
            contiguous last ones omitted, or the last one halved.
        shape: the shape of the whole, by default p's.
    """
    if not is_sharded(p):
        return here
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    shape = torch.Size(p.shape if shape is None else shape)
    more = shape[p.ndim :]
    within = math.prod(more)
    inner = [math.prod(more[k + 1 :]) for k in range(len(more))]
    left_out = max(1, math.prod(p.shape[len(shape) :]))
    strides = (*(s * within // left_out for s in p.stride()[: len(shape)]), *inner)
    if len(shape) == p.ndim and shape != p.shape:
        strides = tuple(math.prod(shape[k + 1 :]) for k in range(p.ndim))
    # `from_local` would move tensors on the CPU to the devices of the mesh.
    meta = TensorMeta(shape, strides, here.dtype)
    spec = DTensorSpec(p.device_mesh, tuple(p.placements), tensor_meta=meta)  # type: ignore[attr-defined]
    make: Any = DTensor
    made: Tensor = make(here.detach(), spec, requires_grad=False)
    return made


def same_place(p: Tensor, t: Tensor) -> bool:
    """Return whether each process has the same elements of two tensors of one shape."""
    if not is_sharded(p) or not is_sharded(t):
        return is_sharded(p) == is_sharded(t)
    one, other = p._spec, t._spec  # type: ignore[attr-defined]
    if one is other:
        return True
    return bool(one.mesh == other.mesh and tuple(one.placements) == tuple(other.placements))


def moved_like(p: Tensor, t: Tensor) -> Tensor:
    """Return a tensor of a parameter's shape in its layout, split, gathered or sent if needed.

    All processes of the meshes call it, unless the tensor is plain.
    """
    if same_place(p, t):
        return t
    if not is_sharded(p):
        whole: Tensor = t.full_tensor()  # type: ignore[attr-defined]
        return whole
    if not is_sharded(t):
        return like(p, part(p, t), t.shape)
    if t.device_mesh == p.device_mesh:  # type: ignore[attr-defined]
        found: Tensor = t.redistribute(placements=p.placements)  # type: ignore[attr-defined]
        return found
    return like(p, part(p, t.full_tensor()), t.shape)  # type: ignore[attr-defined]


# -- local elements ----------------------------------------------------------------------------


class Stretches(NamedTuple):
    """Stretches of a part that are stretches of the whole tensor too, both in row-major order.

    Attributes:
        starts: the index of each stretch's first element in the part.
        lengths: the number of elements of each stretch.
        first: the index of each stretch's first element in the whole tensor.
    """

    starts: Any
    lengths: Any
    first: Any


def stretches(p: Tensor) -> Stretches:
    """Return the nonempty stretches of a parameter's local part.

    There is one, unless a dimension is split and an earlier dimension has several indices.
    """
    if is_sharded(p):
        return _stretches(tuple(p.shape), *_layout(p))
    count = p.numel()
    return Stretches(*(np.array([x] if count else [], np.int64) for x in (0, count, 0)))


def part(p: Tensor, whole: Tensor) -> Tensor:
    """Return the local part of a whole tensor in a parameter's layout; a copy, unless it is all.

    Dimensions may follow those of the parameter, and its last one may be halved.
    """
    if not is_sharded(p):
        return whole
    for d, here in enumerate(_indices(tuple(whole.shape[: p.ndim]), *_layout(p))):
        if here is not None:
            whole = whole.index_select(d, torch.from_numpy(here).to(whole.device))
    return whole


def indices(p: Any, at: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the indices of a sharded tensor's dimensions that a process has, None for all.

    The process is the one at the coordinate `at` of the mesh.
    """
    found: tuple[Any, ...] = _indices(
        tuple(p.shape), tuple(p.device_mesh.shape), at, tuple(p.placements)
    )
    return found


def whole_pairs(p: Tensor) -> bool:
    """Return whether every process has neighbours in the last dimension, 2 k and 2 k + 1, together.

    The last dimension is even. This is also whether a tensor with half that dimension in the same
    layout has the pairs of p's local elements.
    """
    if not is_sharded(p):
        return True
    mesh = tuple(p.device_mesh.shape)  # type: ignore[attr-defined]
    return _whole_pairs(tuple(p.shape), mesh, tuple(p.placements))  # type: ignore[attr-defined]


@functools.lru_cache(1 << 12)
def _whole_pairs(
    shape: tuple[int, ...], mesh: tuple[int, ...], placements: tuple[Any, ...]
) -> bool:
    last = len(shape) - 1
    cuts = [m for m, _ in _cuts(mesh, placements) if placements[m].dim == last]
    halves = (*shape[:-1], shape[-1] // 2)
    for at in np.ndindex(*(mesh[m] if m in cuts else 1 for m in range(len(mesh)))):
        here, pairs = (_indices(s, mesh, at, placements)[last] for s in (shape, halves))
        if here is not None and not np.array_equal(
            here, (2 * pairs[:, None] + np.arange(2)).ravel()
        ):
            return False
    return True


def _layout(p: Any) -> tuple[tuple[int, ...], tuple[int, ...] | None, tuple[Any, ...]]:
    """Return the mesh's shape, this process's coordinate (None outside), and the placements."""
    mesh = p.device_mesh
    at = mesh.get_coordinate()
    return tuple(mesh.shape), None if at is None else tuple(at), tuple(p.placements)


@functools.lru_cache(1 << 12)
def _indices(
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    at: tuple[int, ...] | None,
    placements: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Return the local indices of each dimension; None for all of them."""
    if at is None:
        return tuple(np.arange(0) for _ in shape)
    found: list[Any] = [None] * len(shape)
    for m, split in _cuts(mesh, placements):
        dim = placements[m].dim
        here = np.arange(shape[dim]) if found[dim] is None else found[dim]
        pieces = _chunks(here, split)
        found[dim] = np.concatenate([_chunks(some, mesh[m])[at[m]] for some in pieces])
    return tuple(found)


def _cuts(mesh: tuple[int, ...], placements: tuple[Any, ...]) -> list[tuple[int, int]]:
    """Return the mesh's dimensions in order of splitting, each with its earlier pieces.

    FSDP splits the piece that tensor parallelism has made, although its placement comes first
    (`_StridedShard`), with the total number of pieces. Splitting from left to right would differ
    only for pieces of several lengths, the last of which may be empty for some processes.
    """
    found: list[tuple[int, int]] = []
    for m in reversed(range(len(mesh))):
        place = placements[m]
        if not is_cut(place) or mesh[m] == 1:
            continue
        split = getattr(place, "split_factor", 1)
        behind = math.prod(mesh[k] for k, _ in found if placements[k].dim == place.dim)
        if split > 1 and split == behind:
            found.append((m, 1))
        else:
            found.insert(0, (m, split))
    return found


def is_cut(placement: Any) -> bool:
    """Return whether the processes of a mesh's dimension have different elements."""
    return not placement.is_replicate() and not placement.is_partial()


def _chunks(x: Any, count: int) -> list[Any]:
    """Return torch.chunk's pieces, with empty ones at the end."""
    size = -(-len(x) // count)
    return [x[k * size : (k + 1) * size] for k in range(count)]


@functools.lru_cache(1 << 12)
def _stretches(shape: tuple[int, ...], *layout: Any) -> Stretches:
    here = _indices(shape, *layout)
    cut = [d for d, some in enumerate(here) if some is not None]
    last = cut[-1] if cut else 0
    # The trailing dimensions after the last split one are contiguous, and so are consecutive
    # indices of that dimension.
    inner = math.prod(shape[last + 1 :])
    own = here[last] if cut else np.arange(shape[0] if shape else 1)
    breaks = np.flatnonzero(np.diff(own) != 1) + 1
    edges = np.concatenate(([0], breaks, [len(own)]))
    outer = np.array([0])
    for d in range(last):
        some = np.arange(shape[d]) if here[d] is None else here[d]
        outer = (outer[:, None] * shape[d] + some).ravel()
    size = shape[last] if shape else 1
    begins = edges[:-1]
    begins = begins[begins < len(own)]
    starts = (np.arange(len(outer))[:, None] * len(own) + begins) * inner
    first = (outer[:, None] * size + own[begins]) * inner
    lengths = np.broadcast_to(np.diff(edges)[: len(begins)] * inner, starts.shape)
    some = lengths.ravel() > 0
    return Stretches(*(x.ravel()[some] for x in (starts, lengths, first)))


def packed(t: Any) -> Any:
    """Return a state for a checkpoint: 16-bit integers as bytes, others unchanged; not copied."""
    if not isinstance(t, Tensor) or t.dtype != torch.int16:
        return t
    return like(t, local(t).unsqueeze(-1).view(torch.int8), (*t.shape, 2))


def unpacked(p: Tensor, t: Any) -> Any:
    """Return a state of a parameter from a checkpoint, packed or not."""
    if not isinstance(t, Tensor) or t.dtype != torch.int8 or t.shape != (*p.shape, 2):
        return t
    here = local(t)
    # Other software may have saved it in another layout.
    here = here if here.stride(-1) == 1 and not here.storage_offset() % 2 else here.contiguous()
    if any(s % 2 for s in here.stride()[:-1]):
        here = here.contiguous()
    return like(t, here.view(torch.int16).squeeze(-1), p.shape)


Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """A mapping keyed by objects' identity instead of equality, which keeps none alive.

    A mesh of destroyed process groups equals a mesh of new ones; a mesh that is kept alive keeps
    its groups, with two threads and their sockets each.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, key: object) -> Value | None:
        """Return an object's value; None if it has none."""
        found = self._known.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def set(self, key: object, value: Value) -> None:
        """Store a value that does not refer to the object."""
        at = id(key)

        def forget(reference: weakref.ref[Any]) -> None:
            found = self._known.get(at)
            if found is not None and found[0] is reference:
                del self._known[at]

        self._known[at] = weakref.ref(key, forget), value

    def __len__(self) -> int:
        return len(self._known)
