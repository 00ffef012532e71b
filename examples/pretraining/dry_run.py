"""`--dry-run`: what a model and its optimizer take on each device, without making either."""

from __future__ import annotations

import os

import torch
from torch import nn

from pretraining import console, scale_options, scaling
from pretraining.options import Options
from pretraining.scaling import Work


def state_bytes(strategy: str) -> float:
    """Bytes of the states of a bf16 parameter, counted on those of a real optimizer."""
    from mcf.optim import AdamW

    p = nn.Parameter(torch.zeros(1024, dtype=torch.bfloat16))
    optimizer = AdamW([p], precision=strategy)
    optimizer.init_state()
    found = [
        t for t in optimizer.state[p].values() if isinstance(t, torch.Tensor) and t.numel() > 1
    ]
    return sum(t.numel() * t.element_size() for t in found) / p.numel()


def run(options: Options) -> None:
    """Print the table."""
    shape = scale_options.shape(options)
    vocabulary = options.vocab_size or (shape.vocabulary if options.model else 256)
    devices = options.devices or int(os.environ.get("WORLD_SIZE", "8"))
    strategy = scale_options.strategy(options)
    size = options.micro_batch or max(1, options.batch_size // devices)
    sequence = options.sequence_parallel
    name = options.model or f"gpt of {shape.layers} x {shape.width}"
    lines = [
        f"{name}: {shape.parameters(vocabulary):,} parameters, {vocabulary:,} tokens, context "
        f"{shape.context:,}; {strategy} on {devices:,} device(s), micro-batches of {size}, "
        f"gradients reduced {options.reduce}{', sequences cut, too' if sequence else ''}",
        f"{'parallel':10}{'mesh':>14}{'parameters':>16}" + "".join(f"{c:>13}" for c in _COLUMNS),
    ]
    shards = options.shards or min(8, devices)
    for how, mesh in scaling.strategies(devices, options.tensor, shards, sequence).items():
        if shape.groups % mesh.tensor or shape.hidden % mesh.tensor:
            continue
        if mesh.sequence and shape.context % mesh.tensor:
            continue
        micro = max(1, options.batch_size // (size * mesh.data))
        work = Work(shape, vocabulary, size, micro, state_bytes(strategy))
        held = scaling.memory(work, mesh, options.reduce)
        sent = scaling.traffic(work, mesh, options.reduce)
        sizes = [held.get(key, 0.0) for key in _COLUMNS[:-2]] + [sum(held.values())]
        sizes.append(sum(sent.values()))
        dims = f"{mesh.replicas} x {mesh.shards} x {mesh.tensor}"
        lines.append(
            f"{how:10}{dims:>14}{round(scaling.held(work, mesh)):>16,}"
            + "".join(f"{amount(x):>13}" for x in sizes)
        )
    lines.append(
        "bytes per device; mesh: replicas x shards x tensor parallel; gathered: what FSDP has of "
        "others' for a while;\nactivations: with blocks computed again in backward; sent: in an "
        "update. The formulae: examples/pretraining/scaling.py"
    )
    console.say("\n".join(lines))


_COLUMNS = (
    "parameters", "gradients", "states", "gathered", "sums", "activations", "logits", "all", "sent",
)  # fmt: skip


def amount(count: float) -> str:
    """Bytes in the largest binary unit that leaves one or more."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.{0 if units[0] == 'B' else 2}f} {units[0]}"
