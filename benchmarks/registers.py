"""Float32 registers beside float64 ones: `python benchmarks/registers.py [--rounds N]`.

Processor time of one thread on a CPU, microseconds, the least of interleaved rounds; a CPU has both
kinds of registers, so this is what float32 registers cost where nobody needs them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import mcf

COUNT, SIDE = 1_000_000, 100


def cases(terms: int) -> dict[str, Callable[[], object]]:
    """Calls on float32 components: vectors of a million, matrices of a million products."""
    x, y = (mcf.rand(COUNT, terms=terms, dtype=torch.float32) for _ in range(2))
    a, b = (mcf.rand(SIDE, SIDE, terms=terms, dtype=torch.float32) for _ in range(2))
    return {
        "sum": lambda: x.sum(),
        "dot": lambda: x @ y,
        "matmul": lambda: a @ b,
        "exp": lambda: x.exp(),
    }


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    choices = ("float64", "float32")
    print("| | n | float64 | float32 | ratio |\n|---|---|---|---|---|")
    for terms in (1, 2, 3, 4):
        for name, call in cases(terms).items():
            least = dict.fromkeys(choices, float("inf"))
            # A function in float32 is some 60 launches.
            for _ in range(3 if name == "exp" else rounds + 1):
                for choice in choices:
                    with mcf.registers(choice):
                        least[choice] = min(least[choice], seconds(call))
            wide, narrow = (1e6 * least[c] for c in choices)
            print(f"| `{name}` | {terms} | {wide:.0f} | {narrow:.0f} | {narrow / wide:.2f} |")


if __name__ == "__main__":
    main()
