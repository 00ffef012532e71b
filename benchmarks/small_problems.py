"""Time one step of three bodies: eager, compiled, many systems at once; beside float64.

    python benchmarks/small_problems.py
    python benchmarks/small_problems.py --rounds 200 --systems 1 1000

A leapfrog step of three bodies in the plane, some twenty operations on 6 to 18 numbers, two
components of float64, one thread. "fused" is `torch.compile(step, backend=mcf.fused)`, "compiled"
`torch.compile` with Inductor, "vmap" is `torch.func.vmap` of the step of one system, "batched" the
same step on tensors with one more dimension. A round is ten steps of each way in turn, of "fused,
ten steps" in one program; the minimum and the median of rounds, in processor time, and the minimum
for each system. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FunctionType
from typing import Any

import torch
from harness import environment, machine, save_csv, table

sys.path.insert(0, str(Path(__file__).parents[1]))

import mcf
from tests.helpers.steps import bodies, step

COLUMNS = ["systems", "way", "µs a step", "median", "µs a system"]

# In a round: a program that takes one is in the cache for the next.
STEPS = 10
TEN = "fused, ten steps"


def steps(x: Any, v: Any) -> tuple[Any, Any]:
    """As many as a round has."""
    for _ in range(STEPS):
        x, v = step(x, v)
    return x, v


def ways(systems: int) -> dict[str, Callable[[], Any]]:
    """Calls that take one step of so many systems."""
    x, v = bodies(2, torch.float64)
    plain = x.to_plain(), v.to_plain()
    if systems > 1:
        x, v, *plain = (t.expand(systems, 3, 2).clone() for t in (x, v, *plain))
    compiled, fused, compiled_plain = (_copy(step) for _ in range(3))
    compiled = torch.compile(compiled, dynamic=False)
    fused = torch.compile(fused, backend=mcf.fused, dynamic=False)
    compiled_plain = torch.compile(compiled_plain, dynamic=False)
    calls = {
        "float64": lambda: step(*plain),
        "float64 compiled": lambda: compiled_plain(*plain),
        "eager" if systems == 1 else "batched": lambda: step(x, v),
    }
    if systems > 1:
        mapped = torch.func.vmap(step)
        calls["vmap"] = lambda: mapped(x, v)
    calls |= {"compiled": lambda: compiled(x, v), "fused": lambda: fused(x, v)}
    if systems == 1:
        every = torch.compile(steps, backend=mcf.fused, dynamic=False)
        calls[TEN] = lambda: every(x, v)
    return calls


def _copy(function: Any) -> Any:
    """The same function with code of its own: torch looks through all programs of one code."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def main() -> None:
    """Print a table and save it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--systems", type=int, nargs="+", default=[1, 1000], help="at once")
    parser.add_argument("--rounds", type=int, default=100, help="of each way, in turn")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        for systems in options.systems:
            calls = ways(systems)
            times: dict[str, list[float]] = {name: [] for name in calls}
            for call in calls.values():
                call()
                call()
            for _ in range(options.rounds):
                for name, call in calls.items():
                    start = time.process_time()
                    for _ in range(1 if name == TEN else STEPS):
                        call()
                    times[name].append(1e6 * (time.process_time() - start) / STEPS)
            for name, found in times.items():
                figures = min(found), median(found), min(found) / systems
                rows.append(
                    dict(zip(COLUMNS, (systems, name, *(f"{f:.1f}" for f in figures)), strict=True))
                )
    print(table(rows, COLUMNS), flush=True)
    cpu = torch.device("cpu")
    path = options.out / f"small_problems-{machine(cpu)}.csv"
    command = "python benchmarks/small_problems.py " + " ".join(sys.argv[1:])
    save_csv(path, rows, {"command": command.strip(), **environment(cpu)})
    print(f"saved {path}")


if __name__ == "__main__":
    main()
