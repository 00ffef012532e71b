"""Time loops half of whose additions are FMAs against the same loops as LLVM made them.

    python benchmarks/both_pipes.py

For AMD's Zen, which adds on two pipes and multiplies on two others
(kernels/numba/compile/rewrite.py). One thread; the two take turns, and what is compared is
the thread's own time, so that other processes of a busy machine count less. Results go to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from harness import environment, machine, save_csv, table

from mcf.kernels import operators
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP64
from mcf.kernels.numba import cpu
from mcf.kernels.numba.loops import element_loops
from mcf.kernels.numba.runtime import processor

COLUMNS = ["operation", "terms", "elements", "FMA ns", "plain ns", "plain / FMA", "rounds"]
SIZES = {"in cache": 1 << 12, "in memory": 1 << 22}


def launch(spec: Elementwise, size: int, both: bool) -> cpu.Launch:
    """A launch of the loop with and without the rewrite, which stores nothing past the cache."""
    with mock.patch.object(processor, "both_pipes", return_value=both):
        element_loops._kernels.pop(spec, None)
        found = cpu.Launch(spec, [size])
    element_loops._kernels.pop(spec, None)
    found._large = False
    return found


def times(spec: Elementwise, size: int, rounds: int) -> tuple[float, float]:
    """Nanoseconds an element of the fastest run, of the rewritten loop and of the plain one."""
    tensors = [torch.rand(size, dtype=torch.float64) for _ in spec.fields]
    addresses = [[t.data_ptr()] for t in tensors]
    launches = {both: launch(spec, size, both) for both in (True, False)}
    calls = max(1, (1 << 19) // size)
    best = dict.fromkeys(launches, float("inf"))
    for k in range(rounds):
        for both in (True, False) if k % 2 else (False, True):
            start = time.thread_time()
            for _ in range(calls):
                launches[both].run(addresses, None)
            best[both] = min(best[both], (time.thread_time() - start) / calls / size * 1e9)
    return best[True], best[False]


def main() -> None:
    """Time all cases and save a file."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--rounds", type=int, default=101, help="runs of each")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for operation in (operators.ADD, operators.MUL):
        for terms in (2, 4):
            for place, size in SIZES.items():
                spec = operators.kernel(operation, FP64, terms, terms)
                rounds = options.rounds if size < 1 << 16 else options.rounds // 5
                fma, plain = times(spec, size, rounds)
                cells = (operation.name, terms, f"{size} ({place})", f"{fma:.2f}", f"{plain:.2f}")
                cells = (*cells, f"{plain / fma:.2f}", rounds)
                rows.append(dict(zip(COLUMNS, cells, strict=True)))
    print(table(rows, COLUMNS), flush=True)
    device = torch.device("cpu")
    command = "python benchmarks/both_pipes.py " + " ".join(sys.argv[1:])
    path = options.out / f"both-pipes-{machine(device)}.csv"
    comments = {"command": command.strip(), **environment(device), "processor": processor.name()}
    save_csv(path, rows, comments)
    print(f"saved {path}")


if __name__ == "__main__":
    main()
