"""optimi's table of memory, measured: bytes per parameter of each buffer of a training.

    python examples/papers/optimi_memory.py             # seconds

A small network is trained for two steps under mixed precision (float32 weights, autocast), bf16,
and bf16 with Kahan's compensation (ours, and optimi's own where it is installed), and every tensor
that is alive between steps is counted: weights, gradients, moments, compensation. Then:

- accumulation: what is there besides `p.grad` while micro-batches are added. torch adds in place;
  `mcf.optim.GradientAccumulator` has a second component for each gradient.
- buckets: DistributedDataParallel's, as it tells them itself (a process group of one).
- release: the most gradients that are alive at once under `mcf.optim.GradientRelease`.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parts import paper
from parts.paper import Row
from torch import Tensor, nn

import mcf.optim

LAYERS = 8
BUFFERS = ("weights", "gradients", "momentum", "variance", "compensation")
NAMES = {"exp_avg": "momentum", "exp_avg_sq": "variance"}
# What keeps bits that a bf16 number has no room for.
LOW = {"param_lo", "exp_avg_sq_lo", "kahan_comp"}


def recipes() -> dict[str, tuple[torch.dtype, Callable[..., Any]]]:
    """How parameters are stored, and what steps them."""
    found: dict[str, tuple[torch.dtype, Callable[..., Any]]] = {
        "mixed precision": (torch.float32, torch.optim.AdamW),
        "bf16": (torch.bfloat16, lambda p: mcf.optim.AdamW(p, precision="plain")),
        "bf16 + Kahan": (torch.bfloat16, lambda p: mcf.optim.AdamW(p, precision="kahan")),
        "bf16, Collage-plus": (torch.bfloat16, lambda p: mcf.optim.AdamW(p, precision="plus")),
    }
    try:
        import optimi
    except ImportError:
        return found
    found["bf16 + Kahan, optimi"] = (
        torch.bfloat16, lambda p: optimi.AdamW(p, lr=1e-3, kahan_sum=True)
    )  # fmt: skip
    return found


def build(width: int, dtype: torch.dtype) -> nn.Module:
    """Square layers, all of one size."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(LAYERS)]).to(dtype)


def backward(made: nn.Module, width: int, dtype: torch.dtype) -> None:
    """Gradients of one batch, under autocast where weights are float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
        out = made(torch.ones(4, width, dtype=dtype))
    out.float().square().mean().backward()


def size(tensors: Any) -> int:
    """Bytes of those that are tensors of a parameter's size."""
    return sum(t.nbytes for t in tensors if isinstance(t, Tensor) and t.dim() > 1)


def alive(shape: tuple[int, ...]) -> int:
    """Bytes of all tensors of a shape that Python holds."""
    held = {}
    for t in gc.get_objects():
        if type(t) in (Tensor, nn.Parameter) and tuple(t.shape) == shape:
            held[t.untyped_storage().data_ptr()] = t.nbytes
            if t.is_leaf and t.grad is not None:
                held[t.grad.untyped_storage().data_ptr()] = t.grad.nbytes
    return sum(held.values())


def held(name: str, width: int) -> Row:
    """Every buffer of a recipe, in bytes per parameter."""
    dtype, make = recipes()[name]
    # What is there before is out of sight: `alive` sees what comes.
    gc.collect()
    gc.freeze()
    made = build(width, dtype)
    weights = list(made.parameters())
    optimizer = make(weights)
    for _ in range(2):
        optimizer.zero_grad()
        backward(made, width, dtype)
        optimizer.step()
    count = sum(w.numel() for w in weights)
    found: dict[str, float] = dict.fromkeys(BUFFERS, 0.0)
    found |= {"weights": size(weights), "gradients": size(w.grad for w in weights)}
    for w in weights:
        for key, t in optimizer.state[w].items():
            kind = "compensation" if key in LOW else NAMES.get(key)
            if size([t]):
                if kind is None:
                    raise AssertionError(f"{key} belongs to no column")
                found[kind] += size([t])
    # Nothing else of that size: what the columns have is all that Python holds.
    gc.collect()
    found["other"] = alive((width, width)) - sum(found.values())
    found["accumulation"] = accumulation(made, optimizer, width, dtype)
    gc.unfreeze()
    found["buckets"] = buckets(made, width, dtype)
    found["release"] = release(width, dtype, make)
    return {"recipe": name, "parameters": count} | {k: f"{x / count:.3f}" for k, x in found.items()}


