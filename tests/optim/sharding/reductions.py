"""Gradients of micro-batches, reduced in every way there is, on some processes."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

import mcf.optim
from tests.helpers.draws import bell, power_of_two
from tests.optim.sharding.layouts import whole

# Vectors and matrices that no number of processes divides, one with nothing in it.
SHAPES = ((7, 6), (5,), (1, 9), (2,), (3, 4, 5), (16, 3), (0, 3))
# Micro-batches of an update.
MICRO = 8


class Made(nn.Module):
    """Parameters whose gradients are what the input says: the loss is sum(p * g)."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape, dtype) for shape in SHAPES if 0 not in shape)

    def forward(self, seed: int) -> Tensor:
        return sum(layer(seed, k) for k, layer in enumerate(self.layers))  # type: ignore[return-value]


class Layer(nn.Module):
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=dtype))

    def forward(self, seed: int, k: int) -> Tensor:
        g = gradient(self.weight.shape, self.weight.dtype, seed, k)
        return (self.weight * g).float().sum()


def gradient(shape: Any, dtype: torch.dtype, seed: int, k: int) -> Tensor:
    """The gradient of the k-th parameter in a micro-batch: of many sizes, the largest cancel."""
    number = seed % MICRO
    if number == MICRO - 1:
        return -gradient(shape, dtype, seed - MICRO + 1, k)
    generator = torch.Generator().manual_seed(1000 * seed + k)
    # The first and the last are 2**20 times the others: what float32 sums have beside them is lost.
    exponents = torch.randint(-12, 1, tuple(shape), generator=generator) + (0 if number else 20)
    return (bell(shape, generator) * power_of_two(exponents)).to(dtype)


def digest(t: Tensor) -> str:
    return hashlib.sha256(t.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def mine(update: int = 0) -> list[int]:
    """The seeds of this process's micro-batches, dealt out in turn and last first."""
    from torch import distributed

    size, rank = distributed.get_world_size(), distributed.get_rank()
    return [update * MICRO + m for m in range(MICRO) if m % size == rank][::-1]


def plain(how: str, dtype: torch.dtype = torch.bfloat16, updates: int = 2) -> list[list[str]]:
    """Digests of the means that GradientReduction makes."""
    params = [nn.Parameter(torch.zeros(s, dtype=dtype)) for s in SHAPES]
    reduction = mcf.optim.GradientReduction(params, how=how)
    found = []
    for update in range(updates):
        for seed in mine(update):
            for k, p in enumerate(params):
                p.grad = gradient(p.shape, p.dtype, seed, k)
            reduction.add()
        reduction.finish()
        found.append([digest(p.grad) for p in params])
    return found


def engine(kind: str, how: str, dtype: torch.dtype = torch.bfloat16, updates: int = 2) -> Any:
    """Digests of the means that an engine makes."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    size = distributed.get_world_size()
    model: Any = Made(dtype)
    if kind == "ddp":
        # A small limit: buckets are made anew after the first pass.
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
        params = list(model.module.parameters())
    else:
        shape = (2, size // 2) if kind == "hsdp" else (size,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("r", "s")[-len(shape) :])
        for layer in model.layers[:3]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        params = list(model.parameters())
    mcf.optim.set_gradient_reduction(model, how, micro_batches=MICRO // size)
    found = []
    for update in range(updates):
        for seed in mine(update):
            model(seed).backward()
        found.append([digest(whole(p.grad)) for p in params])
        model.zero_grad()
    return found


def uneven(special: bool) -> Any:
    """Three parameters, one with a gradient on the last process only, one with none."""
    from torch import distributed

    size, rank = distributed.get_world_size(), distributed.get_rank()
    params = [nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)) for _ in range(3)]
    params[0].grad = torch.full_like(params[0], 3.0)
    if rank == size - 1:
        params[1].grad = torch.ones_like(params[1])
        if special:
            params[0].grad[0], params[0].grad[1] = torch.nan, torch.inf
            params[0].grad[2] = -torch.inf
    elif special:
        params[0].grad[2] = torch.inf
    mcf.optim.reduce_gradients(params, how="exact")
    return [None if p.grad is None else p.grad.tolist() for p in params]


def replicated() -> Any:
    """A DTensor's gradient over the dimension of a mesh that has it twice."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s"))
    p = nn.Parameter(distribute_tensor(torch.zeros(5, 3).bfloat16(), mesh, [Replicate(), Shard(0)]))
    scale = 1.0 + 2.0 * mesh.get_local_rank("r")
    p.grad = distribute_tensor(torch.ones(5, 3).bfloat16(), mesh, [Replicate(), Shard(0)]) * scale
    mcf.optim.reduce_gradients([p], mesh.get_group("r"))
    return p.grad.placements == p.placements, whole(p.grad).tolist()
