"""Count what one call passes through: Python calls, files, and moves from one file to another.

    python benchmarks/call_paths.py                    # four paths, a table
    python benchmarks/call_paths.py --files step       # the files and functions of one, in order
    python benchmarks/call_paths.py --host             # also microseconds, beside torch's

Each path is repeated first, so that what is compiled, planned or remembered is there. Calls are
those of this project's Python functions (sys.setprofile); "others" are torch's and the standard
library's. A move is a call in another file than the one before. The step is that of one bf16
parameter of one element under AdamW(precision="plus"); product and two_sum are of one element, the
sum is of four on the torch executor. Counts differ by a few with the number of the step, and not
from machine to machine; times do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

import mcf
from mcf.optim import AdamW

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("optim", "mcf", "kernels")


class Passed(NamedTuple):
    """The functions that one call passes through, as (file, name), and the number of others."""

    functions: list[tuple[str, str]]
    others: int

    @property
    def files(self) -> list[str]:
        """The files, in the order of their first call."""
        return list(dict.fromkeys(file for file, _ in self.functions))

    @property
    def moves(self) -> int:
        """How often a call is in another file than the one before."""
        return sum(a[0] != b[0] for a, b in pairwise(self.functions))


def passed(call: Callable[[], Any]) -> Passed:
    """What one call passes through, after some that warm it up."""
    for _ in range(5):
        call()
    functions: list[tuple[str, str]] = []
    others = 0

    def seen(frame: FrameType, event: str, _: object) -> None:
        nonlocal others
        if event != "call":
            return
        file = _file(frame.f_code.co_filename)
        if file:
            functions.append((file, _name(frame.f_code)))
        else:
            others += 1

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Passed(functions, others)


def _name(code: CodeType) -> str:
    # Of Python 3.11.
    return getattr(code, "co_qualname", code.co_name)


def _file(name: str) -> str:
    """A file's path in the project, "" for those of others."""
    path = Path(name)
    if not path.is_absolute() or "site-packages" in path.parts:
        return ""
    # In an installed checkout folders are reached through links.
    resolved = path.resolve()
    if ROOT not in resolved.parents:
        return ""
    inner = resolved.relative_to(ROOT)
    return str(inner) if inner.parts[0] in FOLDERS else ""


def step(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[], Any]:
    """Return the step of an optimizer of one bf16 parameter of one element, after 20 steps."""
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    p.grad = torch.ones_like(p)
    optimizer = kind([p], lr=1e-3, **options)
    # In the first 16 steps ours look for updates that are lost.
    for _ in range(20):
        optimizer.step()
    return optimizer.step


def paths() -> dict[str, Callable[[], Any]]:
    """What is counted, by name."""
    a = mcf.tensor([1.5], terms=2)
    b = mcf.tensor([2.5], terms=2)
    c = mcf.tensor([1.5, 2.5, 3.5, 4.5], terms=2)
    x, y = torch.ones(1), torch.ones(1)

    def sum_by_torch() -> Any:
        with mcf.executor("torch"):
            return c.sum()

    return {
        "step": step(AdamW, precision="plus"),
        "a * b": lambda: a * b,
        "two_sum": lambda: mcf.two_sum(x, y),
        "sum": sum_by_torch,
    }


def beside_torch() -> dict[str, Callable[[], Any]]:
    """What torch does in place of each path."""
    x, y = torch.ones(1), torch.ones(1)
    return {
        "step": step(torch.optim.AdamW, fused=True),
        "a * b": lambda: x * y,
        "two_sum": lambda: x + y,
        "sum": lambda: torch.ones(4).sum(),
    }


def microseconds(calls: list[Callable[[], Any]], rounds: int = 200, each: int = 20) -> list[float]:
    """The median time of each call; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(each):
                call()
            found.append((time.perf_counter() - start) / each * 1e6)
    return [median(found) for found in times]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--files", metavar="PATH", help="list the files and functions of one path")
    parser.add_argument("--host", action="store_true", help="also time the calls beside torch's")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = paths()
    if args.files is not None:
        if args.files not in known:
            parser.error(f"--files {args.files!r}; allowed are {', '.join(map(repr, known))}")
        previous = None
        for file, name in passed(known[args.files]).functions:
            if file != previous:
                print(file)
            print(f"    {name}")
            previous = file
        return
    columns = ["calls", "others", "files", "moves"] + ["µs", "torch µs"] * args.host
    print(f"{'path':10}" + "".join(f"{c:>10}" for c in columns))
    for name, call in known.items():
        found = passed(call)
        counts = (len(found.functions), found.others, len(found.files), found.moves)
        line = f"{name:10}" + "".join(f"{n:10}" for n in counts)
        if args.host:
            times = microseconds([call, beside_torch()[name]])
            line += "".join(f"{t:10.1f}" for t in times)
        print(line)


if __name__ == "__main__":
    main()
