"""Norms, infinities, metrics and scales under real engines: decided over all processes, alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mcf
import mcf.optim
from mcf.optim.sharding import processes
from mcf.optim.sharding.shards import local, part
from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding import engines, layouts
from tests.optim.sharding.engines import Engine, plain_name, quiet

# Each with the number of processes; the last are what torch's `clip_grad_norm_` cannot do.
ENGINES: list[tuple[str, dict[str, Any], int]] = [
    ("ddp", {}, 2),
    ("fsdp", {}, 3),
    ("fsdp", {}, 4),
    ("fsdp_ignored", {}, 2),
    ("tensor_parallel", {"sequence": True}, 2),
    ("hsdp", {"shape": (2, 2)}, 4),
    ("fsdp_tensor_parallel", {"shape": (2, 2)}, 4),
    ("fsdp_tensor_parallel", {"shape": (2, 2), "sequence": True}, 4),
]
CASES = everyday(
    ENGINES,
    [ENGINES[1], ENGINES[7]],
    id=lambda *case: f"{case[0]}-{ENGINES.index(case)}-{case[2]}",
)
# Where what one process has is not what all have.
CUT = [case for case in CASES if not str(case.id).startswith("ddp")]
each = pytest.mark.parametrize(("engine", "options", "size"), CASES)
each_cut = pytest.mark.parametrize(("engine", "options", "size"), CUT)
# In the last element, which some processes have, and in the first.
each_value = pytest.mark.parametrize(
    ("value", "index"), [(math.nan, -1), pytest.param(math.inf, 0, marks=pytest.mark.slow)], ids=str
)


def made(engine: str, options: dict[str, Any], **given: Any) -> tuple[Engine, Any]:
    mine = getattr(engines, engine)(**options)
    given = {"lr": 2e-2, "precision": "plus", **given}
    return mine, mcf.optim.AdamW(mine.named(), **given)


def spoil(engine: Engine, name: str, value: float, index: int) -> None:
    """Put a value into one element of a gradient, where that is: a process and its replicas."""
    for own, p in engine.named():
        if plain_name(own) == name:
            numbers = part(p, torch.arange(p.numel()).view(p.shape))
            local(p.grad)[numbers == index % p.numel()] = value  # type: ignore[arg-type]


@functools.cache
def one(function: Callable[..., Any], *args: Any) -> Any:
    return function("plain", {}, *args)


def clipped(engine: str, options: dict[str, Any]) -> Any:
    """The norms of all steps, bit for bit, and what became of the weights."""
    with quiet():
        mine, optimizer = made(engine, options, max_grad_norm=0.75)
        norms = []
        for t in range(3):
            mine.train(optimizer, [t])
            norms.append(optimizer.grad_norm.item().hex())
        return norms, mine.digests(optimizer)


@pytest.mark.slow
@each
def test_clipping(world: World, engine: str, options: dict[str, Any], size: int) -> None:
    assert world.run(size, clipped, engine, options) == [one(clipped)] * size


NAME = "block.down.weight"


def skipped(engine: str, options: dict[str, Any], value: float, index: int, how: str) -> Any:
    """A step, one that one process spoils, another; the message where that raises."""
    with quiet():
        mine, optimizer = made(engine, options, nonfinite=how or "skip", max_grad_norm=1.0)
        mine.train(optimizer, [0])
        said = ""
        if how:
            before = mine.digests(optimizer)
            optimizer.zero_grad()
            mine.backward(1)
            spoil(mine, NAME, value, index)
            try:
                optimizer.step()
            except mcf.optim.NonFiniteGradientError as error:
                said = str(error)
            assert mine.digests(optimizer) == before
        # Nobody hangs, and the next step is as any.
        mine.train(optimizer, [2])
        return said, mine.digests(optimizer)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("how", ["skip", "raise"])
@each_cut
@each_value
def test_infinities_are_skipped_or_raised_by_all(
    world: World,
    engine: str,
    options: dict[str, Any],
    size: int,
    value: float,
    index: int,
    how: str,
) -> None:
    _, expected = one(skipped, value, index, "")
    found = world.run(size, skipped, engine, options, value, index, how)
    assert [digests for _, digests in found] == [expected] * size
    (said,) = {said for said, _ in found}
    assert (NAME in said and "holds an infinity or NaN" in said) == (how == "raise")


def spread(engine: str, options: dict[str, Any]) -> Any:
    """Return the norm under `nonfinite="torch"`, and whether all weights are finite in the end."""
    with quiet():
        mine, optimizer = made(engine, options, max_grad_norm=1.0)
        mine.backward(0)
        spoil(mine, "head.weight", math.nan, -1)
        optimizer.step()
        kept = [p for _, p in mine.named() if p.grad is not None]
        return str(optimizer.grad_norm.item()), all(
            bool(local(p.detach()).isfinite().all()) for p in kept
        )


@pytest.mark.sampled(every=2)
@each_cut
def test_nan_goes_through_the_norm(
    world: World, engine: str, options: dict[str, Any], size: int
) -> None:
    assert world.run(size, spread, engine, options) == [("nan", False)] * size


def measured(engine: str, options: dict[str, Any]) -> list[dict[str, float]]:
    """The metrics of each step."""
    with quiet():
        mine, optimizer = made(engine, options, track_metrics=True)
        found = []
        for t in range(2):
            mine.train(optimizer, [t])
            found.append(optimizer.metrics(flat=True))
        return found


@pytest.mark.sampled(every=2)
@each
def test_metrics(world: World, engine: str, options: dict[str, Any], size: int) -> None:
    for found in world.run(size, measured, engine, options):
        for mine, theirs in zip(found, one(measured), strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                if "lost" in name:
                    assert mine[name] == value, name
                # `metrics` promises sums to 1e-4: float32 registers keep them over blocks of
                # elements, which parts cut elsewhere. A quotient of two, each on both sides.
                assert mine[name] == pytest.approx(value, rel=4e-4, nan_ok=True), name


def scaled(engine: str, options: dict[str, Any], fused: bool) -> Any:
    """Steps under a GradScaler, one of which one process finds an infinity in."""
    with quiet():
        mine, optimizer = made(engine, options, max_grad_norm=1.0, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        scales = []
        for t in range(4):
            optimizer.zero_grad()
            scaler.scale(torch.zeros(()))
            mine.backward(t, scale=scaler.get_scale())
            if t == 1:
                spoil(mine, "head.weight", math.inf, -1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, mine.digests(optimizer)


# torch's own scaler takes gradients of one mesh alone, and no plain ones beside them.
@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("engine", "options", "size"),
    [("fsdp", {}, 3), ("fsdp", {}, 4), ("hsdp", {"shape": (2, 2)}, 4)],
)
def test_scaler(world: World, engine: str, options: dict[str, Any], size: int, fused: bool) -> None:
    assert world.run(size, scaled, engine, options, fused) == [one(scaled, fused)] * size


# -- an infinity or NaN that one of several replicas has alone -----------------------------------

# Each with who spoils its gradient: of a part that another process has too.
REPLICAS: dict[str, tuple[dict[str, Any], str]] = {
    "hsdp": ({"shape": (2, 2)}, "head.weight"),
    # One shard, which is all replicas.
    "hsdp_whole": ({"shape": (4, 1)}, "head.weight"),
    "fsdp_tensor_parallel": ({"shape": (2, 2), "sequence": True}, "block.norm.weight"),
}


def alike(engine: str, how: str, value: float) -> dict[str, tuple[float, bytes]]:
    """Steps of each parameter, and the bits that are here, after steps of which one is spoiled."""
    from torch import distributed

    options, name = REPLICAS[engine]
    with quiet(), mcf.executor("torch"):
        given = {} if how == "scaler" else {"nonfinite": how}
        mine, optimizer = made(engine.removesuffix("_whole"), options, max_grad_norm=1.0, **given)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=how == "scaler")
        for t in range(3):
            optimizer.zero_grad()
            scaler.scale(torch.zeros(()))
            mine.backward(t, scale=scaler.get_scale())
            if t == 1 and distributed.get_rank() == 0:
                (p,) = (p for own, p in mine.named() if own == name)
                assert processes.has_replicas(p)
                local(p.grad).view(-1)[0] = value
            if t == 1 and how == "raise":
                with pytest.raises(mcf.optim.NonFiniteGradientError, match=name):
                    optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        found = {}
        for own, p in mine.named():
            state = optimizer.state.get(p, {})
            bits = local(p.detach()).contiguous().view(torch.uint8).numpy().tobytes()
            found[own] = (float(state["step"]) if state else 0.0, bits)
        return found


@pytest.mark.parametrize(
    ("engine", "how", "value"),
    everyday(
        [
            ("hsdp", "skip", math.nan),
            ("hsdp", "raise", math.inf),
            ("hsdp", "scaler", math.inf),
            ("hsdp_whole", "skip", math.inf),
            ("fsdp_tensor_parallel", "skip", math.inf),
            ("fsdp_tensor_parallel", "raise", math.nan),
        ],
        lambda engine, how, value: (engine, how) == ("hsdp", "skip"),
    ),
    ids=str,
)
def test_replicas_skip_or_raise_together(world: World, engine: str, how: str, value: float) -> None:
    found = world.run(4, alike, engine, how, value)
    for mine in found:
        assert {count for count, _ in mine.values()} <= {0.0, 2.0}
    # Replicas of a shard have the same bits.
    if engine == "hsdp":
        assert found[0] == found[2] != found[1] == found[3]
    if engine == "hsdp_whole":
        assert found[0] == found[1] == found[2] == found[3]


# -- DistributedDataParallel ---------------------------------------------------------------------

# Of this many steps one process has an infinity in the second.
STEPS, BAD = 4, 1


def under_ddp(precision: str, rank: int | None) -> tuple[list[str], list[float], int]:
    """Train as one of two processes, or alone on both batches (rank None), under a GradScaler.

    Gradients are multiples of powers of two, so that their mean over processes is exact.

    Returns:
        A digest of the weights after each step, the scales, and how many steps were made.
    """
    layer = nn.Linear(6, 5).bfloat16()
    with torch.no_grad():
        for k, p in enumerate(layer.parameters()):
            p.copy_(torch.arange(1 + k, 1 + k + p.numel()).reshape(p.shape) / 64)
    net: Any = layer if rank is None else nn.parallel.DistributedDataParallel(layer)
    options: dict[str, Any] = {"precision": precision, "fused": True, "max_grad_norm": 1.0}
    optimizer = mcf.optim.AdamW(layer.named_parameters(), lr=0.01, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    found, scales = [], []
    for step in range(STEPS):
        losses = []
        for of in (0, 1) if rank is None else (rank,):
            x = ((torch.arange(12) * (step + 1) + of) % 5 - 2).reshape(2, 6).bfloat16()
            losses.append(net(x).float().sum() * (math.inf if (of, step) == (1, BAD) else 1.0))
        scaler.scale(sum(losses) / len(losses)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append(layouts.digest(torch.cat([p.detach().flatten() for p in layer.parameters()])))
        scales.append(scaler.get_scale())
    return found, scales, int(optimizer.state[layer.weight]["step"])


def member(precision: str) -> tuple[list[str], list[float], int]:
    from torch import distributed

    with quiet(), mcf.executor("torch"):
        return under_ddp(precision, distributed.get_rank())


@pytest.mark.parametrize("precision", ["plus", "split16_sr"])
def test_one_infinity_under_ddp_skips_the_step_of_all(world: World, precision: str) -> None:
    first, second = world.run(2, member, precision)
    assert first == second
    weights, scales, count = first
    assert weights[BAD] == weights[BAD - 1]
    assert len(set(weights)) == STEPS - 1
    assert scales == [2.0**8, 2.0**7, 2.0**7, 2.0**7]
    assert count == STEPS - 1
    with mcf.executor("torch"):
        assert under_ddp(precision, None) == first
