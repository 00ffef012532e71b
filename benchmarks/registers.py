"""Float32 registers beside float64 ones: `python benchmarks/registers.py [--rounds N] [--only X]`.

Processor time of one thread on a CPU, microseconds, the least of interleaved rounds; a CPU has both
kinds of registers, so this is what float32 registers cost where nobody needs them.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, machine, save_csv, table

import mcf

HERE = Path(__file__).resolve().parent

COUNT, SIDE = 1_000_000, 100
FUNCTIONS = ("exp", "log", "sin", "tan", "atan", "tanh", "erf", "gelu", "softmax")


def cases(terms: int) -> dict[str, Callable[[], object]]:
    """Calls on float32 components: vectors of a million, matrices of a million products."""
    x, y = (mcf.rand(COUNT, terms=terms, dtype=torch.float32) for _ in range(2))
    a, b = (mcf.rand(SIDE, SIDE, terms=terms, dtype=torch.float32) for _ in range(2))
    return {
        "sum": lambda: x.sum(),
        "dot": lambda: x @ y,
        "matmul": lambda: a @ b,
        **{name: functools.partial(_call, name, x) for name in FUNCTIONS},
        "pow": lambda: x**y,
    }


def _call(name: str, x: torch.Tensor) -> object:
    if name == "softmax":
        return x.reshape(1000, -1).softmax(1)
    return F.gelu(x) if name == "gelu" else getattr(torch, name)(x)


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--terms", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--save", action="store_true", help="write the machine's results file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    choices = ("float64", "float32")
    rows: list[dict[str, Any]] = []
    for terms in options.terms:
        first = len(rows)
        for name, call in cases(terms).items():
            if options.only and name not in options.only:
                continue
            least = dict.fromkeys(choices, float("inf"))
            for _ in range(options.rounds + 1):
                for choice in choices:
                    with mcf.registers(choice):
                        least[choice] = min(least[choice], seconds(call))
            times = {f"{c} µs": f"{1e6 * least[c]:.0f}" for c in choices}
            ratio = f"{least['float32'] / least['float64']:.2f}"
            rows.append({"operation": name, "n": terms, **times, "ratio": ratio})
        if rows[first:]:
            print(table(rows[first:], list(rows[first])), flush=True)
    if options.save:
        device = torch.device("cpu")
        command = " ".join(["python benchmarks/registers.py", *sys.argv[1:]])
        comments = {"command": command, **environment(device)}
        save_csv(HERE / "results" / f"registers-{machine(device)}.csv", rows, comments)


if __name__ == "__main__":
    main()
