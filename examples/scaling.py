"""Print the tables of docs/scaling.md: bytes, traffic and time of a device for large models.

    python examples/scaling.py

Nothing is measured here: the formulae are those of `pretraining/scaling.py`, which
tests/examples/test_scaling.py compares with bytes counted on two and four processes.
"""

from __future__ import annotations

from pretraining import scaling
from pretraining.dry_run import amount
from pretraining.scaling import Mesh, Work
from pretraining.shapes import SHAPES

MODELS = ("llama-7b", "llama-70b", "llama-405b")
DEVICES = (512, 16384)
MACHINE = 8
# Tokens of an update, where every process has a window; else as many as it takes.
TOKENS = 1 << 22
# An H100: bf16 operations a second (dense), of which a good training gets two fifths; bytes a
# second to devices of the same machine (NVLink) and of others (a 400 Gb/s port), one way.
OPERATIONS, USED = 989e12, 0.4
INSIDE, OUTSIDE = 450e9, 50e9
MEMORY = 80 * 2**30


def meshes(devices: int) -> dict[str, Mesh]:
    """Each strategy's mesh, with machines of eight and tensor parallelism inside them."""
    found = scaling.strategies(devices, MACHINE, min(devices // 2, 64))
    found.pop("tp")
    if devices == MACHINE:
        found["tp"] = Mesh(1, 1, MACHINE)
    return found


def seconds(work: Work, mesh: Mesh, reduce: str) -> tuple[float, float, float]:
    """Of computing, of traffic inside a machine and of traffic to others, none overlapping."""
    computing = scaling.flops(work, mesh) / (OPERATIONS * USED)
    inside = outside = 0.0
    sent = scaling.traffic(work, mesh, reduce)
    for key, count in sent.items():
        # Tensor parallel processes are neighbours; then those that share shards.
        near = mesh.tensor if key == "tensor" else mesh.shards * mesh.tensor
        if key == "replicas":
            near = mesh.devices
        if near <= MACHINE:
            inside += count / INSIDE
        else:
            outside += count / OUTSIDE
    return computing, inside, outside


def row(name: str, devices: int, how: str, mesh: Mesh, reduce: str) -> list[str]:
    """A line of the table."""
    shape = SHAPES[name]
    windows = max(1, TOKENS // (shape.context * mesh.data))
    work = Work(shape, shape.vocabulary, 1, windows)
    held = sum(scaling.memory(work, mesh, reduce).values())
    sent = sum(scaling.traffic(work, mesh, reduce).values())
    computing, inside, outside = seconds(work, mesh, reduce)
    return [
        name, f"{devices:,}", how, f"{mesh.replicas} x {mesh.shards} x {mesh.tensor}",
        f"{windows:,}", amount(held) + ("" if held < MEMORY else " (too much)"), amount(sent),
        f"{computing:.2f}", f"{inside:.2f}", f"{outside:.2f}",
    ]  # fmt: skip


HEAD = (
    "model", "devices", "parallel", "mesh", "micro-batches", "memory", "sent", "compute s",
    "inside s", "outside s",
)  # fmt: skip


def table(reduce: str = "engine") -> str:
    """All models on all numbers of devices, as Markdown."""
    lines = [HEAD, ["---"] * len(HEAD)]
    for name in MODELS:
        for devices in DEVICES:
            for how, mesh in meshes(devices).items():
                lines.append(row(name, devices, how, mesh, reduce))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
