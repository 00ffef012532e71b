"""Steps of optimizers over one matrix and over many tensors, for the GPU day."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import optimizer_variants
import torch
from gpu_measure import Case, Size, Work, bandwidth, copy
from optimizer_step import small_transformer
from strategy_variants import stored_bytes
from torch.optim import Optimizer

import mcf.plan
from mcf.optim import AdamW


class Recipe(NamedTuple):
    """An optimizer: a name, the class with its options, and the dtype of the parameters."""

    name: str
    make: Callable[..., Optimizer]
    weights: torch.dtype = torch.bfloat16
    ours: bool = True


def our_recipe(precision: str) -> Recipe:
    """Return AdamW in one of our precisions."""
    return Recipe(precision, functools.partial(AdamW, precision=precision, seed=0))


FUSED_FLOAT32 = Recipe(
    "torch fused fp32", functools.partial(torch.optim.AdamW, fused=True), torch.float32, False
)
FUSED_BF16 = Recipe(
    "torch fused bf16", functools.partial(torch.optim.AdamW, fused=True), ours=False
)


def recipes(size: Size) -> list[Recipe]:
    """Return our precisions and torch's fused AdamW, which is second."""
    own = [our_recipe(p) for p in size.precisions]
    return [*own[:1], FUSED_FLOAT32, *own[1:], FUSED_BF16]


def parameters(
    shapes: list[torch.Size], dtype: torch.dtype, device: torch.device, zero_rows: float = 0.0
) -> list[torch.nn.Parameter]:
    """Return random parameters with random gradients, made on the device without wider copies.

    Constants would draw less power, and every random rounding would go one way.

    Args:
        shapes: the shapes.
        dtype: of both.
        device: of both.
        zero_rows: the share of the gradient's rows that are zero, as in an embedding.
    """
    torch.manual_seed(0)
    made = []
    for shape in shapes:
        p = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device).normal_(0, 0.02))
        p.grad = torch.empty(shape, dtype=dtype, device=device).normal_(0, 0.01)
        if zero_rows:
            p.grad[torch.rand(shape[0], device=device) < zero_rows] = 0
        made.append(p)
    return made


def groups(params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Return matrices with weight decay and vectors without."""
    both = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in both if group["params"]]


def stepping(
    recipe: Recipe,
    shapes: list[torch.Size],
    device: torch.device,
    size: Size,
    *,
    zero_rows: float = 0.0,
    captured: bool = False,
) -> Work:
    """Return the step of an optimizer, or the replay of the CUDA graph that it was captured in."""
    params = parameters(shapes, recipe.weights, device, zero_rows)
    count = sum(p.numel() for p in params)
    options = {"capturable": True} if captured else {}
    optimizer = recipe.make(groups(params), lr=2.0**-10, betas=(0.9, 0.999), **options)
    call = replay_of(optimizer.step) if captured else optimizer.step
    plan = {row.name: row for row in mcf.plan.rows(count, bandwidth=bandwidth(device, size))}
    # With one word of each, "plain" moves as many bytes as torch does in bf16.
    alike = {FUSED_FLOAT32.name: mcf.plan.FLOAT32, FUSED_BF16.name: "plain"}
    planned = plan.get(alike.get(recipe.name, recipe.name))

    def rows(seconds: float) -> dict[str, float]:
        found = {"ns/param": 1e9 * seconds / count}
        found["bytes/param"] = stored_bytes(optimizer, params) / count
        # The plan is of matrices alone: precisions of 8 bits keep vectors wider.
        if planned and len(shapes) == 1:
            found["share of the copy's speed"] = planned.seconds / seconds
        return found

    return Work(call, rows)


def replay_of(call: Callable[[], object]) -> Callable[[], object]:
    """Capture a call in a CUDA graph after three warm-ups; return the graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    # The graph reads and writes memory of what it captured, which must live as long.
    return lambda held=call: graph.replay()


def matrix(params: int) -> list[torch.Size]:
    """Return the shape of a matrix of so many parameters."""
    return [torch.Size((max(1, params >> 12), min(params, 1 << 12)))]


def steps(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield a copy, and a step of each optimizer over one matrix."""
    yield from copy(device, size)
    shapes = matrix(size.params)
    for recipe in recipes(size):
        make = functools.partial(stepping, recipe, shapes, device, size)
        yield Case(recipe.name, make, recipe.ours)
    yield Case(optimizer_variants.OPTION_D, lambda: _option_d(shapes, device), ours=False)
    chosen = (*map(our_recipe, size.precisions[:2]), FUSED_FLOAT32)
    for recipe in chosen:
        make = functools.partial(stepping, recipe, shapes, device, size, zero_rows=0.9)
        yield Case(f"{recipe.name}, 90 % zero rows", make, recipe.ours)
    yield from _captured(chosen, shapes, device, size)


def _option_d(shapes: list[torch.Size], device: torch.device) -> Work:
    found = {v.name: v for v in optimizer_variants.variants(optimi=False)}
    variant = found[optimizer_variants.OPTION_D]
    count = sum(s.numel() for s in shapes)
    return Work(
        variant.make(shapes, device),
        lambda s: {"ns/param": 1e9 * s / count, "bytes/param": variant.bytes_held},
    )


def _captured(
    chosen: tuple[Recipe, ...], shapes: list[torch.Size], device: torch.device, size: Size
) -> Iterator[Case]:
    """Yield steps in CUDA graphs, which a CPU has not."""
    for recipe in chosen if device.type == "cuda" else ():
        make = functools.partial(stepping, recipe, shapes, device, size, captured=True)
        yield Case(f"{recipe.name}, graph", make, recipe.ours, host=True)


def many(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield steps over many tensors, where the host's time counts, and the same in graphs."""
    shapes = small_transformer(size.width, size.blocks)
    chosen = (*map(our_recipe, size.precisions[:2]), FUSED_FLOAT32, FUSED_BF16)
    for recipe in chosen:
        make = functools.partial(stepping, recipe, shapes, device, size)
        yield Case(recipe.name, make, recipe.ours, host=True)
    yield from _captured(chosen, shapes, device, size)
