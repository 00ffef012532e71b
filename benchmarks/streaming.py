"""Time loops that store past the cache against the same loops that do not, by size.

    python benchmarks/streaming.py

One thread; the two take turns, and what is compared is the thread's own time, so that other
processes of a busy machine count less. "streams" says what the library chooses there
(kernels/numba/runtime/streaming.py). Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import environment, machine, save_csv, table

from mcf.kernels import operators
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.numba import cpu
from mcf.kernels.numba.runtime import streaming

COLUMNS = ["operation", "elements", "MiB moved", "plain / past the cache", "streams", "rounds"]
CASES = (
    ("add fp64 2", operators.ADD, FP64, 2),
    ("mul fp64 2", operators.MUL, FP64, 2),
    ("add fp64 4", operators.ADD, FP64, 4),
    ("add fp32 2", operators.ADD, FP32, 2),
)


def ratio(prepared: Any, addresses: list[list[int]], rounds: int) -> float:
    """The time of the plain loop in that of the one that stores past the cache; the medians'."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for k in range(rounds + 2):
        for past in (True, False) if k % 2 else (False, True):
            prepared._large = past
            start = time.thread_time()
            prepared.run(addresses, np.zeros((1, 0)))
            # The first are thrown away.
            times[past] += [time.thread_time() - start] * (k >= 2)
    return statistics.median(times[False]) / statistics.median(times[True])


def main() -> None:
    """Time all cases and save a file."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--rounds", type=int, default=31, help="runs of each")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, operation, fmt, terms in CASES:
        spec = operators.kernel(operation, fmt, terms, terms)
        for power in range(17, 23):
            size = 1 << power
            tensors = [torch.ones(size, dtype=fmt.dtype) for _ in range(3 * terms)]
            prepared = cpu.Launch(spec, [size])
            chosen = prepared._large
            addresses = [[t.data_ptr()] for t in tensors]
            assert prepared._on_lines(addresses)
            rows.append(
                {
                    "operation": name,
                    "elements": size,
                    "MiB moved": size * fmt.itemsize * 3 * terms >> 20,
                    "plain / past the cache": f"{ratio(prepared, addresses, options.rounds):.2f}",
                    "streams": "yes" if chosen else "no",
                    "rounds": options.rounds,
                }
            )
    print(table(rows, COLUMNS), flush=True)
    device = torch.device("cpu")
    command = "python benchmarks/streaming.py " + " ".join(sys.argv[1:])
    level = f"{streaming.last_level() >> 20} MiB"
    path = options.out / f"streaming-{machine(device)}.csv"
    comments = {"command": command.strip(), **environment(device), "last level counted": level}
    save_csv(path, rows, comments)
    print(f"saved {path}")


if __name__ == "__main__":
    main()
