"""Time what should be as fast as memory is: comparisons, choices, scans, sums, extremes, sorts.

    python benchmarks/bandwidth.py                        # a row, a square, rows of ten; 1e6 pairs
    python benchmarks/bandwidth.py --operations cumsum amax --terms 4 --threads 2
    python benchmarks/bandwidth.py --size 2e4             # in the caches

For each operation and each layout the bytes that it has to read and write, over its time, as a
share of what `copy_` of the tensor's bytes moves in the same rounds: 1 is the memory's speed. Both
take turns, and the least of many rounds counts, which other processes disturb least: of one thread
the processor's time, of more the clock's. Results go to benchmarks/results/.

Large results are new memory, which the system hands out a page at a time and may want back at once;
MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_MMAP_THRESHOLD_=8589934592 before the command lets glibc
keep it, so that kernels are timed and not the system.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, machine, merge_csv, table

import mcf

COLUMNS = ["shape", "dim", "operation", "terms", "dtype", "threads", "µs", "copy µs", "share"]

# Of tensors x and y, a condition, x sorted and a dimension; bytes moved for each element of so many
# bytes.
Call = Callable[[Any, Any, Any, Any, int], Any]
OPERATIONS: dict[str, tuple[Call, Callable[[int], float]]] = {
    "clone": (lambda x, y, c, s, d: x.clone(), lambda b: 2 * b),
    "x < y": (lambda x, y, c, s, d: x < y, lambda b: 2 * b + 1),
    "x == y": (lambda x, y, c, s, d: x == y, lambda b: 2 * b + 1),
    "maximum": (lambda x, y, c, s, d: torch.maximum(x, y), lambda b: 3 * b),
    "clamp": (lambda x, y, c, s, d: torch.clamp(x, 4.0, 2.0**30), lambda b: 2 * b),
    "where": (lambda x, y, c, s, d: torch.where(c, x, y), lambda b: 3 * b + 1),
    "isclose": (lambda x, y, c, s, d: torch.isclose(x, y), lambda b: 2 * b + 1),
    "lerp": (lambda x, y, c, s, d: torch.lerp(x, y, 0.3), lambda b: 3 * b),
    "heaviside": (lambda x, y, c, s, d: torch.heaviside(x, y), lambda b: 3 * b),
    "leaky_relu": (lambda x, y, c, s, d: F.leaky_relu(x), lambda b: 2 * b),
    "huber_loss": (lambda x, y, c, s, d: F.huber_loss(x, y, "none"), lambda b: 3 * b),
    "frexp": (lambda x, y, c, s, d: torch.frexp(x), lambda b: 2 * b + 4),
    "dot": (lambda x, y, c, s, d: torch.dot(x.reshape(-1), y.reshape(-1)), lambda b: 2 * b),
    "x[mask]": (lambda x, y, c, s, d: x[c], lambda b: 1.5 * b + 1),
    "searchsorted": (lambda x, y, c, s, d: torch.searchsorted(s, y), lambda b: 2 * b + 8),
    "unique": (lambda x, y, c, s, d: x.unique(), lambda b: 2 * b),
}
ALONG: dict[str, tuple[Call, Callable[[int], float]]] = {
    "cumsum": (lambda x, y, c, s, d: x.cumsum(d), lambda b: 2 * b),
    "cumprod": (lambda x, y, c, s, d: x.cumprod(d), lambda b: 2 * b),
    "cummax": (lambda x, y, c, s, d: x.cummax(d), lambda b: 2 * b + 8),
    "sum": (lambda x, y, c, s, d: x.sum(d), lambda b: b),
    "mean": (lambda x, y, c, s, d: x.mean(d), lambda b: b),
    "prod": (lambda x, y, c, s, d: x.prod(d), lambda b: b),
    "amax": (lambda x, y, c, s, d: x.amax(d), lambda b: b),
    "argmax": (lambda x, y, c, s, d: x.argmax(d), lambda b: b),
    "var": (lambda x, y, c, s, d: x.var(d), lambda b: b),
    "norm": (lambda x, y, c, s, d: torch.linalg.vector_norm(x, dim=d), lambda b: b),
    "sort": (lambda x, y, c, s, d: x.sort(d), lambda b: 2 * b + 8),
    "median": (lambda x, y, c, s, d: x.median(d), lambda b: b),
}


def operand(shape: tuple[int, ...], terms: int, dtype: torch.dtype, seed: int) -> Any:
    """Whole numbers, and below each half of a unit of its last place others."""
    generator = torch.Generator().manual_seed(seed)
    bits = -round(math.log2(torch.finfo(dtype).eps))
    parts = [
        torch.randint(1 << (bits - 1), 1 << bits, shape, generator=generator).double()
        * 2.0 ** (-(bits + 2) * k)
        for k in range(terms)
    ]
    return mcf.MCFTensor([p.to(dtype) for p in parts])


def least(
    call: Callable[[], Any],
    copy: Callable[[], Any],
    budget: float,
    clock: Callable[[], float],
) -> tuple[float, float]:
    """The least seconds of both, which take turns for so many seconds."""
    found, end, rounds = [math.inf, math.inf], time.perf_counter() + budget, 0
    call()
    while rounds < 3 or time.perf_counter() < end:
        for k, each in enumerate((call, copy)):
            start = clock()
            each()
            found[k] = min(found[k], clock() - start)
        rounds += 1
    return found[0], found[1]


def rows_of(shape: tuple[int, ...], options: Any) -> list[dict[str, Any]]:
    """A row for each operation and dimension."""
    dtype = getattr(torch, options.dtype)
    x, y = (operand(shape, options.terms, dtype, seed) for seed in (0, 1))
    condition = x.components[0] > y.components[0]
    ordered = x.reshape(-1).sort().values
    size = options.terms * torch.finfo(dtype).bits // 8
    source = torch.zeros(x.numel() * size, dtype=torch.uint8)
    target = torch.zeros_like(source)
    cases = [(name, 0, *case) for name, case in OPERATIONS.items()]
    cases += [(name, d, *case) for name, case in ALONG.items() for d in range(len(shape))]
    rows = []
    for name, dim, function, moved in cases:
        if options.operations and name not in options.operations:
            continue
        ours, copy = least(
            lambda f=function, d=dim: f(x, y, condition, ordered, d),  # type: ignore[misc]
            lambda: target.copy_(source),
            options.seconds,
            time.thread_time if options.threads == 1 else time.perf_counter,
        )
        share = moved(size) / ours / (2 * size / copy)
        cells = (f"{1e6 * ours:.0f}", f"{1e6 * copy:.0f}", f"{share:.2f}")
        values = ("x".join(map(str, shape)), dim if name in ALONG else "", name, options.terms)
        values += (options.dtype, options.threads, *cells)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def main() -> None:
    """Print a table and save it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=float, default=1e6, help="elements")
    parser.add_argument("--terms", type=int, default=2, help="components")
    parser.add_argument("--dtype", default="float64", help="of the components")
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each row")
    parser.add_argument("--operations", nargs="+", help="some of them")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = int(options.size)
    side = math.isqrt(size)
    rows: list[dict[str, Any]] = []
    for shape in ((size,), (side, side), (size // 10, 10)):
        rows += rows_of(shape, options)
    print(table(rows, COLUMNS), flush=True)
    cpu = torch.device("cpu")
    path = options.out / f"bandwidth-{machine(cpu)}.csv"
    command = "python benchmarks/bandwidth.py " + " ".join(sys.argv[1:])
    about = {"command": command.strip(), **environment(cpu)}
    merge_csv(path, rows, about, ("shape", "dim", "operation", "terms", "dtype", "threads"))
    print(f"saved {path}")


if __name__ == "__main__":
    main()
