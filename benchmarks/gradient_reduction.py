"""Time the mean of gradients over processes: sums in bf16, as engines have them, float32, exact.

    python benchmarks/gradient_reduction.py                  # two processes over gloo on this CPU
    python benchmarks/gradient_reduction.py --processes 4 --rounds 5

Every process has bf16 gradients of a small transformer's shapes (300 tensors), which come out as
the mean on all. "engine" is one all-reduce of a flat bf16 tensor and a division, as DDP makes it,
"engine, float32" the same after a cast. Variants take turns. Sent bytes are those of a ring's
all-reduce and of an all-to-all with an all-gather, counted on the tensors that are moved; gloo
moves them through the memory of this machine, so that time here is mostly arithmetic. CPU ms is
the time of one process's threads, gloo's among them, which other work on the machine changes less.
Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from harness import environment, machine, save_csv, table
from optimizer_step import shapes_of
from torch import Tensor, distributed, multiprocessing

from mcf.optim import GradientReduction

COLUMNS = (
    "variant", "processes", "M elements", "ms", "ratio", "CPU ms", "CPU ratio",
    "bytes/element sent",
)  # fmt: skip


def variants(params: list[Tensor], grads: list[Tensor]) -> dict[str, tuple[Callable[[], Any], int]]:
    """Each reduction, and the bytes of an element that it moves twice or in two halves."""
    size = distributed.get_world_size()

    def give() -> None:
        for p, g in zip(params, grads, strict=True):
            p.grad = g

    def engine(dtype: torch.dtype) -> None:
        flat = torch.cat([g.reshape(-1) for g in grads]).to(dtype)
        distributed.all_reduce(flat)
        flat.div_(size)
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = part.view(p.shape).to(p.dtype)

    def ours(how: str) -> None:
        give()
        reduction = GradientReduction(params, how=how)
        reduction.add()
        reduction.finish()

    return {
        "engine, bf16": (lambda: engine(torch.bfloat16), 2),
        "engine, float32": (lambda: engine(torch.float32), 4),
        "float32": (lambda: ours("float32"), 2),
        "exact": (lambda: ours("exact"), 2),
    }


def work(rank: int, size: int, port: int, rounds: int, folder: Path) -> None:
    """What one process does; the first one reports."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    generator = torch.Generator().manual_seed(rank)
    shapes = shapes_of("300x")
    params = [torch.nn.Parameter(torch.zeros(s, dtype=torch.bfloat16)) for s in shapes]
    grads = [torch.randn(s, generator=generator).mul_(1e-3).bfloat16() for s in shapes]
    count = sum(s.numel() for s in shapes)
    found = variants(params, grads)
    wall: dict[str, list[float]] = {name: [] for name in found}
    used: dict[str, list[float]] = {name: [] for name in found}
    # The first round starts threads and compiles kernels.
    for turn in range(-1, rounds):
        for name, (call, _) in found.items():
            distributed.barrier()
            start, processor = time.perf_counter(), time.process_time()
            call()
            if turn >= 0:
                wall[name].append(time.perf_counter() - start)
                used[name].append(time.process_time() - processor)
    distributed.barrier()
    distributed.destroy_process_group()
    if rank:
        return
    first = "engine, bf16"
    rows = [
        {
            "variant": name,
            "processes": size,
            "M elements": f"{count / 1e6:.1f}",
            "ms": f"{median(wall[name]) * 1e3:.1f}",
            "ratio": f"{median(wall[name]) / median(wall[first]):.2f}",
            "CPU ms": f"{median(used[name]) * 1e3:.1f}",
            "CPU ratio": f"{median(used[name]) / median(used[first]):.2f}",
            "bytes/element sent": f"{2 * each * (size - 1) / size:.2f}",
        }
        for name, (_, each) in found.items()
    ]
    print(table(rows, COLUMNS), flush=True)
    device = torch.device("cpu")
    path = folder / f"gradient_reduction-{size}-{machine(device)}.csv"
    command = "python benchmarks/gradient_reduction.py " + " ".join(sys.argv[1:])
    save_csv(path, rows, {"command": command.strip(), **environment(device)})
    print(f"saved {path}")


def main() -> None:
    """Parse the options, start the processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--processes", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (options.processes, port, options.rounds, options.out)
    multiprocessing.spawn(work, arguments, nprocs=options.processes)


if __name__ == "__main__":
    main()