def accumulation(made: nn.Module, optimizer: Any, width: int, dtype: torch.dtype) -> float:
    """Bytes that come while two micro-batches are added, besides the gradients."""
    gc.collect()
    before = alive((width, width))
    summed = None
    if isinstance(optimizer, mcf.optim.AdamW) and dtype != torch.float32:
        optimizer.zero_grad()
        summed = mcf.optim.GradientAccumulator(optimizer)
    for _ in range(2):
        backward(made, width, dtype)
    gc.collect()
    after = alive((width, width))
    if summed is not None:
        summed.close()
    return after - before


def buckets(made: nn.Module, width: int, dtype: torch.dtype) -> float:
    """Bytes of DistributedDataParallel's buckets."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(made)
        backward(wrapped, width, dtype)
        told = str(wrapped._get_ddp_logging_data()["bucket_sizes"])
        # Before its group: the last to hold a group waits for gloo's threads, and a reducer does so
        # with the interpreter's lock, which those may want.
        del wrapped
        return sum(int(part) for part in told.split(",") if part.strip())
    finally:
        dist.destroy_process_group()


def release(width: int, dtype: torch.dtype, make: Callable[..., Any]) -> float:
    """The most bytes of gradients at once, with gradient release where the optimizer has it."""
    made = build(width, dtype)
    weights = list(made.parameters())
    most = 0

    def look(_: Tensor) -> None:
        nonlocal most
        most = max(most, size(w.grad for w in weights))

    # Called before the hooks of the release: the gradient that comes is there still.
    for w in weights:
        w.register_post_accumulate_grad_hook(look)
    optimizer = make(weights)
    if isinstance(optimizer, mcf.optim.AdamW):
        mcf.optim.GradientRelease(optimizer)
    backward(made, width, dtype)
    return most


def measure(given: argparse.Namespace) -> list[Row]:
    """All recipes."""
    return [held(name, given.width) for name in recipes()]


def report(rows: list[Row], image: Path) -> None:
    """Table and figure."""
    lines = []
    for row in rows:
        least = sum(float(row[b]) for b in BUFFERS)
        lines.append(
            {"recipe": row["recipe"], **{b: f"{float(row[b]):g}" for b in BUFFERS},
             "sum": f"{least:g}", "accumulation": f"{float(row['accumulation']):g}",
             "buckets": f"{float(row['buckets']):g}",
             "gradients at most, released": f"{float(row['release']):g}"}
        )  # fmt: skip
    print(paper.table(lines, list(lines[0])))
    made, axes = paper.figure(1)
    place = axes[0, 0]
    left = [0.0] * len(rows)
    shown = (*BUFFERS, "accumulation", "buckets")
    colours = (*paper.COLOURS[1:4], paper.COLOURS[4], paper.COLOURS[0], "#cccccc", "#eeeeee")
    for buffer, colour in zip(shown, colours, strict=True):
        wide = [float(row[buffer]) for row in rows]
        place.barh([r["recipe"] for r in rows], wide, left=left, color=colour, label=buffer,
                   height=0.6, edgecolor="#999999", lw=0.4)  # fmt: skip
        left = [a + b for a, b in zip(left, wide, strict=True)]
    place.invert_yaxis()
    place.set(xlabel="bytes per parameter", xlim=(0, max(left) * 1.02))
    place.legend(fontsize=10, loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=3)
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--width", type=paper.whole(2), default=256)
    given = parser.parse_args(arguments)
    if given.small:
        given.width = 33
    paper.main("optimi_memory", given, measure, report)


if __name__ == "__main__":
    main()
