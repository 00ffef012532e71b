"""What Triton takes to compile the elementary functions, for GPUs that need not be there.

    python benchmarks/compilation.py             # pairs of float64 for three targets: half an hour
    python benchmarks/compilation.py --functions exp digamma --targets sm_90 --terms 2 4
    python benchmarks/compilation.py --kinds "float32 in float32"
    python benchmarks/compilation.py --report    # the table of what is recorded

Processor seconds of one compilation from nothing, all of its processes (Python's front end, the
passes of Triton and LLVM, ptxas); the first of a process, which imports things, is not counted.
Registers of a thread, bytes of stack (what is spilled) and instructions are of the machine code for
one element. Each row is kept in benchmarks/results/ as soon as it is there, in place of an older
one of its kind.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from harness import environment, machine, merge_csv, table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mcf.elementary import fused  # noqa: E402
from mcf.elementary.operator import IN_FLOAT32  # noqa: E402
from mcf.kernels.elementwise import Elementwise  # noqa: E402
from mcf.kernels.formats import FP32, FP64  # noqa: E402
from tests.kernels import machine_code  # noqa: E402

# Components' format and the registers'.
KINDS = {"float64": (FP64, FP64), "float32": (FP32, FP64), "float32 in float32": (FP32, FP32)}
TARGETS = ("sm_80", "sm_90", "sm_100")
FUNCTIONS = (*sorted(fused.FUNCTIONS), *(f"complex_{name}" for name in sorted(fused.COMPLEX)))
KEY = ("function", "kind", "terms", "target")
QUANTITIES = ("seconds", "registers", "bytes of stack", "instructions")


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def kernel(function: str, kind: str, terms: int) -> Elementwise | None:
    """The kernel of a function; None where it has none of this kind."""
    fmt, register = KINDS[kind]
    if register is FP32 and function not in IN_FLOAT32:
        return None
    count = len(fused.PROGRAMS[function].arguments)
    return fused.kernel(function, fmt, *(terms,) * count, register=register)


def compiled(spec: Elementwise, target: str) -> dict[str, Any]:
    """What a compilation takes and what it makes."""
    start = processor_seconds()
    cubin = machine_code.compile_kernel(spec, target).asm["cubin"]
    seconds = processor_seconds() - start
    return {
        "seconds": f"{seconds:.1f}",
        "registers": machine_code.registers(cubin),
        "bytes of stack": machine_code.stack_bytes(cubin),
        "instructions": len(machine_code.sass_instructions(cubin)),
    }


def rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One for each function, kind, number of components and target."""
    compiled(fused.kernel("floor", FP64, 2), "sm_90")
    for terms in given.terms:
        for kind in given.kinds:
            for function in given.functions:
                spec = kernel(function, kind, terms)
                for target in given.targets if spec is not None else ():
                    key = dict(zip(KEY, (function, kind, terms, target), strict=True))
                    yield key | compiled(spec, target)


def report(found: Iterable[Mapping[str, Any]]) -> str:
    """The rows, a line for each function and the targets side by side."""
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in found:
        name = tuple(str(row[k]) for k in KEY[:3])
        line = lines.setdefault(name, dict(zip(KEY[:3], name, strict=True)))
        line[row["target"]] = ", ".join(str(row[q]) for q in QUANTITIES)
    columns = [*KEY[:3], *TARGETS]
    ordered = [lines[name] for name in sorted(lines, key=lambda name: (*name[1:], name[0]))]
    return table([dict.fromkeys(columns, "") | line for line in ordered], columns)


def main() -> None:
    """Compile, keep the rows and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--functions", nargs="*", default=FUNCTIONS, choices=FUNCTIONS)
    parser.add_argument("--kinds", nargs="*", default=["float64"], choices=KINDS)
    parser.add_argument("--terms", nargs="*", type=int, default=[2], choices=(1, 2, 3, 4))
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--report", action="store_true", help="compile nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    device = torch.device("cpu")
    path = given.out / f"compilation-{machine(device)}.csv"
    if given.report:
        lines = path.read_text().splitlines()
        print(report(csv.DictReader(line for line in lines if not line.startswith("#"))))
        return
    about = environment(device) | {"command": "python benchmarks/compilation.py"}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        for row in rows(given):
            print(*row.values(), sep=", ", flush=True)
            merge_csv(path, [row], about, KEY)


if __name__ == "__main__":
    main()
