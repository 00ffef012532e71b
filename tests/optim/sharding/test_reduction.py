"""Means of gradients: of the exact sum, the same for any number of processes.

Mutants: a component that is not kept, sums in float32 or bf16, a quotient before the sum: each
gives other bits than the rationals, and sums in float32 other bits on two processes than on one.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mcf
import mcf.optim
from mcf.optim.sharding import gradient_reduction
from mcf.optim.sharding.gradient_reduction import ExactSum
from tests.helpers.draws import bell, power_of_two
from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding.layouts import digest, whole

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


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PRECISION = {BF16: (8, -133), FP16: (11, -24), FP32: (24, -149)}


def nearest(x: Fraction, dtype: torch.dtype) -> Fraction:
    """x rounded to nearest even in a format, over rationals; x is within its range."""
    digits, least = PRECISION[dtype]
    if not x:
        return x
    e = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    e -= abs(x) < Fraction(2) ** e
    unit = Fraction(2) ** max(e - digits + 1, least)
    return round(x / unit) * unit


def terms(dtype: torch.dtype, span: int, count: int = 11, n: int = 300) -> list[Tensor]:
    """Numbers of many sizes, each with another's negative beside it or not, and ties."""
    found = []
    low = {BF16: -130, FP16: -20, FP32: -145}[dtype]
    for k in range(count):
        generator = torch.Generator().manual_seed(k)
        e = torch.randint(0, span + 1, (n,), generator=generator) + low
        found.append((bell(n, generator) * power_of_two(e)).to(dtype))
    # Of some elements all but two cancel, of some all but the least.
    found += [-t * (torch.arange(n) % 3 > 0) for t in found[2:]]
    return found


def summed(several: list[Tensor], group: int = 1) -> ExactSum:
    """In the order given, by way of partial sums of so many."""
    total = ExactSum(several[0])
    for k in range(0, len(several), group):
        part = ExactSum(several[0])
        for t in several[k : k + group]:
            gradient_reduction.add([part], [t])
        for t in part.components:
            gradient_reduction.add([total], [t])
    return total


def mean(several: list[Tensor], count: int, dtype: torch.dtype) -> list[Fraction]:
    sums = [
        sum(map(Fraction, column)) for column in zip(*(t.tolist() for t in several), strict=True)
    ]
    return [nearest(s / count, dtype) for s in sums]


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("span", [10, 30, 200])
def test_a_mean_is_the_exact_one_rounded_once(dtype: torch.dtype, span: int) -> None:
    several = terms(dtype, min(span, 30) if dtype == FP16 else span)
    with mcf.executor("torch"):
        for order, group in ((several, 1), (several[::-1], 1), (several, 4)):
            for count in (1, 3, 8, 23):
                found = summed(order, group).rounded(dtype, count)
                assert found.dtype == dtype
                assert list(map(Fraction, found.tolist())) == mean(several, count, dtype)
                assert not (found.signbit() & (found == 0)).any()


def test_executors_agree() -> None:
    several = terms(BF16, 200)
    found = []
    for name in ("torch", "numba"):
        with mcf.executor(name):
            found.append(summed(several).components)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.view(torch.int64), b.view(torch.int64))


def test_what_is_not_finite_stays_whatever_the_order() -> None:
    special = torch.tensor([[torch.nan, 1.0], [torch.inf, 2.0], [-torch.inf, 3.0], [4.0, 0.5]]).to(
        BF16
    )
    expected = {
        (0, 3): torch.nan, (1, 3): torch.inf, (2, 3): -torch.inf, (1, 2, 3): torch.nan,
        (0, 1, 3): torch.nan,
    }  # fmt: skip
    with mcf.executor("torch"):
        for rows, first in expected.items():
            for order in itertools.permutations(rows):
                found = summed([special[k] for k in order]).rounded(BF16, 1)
                assert torch.equal(found[:1].float(), torch.tensor([first])) or found[0].isnan()
                assert found[0].isnan() == (first != first)
                assert found[1] == special[list(rows), 1].sum()


