"""Time what a process pays before its first results: loops compiled, or found on disk.

    python benchmarks/first_call.py                    # some minutes: every loop is compiled anew
    python benchmarks/first_call.py --rounds 5

Each case runs in processes of its own. "cold" has an empty cache, "warm" that of the process
before, "off" none (MCF_CACHE_DIR=0); "x 2" are two processes at once. After `import mcf` (whose
time is not counted) the first result of the case is asked for. "torch" is the part of it that
torch's own first use costs: a tensor subclass without any arithmetic, an optimizer of torch.optim.
CPU seconds say more than seconds where other processes run. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import environment, machine, merge_csv, table

COLUMNS = ["case", "cache", "seconds", "CPU seconds", "loops compiled", "rounds"]

_OPERATIONS = (
    "x + x|x - y|x * x|x / y|x.sqrt()|x.rsqrt()|x.reciprocal()|x ** 3|x.exp()|x.log()|x.sin()|"
    "x.cos()|x.tanh()|x.erf()|x.atan()|x.expm1()|x.log1p()|x.sigmoid()|x.sum()|x.mean()|x.norm()|"
    "x[None] @ x[:, None]|x > y|x.softmax(0)"
).split("|")
_TENSORS = """
x = mcf.tensor([1.5, 2.5, 3.0], terms=2, dtype=torch.float64)
y = mcf.tensor([0.5, 2.5, 7.0], terms=2, dtype=torch.float64)
"""
_WEIGHTS = """
weights = [torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16)) for _ in range(4)]
for w in weights:
    w.grad = torch.ones_like(w)
"""
# What is timed, and what of it is torch's own.
CASES = {
    "x ** 3": (_TENSORS + "x ** 3\n", _TENSORS + "x.detach()\n"),
    "24 operations": (_TENSORS + "\n".join(_OPERATIONS), _TENSORS + "x.detach()\n"),
    "AdamW, first step": (
        _WEIGHTS + "from mcf.optim import AdamW\nAdamW(weights, lr=0.1).step()\n",
        _WEIGHTS + "torch.optim.AdamW(weights, lr=0.1, foreach=False).step()\n",
    ),
}

_PROCESS = """
import json, sys, time
import torch
import mcf
threads = torch.get_num_threads()
wall, cpu = time.perf_counter(), time.process_time()
exec(sys.argv[1])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
stored = sys.modules.get("mcf.kernels.numba.compile.stored")
print(json.dumps([wall, cpu, 0 if stored is None else stored.compiled]))
"""


def at_once(text: str, cache: str, count: int = 1) -> list[list[float]]:
    """Seconds, CPU seconds and compiled loops of processes that run a text at the same time."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, text],
            env=os.environ | {"MCF_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    found = []
    for process in started:
        out, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a process ended with {process.returncode}")
        found.append(json.loads(out))
    return found


def rounds_of(case: str, rounds: int, twice: bool) -> dict[str, list[list[float]]]:
    """What each state of the cache gives, in turn."""
    mine, torchs = CASES[case]
    found: dict[str, list[list[float]]] = {}

    def add(state: str, figures: list[list[float]]) -> None:
        found.setdefault(state, []).extend(figures)

    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            add("cold", at_once(mine, f"{folder}/one"))
            add("warm", at_once(mine, f"{folder}/one"))
            if twice:
                add("cold x 2", at_once(mine, f"{folder}/two", 2))
                add("warm x 2", at_once(mine, f"{folder}/two", 2))
        if twice:
            add("off", at_once(mine, "0"))
        add("torch", at_once(torchs, "0"))
    return found


def main() -> None:
    """Run all cases and save a file."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--short", action="store_true", help="only cold, warm and torch")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in options.cases:
        for state, figures in rounds_of(case, options.rounds, not options.short).items():
            seconds, cpu, compiled = (
                statistics.median(column) for column in zip(*figures, strict=True)
            )
            rows.append(
                {
                    "case": case,
                    "cache": state,
                    "seconds": f"{seconds:.2f}",
                    "CPU seconds": f"{cpu:.2f}",
                    "loops compiled": f"{compiled:g}",
                    "rounds": len(figures),
                }
            )
            print(table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    print(table(rows, COLUMNS), flush=True)
    device = torch.device("cpu")
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the end"
    command = "python benchmarks/first_call.py " + " ".join(sys.argv[1:])
    path = options.out / f"first_call-{machine(device)}.csv"
    comments = {"command": command.strip(), **environment(device), "load": load}
    merge_csv(path, rows, comments, ("case", "cache"))
    print(f"saved {path}")


if __name__ == "__main__":
    main()
