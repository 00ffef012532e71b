"""Layouts of tensors that processes share, and made-up training under each of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim.sharding import shards
from tests.optim.helpers import random

# Vectors and matrices that no number of processes divides, one smaller than most, one with a
# dimension of one, one of three dimensions, one with nothing in it.
SHAPES = ((7, 6), (5,), (1, 9), (12, 10), (2,), (3, 4, 5), (0, 3), (6, 7))


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh and where tensors lie on it.

    Args:
        name: for test ids.
        mesh: its shape.
        places: the placements of the k-th parameter, as `Shard`'s dimension, None for `Replicate`,
            or (dimension, split factor) for `_StridedShard`; one tuple for all, or a list to be
            repeated. "plain" is a tensor that is no DTensor.
    """

    name: str
    mesh: tuple[int, ...]
    places: Any

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        """The number of processes."""
        count = 1
        for n in self.mesh:
            count *= n
        return count

    def of(self, k: int) -> Any:
        """The places of the k-th parameter."""
        return self.places[k % len(self.places)] if isinstance(self.places, list) else self.places


LAYOUTS = (
    Layout("one", (1,), (0,)),
    Layout("rows2", (2,), (0,)),
    Layout("rows3", (3,), (0,)),
    Layout("rows4", (4,), (0,)),
    Layout("columns2", (2,), (-1,)),
    Layout("columns3", (3,), (-1,)),
    Layout("hybrid", (2, 2), (None, 0)),
    Layout("grid", (2, 2), (0, -1)),
    Layout("twice", (2, 2), (0, 0)),
    Layout("strided", (2, 2), ((0, 2), 0)),
    Layout("strided_columns", (2, 2), ((-1, 2), -1)),
    Layout("mixed", (3,), [(0,), (None,), (-1,), "plain"]),
    Layout("mixed_grid", (2, 2), [(0, None), ((0, 2), 0), (None, -1), "plain", (-1, 0)]),
)


def mesh_of(layout: Layout, device: str = "cpu") -> Any:
    """Its mesh, of CPUs unless it is of other devices."""
    from torch.distributed.device_mesh import init_device_mesh

    names = ("outer", "inner")[-len(layout.mesh) :]
    return init_device_mesh(device, layout.mesh, mesh_dim_names=names)


def shared(t: Tensor, mesh: Any, places: Any) -> Tensor:
    """A tensor that all processes have, with only its part kept."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    if places == "plain":
        return t.clone()
    made: list[Any] = []
    for place in places:
        if place is None:
            made.append(Replicate())
        elif isinstance(place, tuple):
            made.append(_StridedShard(place[0] % t.ndim, split_factor=place[1]))
        else:
            made.append(Shard(place % t.ndim))
    # Laid out by torch, where it does: what is under test says the same of it.
    if not any(isinstance(p, _StridedShard) for p in made):
        found: Tensor = distribute_tensor(t.clone(), mesh, made)
        return found
    # As `fully_shard` makes them of what tensor parallelism has cut: the last dimension of the
    # mesh first.
    dim = made[-1].dim
    inner, outer = mesh.get_coordinate()[::-1]
    piece = _chunk(_chunk(t, dim, mesh.size(1), inner), dim, mesh.size(0), outer)
    # Of its own: torch does not copy a DTensor whose part has a storage offset.
    piece = piece.contiguous().clone()
    return DTensor.from_local(
        piece, mesh, made, run_check=False, shape=t.shape, stride=t.contiguous().stride()
    )


def _chunk(t: Tensor, dim: int, count: int, k: int) -> Tensor:
    size = -(-t.shape[dim] // count)
    start = min(k * size, t.shape[dim])
    return t.narrow(dim, start, min(size, t.shape[dim] - start))


def wholes(several: Sequence[Tensor]) -> list[Tensor]:
    """All of some tensors, put together from their parts, not by torch; all processes call it."""
    from torch import distributed

    mine = []
    for t in several:
        if shards.is_sharded(t):
            index = shards.part(t, torch.arange(t.numel()).view(t.shape)).reshape(-1)
            mine.append((index.numpy(), _words(shards.local(t)).reshape(-1).numpy()))
    if not mine:
        return list(several)
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, mine)
    found, k = [], 0
    for t in several:
        if shards.is_sharded(t):
            made = np.zeros(t.numel(), mine[k][1].dtype)
            for theirs in parts:
                index, values = theirs[k]
                made[index] = values
            found.append(torch.from_numpy(made).view(t.dtype).view(t.shape))
            k += 1
        else:
            found.append(t)
    return found


def whole(t: Tensor) -> Tensor:
    """All of a tensor; all processes call it."""
    return wholes([t])[0]


_AS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _words(t: Tensor) -> Tensor:
    return t.detach().cpu().contiguous().view(_AS[t.element_size()])


def digest(t: Tensor) -> str:
    """Return a digest of all bits of a whole tensor, its shape and dtype."""
    data = _words(t).numpy().tobytes()
    return f"{t.dtype} {list(t.shape)} {hashlib.sha256(data).hexdigest()[:16]}"


# -- training ----------------------------------------------------------------------------------


def gradient(shape: Sequence[int], dtype: torch.dtype, t: int, k: int) -> Tensor:
    """The gradient of the k-th parameter in a step."""
    return random(shape, dtype, 1 + 1000 * t + k, 0.125)


def params(
    layout: Layout | None,
    mesh: Any,
    dtype: torch.dtype,
    shapes: Sequence[tuple[int, ...]],
    device: str = "cpu",
) -> list[tuple[str, Parameter]]:
    """Named parameters; plain ones without a layout."""
    made = []
    for k, shape in enumerate(shapes):
        t = random(shape, dtype, k).to(device)
        if layout is not None:
            t = shared(t, mesh, layout.of(k))
        made.append((f"layer{k}.weight", Parameter(t)))
    return made


def set_gradients(named: Sequence[tuple[str, Parameter]], t: int) -> None:
    """Each parameter's gradient in a step, laid out as it is."""
    for k, (_, p) in enumerate(named):
        full = gradient(p.shape, p.dtype, t, k).to(p.device)
        here = shards.part(p, full).clone() if shards.is_sharded(p) else full
        p.grad = shards.like(p, here)


def digests(named: Sequence[tuple[str, Parameter]], optimizer: Any) -> dict[str, str]:
    """Return the digests of all weights and states, by name."""
    every: dict[str, Tensor] = {}
    for name, p in named:
        every[name] = p.detach()
        every |= {f"{name} {key}": t for key, t in sorted(optimizer.state[p].items())}
    return dict(zip(every, map(digest, wholes(list(every.values()))), strict=True))


def steps(named: Sequence[tuple[str, Parameter]], optimizer: Any, times: Iterable[int]) -> None:
    """Make steps of some numbers."""
    for t in times:
        set_gradients(named, t)
        optimizer.step()


def trained(
    layout: Layout | None,
    make: str,
    options: dict[str, Any],
    count: int = 4,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    executor: str = "torch",
    device: str = "cpu",
) -> dict[str, str]:
    """Return digests after some steps."""
    mesh = None if layout is None else mesh_of(layout, device)
    with mcf.executor(executor):
        named = params(layout, mesh, torch.bfloat16, shapes, device)
        optimizer = getattr(mcf.optim, make)(named, **options)
        steps(named, optimizer, range(count))
        return digests(named, optimizer)