def test_float32_sums_stay_within_their_bound() -> None:
    several = terms(BF16, 30)
    total = gradient_reduction.Float32Sum(several[0])
    for t in several:
        gradient_reduction.add([total], [t])
    for k, found in enumerate(total.components[0].tolist()):
        column = [Fraction(t[k].item()) for t in several]
        u = Fraction(1, 2**24)
        bound = ((1 + u) ** (len(column) - 1) - 1) * sum(map(abs, column))
        assert abs(Fraction(found) - sum(column)) <= bound


# -- processes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(world: World) -> list[list[str]]:
    """The means of one process with all micro-batches."""
    found: list[list[str]] = world.run(1, plain, "exact")[0]
    return found


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_processes_has_the_same_bits(world: World, one: Any, size: int) -> None:
    assert world.run(size, plain, "exact") == [one] * size


def test_float32_sums_do_not(world: World, one: Any) -> None:
    first, second = world.run(2, plain, "float32")
    assert first == second
    assert first != one
    assert first != world.run(1, plain, "float32")[0]


ENGINES = [("ddp", 2), ("fsdp", 2)]
MORE = [
    ("ddp", 1),
    ("fsdp", 1),
    ("hsdp", 4),
    ("ddp", 4),
    ("fsdp", 4),
    ("ddp", 8),
    ("fsdp", 8),
    ("hsdp", 8),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("kind", "size"), everyday([*ENGINES, *MORE], ENGINES))
def test_engines_have_the_same_bits(world: World, one: Any, kind: str, size: int) -> None:
    # But for the empty parameter, which FSDP does not take.
    expected = [update[:-1] for update in one]
    assert world.run(size, engine, kind, "exact") == [expected] * size


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@pytest.mark.parametrize(("kind", "size"), [("ddp", 2), ("fsdp", 2), ("hsdp", 4)])
def test_other_dtypes(world: World, kind: str, size: int, dtype: torch.dtype) -> None:
    expected = [u[:-1] for u in world.run(1, plain, "exact", dtype)[0]]
    assert world.run(size, engine, kind, "exact", dtype) == [expected] * size


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("kind", "size"), [("ddp", 2), ("fsdp", 2), ("hsdp", 4)])
def test_engines_with_float32_sums_agree_among_themselves(
    world: World, one: Any, kind: str, size: int
) -> None:
    found = world.run(size, engine, kind, "float32")
    assert found == found[:1] * size
    assert found[0] != [update[:-1] for update in one]


def test_gradients_that_only_some_have(world: World) -> None:
    assert world.run(2, uneven, False) == [[[3.0] * 4, [0.5] * 4, None]] * 2
    for first, _, _ in world.run(2, uneven, True):
        assert first[0] != first[0]
        assert first[1] == torch.inf
        assert first[2] != first[2]
        assert first[3] == 3.0


def test_replicas_of_shards(world: World) -> None:
    assert world.run(4, replicated) == [(True, [[2.0] * 3] * 5)] * 4


# -- refusals ----------------------------------------------------------------------------------


def test_refusals() -> None:
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="how must be 'exact' or 'float32', got 'bf16'"):
        mcf.optim.reduce_gradients([p], how="bf16")
    p.grad = torch.ones_like(p)
    with pytest.raises(TypeError, match=r"gradient 0 has .*float64; allowed are dense tensors"):
        mcf.optim.reduce_gradients([p])
    assert torch.equal(p.grad, torch.ones_like(p))
    with pytest.raises(RuntimeError, match="before add"):
        mcf.optim.GradientReduction([p]).finish()
    with pytest.raises(ValueError, match="micro_batches must be a whole number from 1, got 0"):
        mcf.optim.set_gradient_reduction(nn.Linear(1, 1), micro_batches=0)
    with pytest.raises(TypeError, match="model is a Linear; allowed are DistributedDataParallel"):
        mcf.optim.set_gradient_reduction(nn.Linear(1, 1))


def test_one_process_needs_no_group() -> None:
    p = nn.Parameter(torch.zeros(3, dtype=BF16))
    with mcf.executor("torch"):
        reduction = mcf.optim.GradientReduction([p])
        for x in (1.0, 2.0**-9, 2.0**-9):
            p.grad = torch.full_like(p, x)
            reduction.add()
            assert p.grad is None
        reduction.finish()
    assert p.grad is not None
    assert p.grad.tolist() == [nearest(Fraction(1 + 2**8, 2**8) / 3, BF16)] * 3
