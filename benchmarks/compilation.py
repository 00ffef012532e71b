"""What Triton takes to compile operations and functions, for GPUs that need not be there.

    python benchmarks/compilation.py             # pairs of float64 for three targets: half an hour
    python benchmarks/compilation.py --functions three_bodies three_bodies_backward
    python benchmarks/compilation.py --functions exp digamma --targets sm_90 --terms 2 4
    python benchmarks/compilation.py --kinds "float32 in float32"
    python benchmarks/compilation.py --report    # the table of what is recorded

Processor seconds of one compilation from nothing, all of its processes (Python's front end, the
passes of Triton and LLVM, ptxas); the first of a process, which imports things, is not counted.
Registers of a thread, bytes of stack (what is spilled) and instructions are of the machine code for
one element of a function, and for eight (four of three and four components) of an operation.
"three_bodies" is a step of three bodies by `mcf.fused`, "three_bodies_backward" one that keeps what
its derivatives need, and they; a program that is several kernels has a row for each, numbered. Each
row is kept in benchmarks/results/ as soon as it is there, in place of an older one of its kind.
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
from mcf.elementary.operator import IN_FLOAT32, with_kernels  # noqa: E402
from mcf.kernels import operators  # noqa: E402
from mcf.kernels.elementwise import Elementwise  # noqa: E402
from mcf.kernels.formats import FP32, FP64  # noqa: E402
from mcf.kernels.register_choice import registers  # noqa: E402
from tests.helpers.programs import derivative_kernels, step_kernels  # noqa: E402
from tests.kernels import machine_code  # noqa: E402

# Components' format and the registers'.
KINDS = {"float64": (FP64, FP64), "float32": (FP32, FP64), "float32 in float32": (FP32, FP32)}
TARGETS = ("sm_80", "sm_90", "sm_100")
OPERATION = {o.name: o for o in operators.OPERATIONS}
FUNCTIONS = (*with_kernels(), *with_kernels(2))
PROGRAM = {"three_bodies": step_kernels, "three_bodies_backward": derivative_kernels}
KEY = ("function", "kind", "terms", "target")
QUANTITIES = ("seconds", "registers", "bytes of stack", "instructions")


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def kernels(function: str, kind: str, terms: int) -> dict[str, Elementwise]:
    """The kernels of a function by name; none where it has none of this kind."""
    fmt, register = KINDS[kind]
    if function in OPERATION:
        # Their registers are the format's.
        if fmt is FP32 and register is FP64:
            return {}
        given = (terms,) * len(OPERATION[function].arguments)
        return {function: operators.kernel(OPERATION[function], fmt, *given)}
    if function in PROGRAM:
        with registers("float32" if register is FP32 else "float64"):
            made = PROGRAM[function](terms, fmt.dtype)
        names = [function if k == 1 else f"{function} {k}" for k in range(1, len(made) + 1)]
        return dict(zip(names, made, strict=True))
    if register is FP32 and function not in IN_FLOAT32:
        return {}
    count = len(fused.PROGRAMS[function].arguments)
    return {function: fused.kernel(function, fmt, *(terms,) * count, register=register)}


def compiled(spec: Elementwise, target: str, runs: int = 1) -> dict[str, Any]:
    """What a compilation takes, the least of some runs, and what it makes."""
    taken = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            start = processor_seconds()
            # A program is launched from tables of addresses.
            made = machine_code.compile_kernel(spec, target, many=spec.few)
            taken.append(processor_seconds() - start)
    cubin = made.asm["cubin"]
    return {
        "seconds": f"{min(taken):.1f}",
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
                for name, spec in kernels(function, kind, terms).items():
                    for target in given.targets:
                        key = dict(zip(KEY, (name, kind, terms, target), strict=True))
                        yield key | compiled(spec, target, given.runs)


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


def recorded(folder: Path) -> list[dict[str, str]]:
    """The rows of all machines, which differ in seconds alone; of one there twice the last."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for path in sorted(folder.glob("compilation-*.csv")):
        lines = path.read_text().splitlines()
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            found[tuple(row[k] for k in KEY)] = row
    return [*found.values()]


def main() -> None:
    """Compile, keep the rows and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--functions", nargs="*", default=FUNCTIONS, choices=[*OPERATION, *FUNCTIONS, *PROGRAM]
    )
    parser.add_argument("--kinds", nargs="*", default=["float64"], choices=KINDS)
    parser.add_argument("--terms", nargs="*", type=int, default=[2], choices=(1, 2, 3, 4))
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--runs", type=int, default=1, help="of which the least counts")
    parser.add_argument("--report", action="store_true", help="compile nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    device = torch.device("cpu")
    path = given.out / f"compilation-{machine(device)}.csv"
    if given.report:
        print(report(recorded(given.out)))
        return
    about = environment(device) | {"command": "python benchmarks/compilation.py"}
    for row in rows(given):
        print(*row.values(), sep=", ", flush=True)
        merge_csv(path, [row], about, KEY)


if __name__ == "__main__":
    main()
