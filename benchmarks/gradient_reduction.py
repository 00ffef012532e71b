"""Time the mean of gradients over processes: sums in bf16, as engines have them, float32, exact.

    python benchmarks/gradient_reduction.py                  # two processes over gloo on this CPU
    python benchmarks/gradient_reduction.py --processes 4 --rounds 5

Every process has bf16 gradients of a small transformer's shapes (300 tensors), which come out as
the mean on all. "engine" is one all-reduce of a flat bf16 tensor and a division, as DDP makes it,
"engine, float32" the same after a cast. Variants take turns. Sent bytes are those of a ring's
all-reduce and of an all-to-all with an all-gather, counted on the tensors that are moved; gloo
moves them through the memory of this machine, so that time here is mostly arithmetic. Results go
to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import environment, in_turn, machine, save_csv, table
from optimizer_step import shapes_of
from torch import Tensor, distributed, multiprocessing

from mcf.optim import GradientReduction

COLUMNS = ["variant", "processes", "M elements", "ms", "p20", "p80", "ratio", "bytes/element sent"]


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
    # No limit of time: all processes make the same rounds.
    times = in_turn(
        {name: call for name, (call, _) in found.items()},
        rounds=rounds, seconds=float("inf"), device=torch.device("cpu"),
    )  # fmt: skip
    distributed.barrier()
    distributed.destroy_process_group()
    if rank:
        return
    reference = times["engine, bf16"].median
    rows = [
        {
            "variant": name,
            "processes": size,
            "M elements": f"{count / 1e6:.1f}",
            "ms": f"{times[name].median * 1e3:.1f}",
            "p20": f"{times[name].quantile(0.2) * 1e3:.1f}",
            "p80": f"{times[name].quantile(0.8) * 1e3:.1f}",
            "ratio": f"{times[name].median / reference:.2f}",
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
