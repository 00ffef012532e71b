"""Search for the worst case of every operation; see `survey` for the numbers of inputs.

python -m tests.helpers.search run STATE.json --count 10000000    goes on where it stopped
python -m tests.helpers.search table STATE.json                   prints a Markdown table
python -m tests.helpers.search show add 2 fp64 123456             one input and its error
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import mcf
from tests.helpers.survey import CHUNK, FORMATS, Case, cases, inputs, trial
from tests.helpers.worst import OPERATIONS

# Chunks between two records of what was found.
_STRIDE = 10


def run(state: Path, count: int) -> None:
    """Bring every case to `count` inputs, in rounds of ten times more."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    wanted = 10 * CHUNK
    while True:
        wanted = min(wanted, count)
        for fmt in FORMATS:
            for terms in (1, 2, 3, 4):
                _extend(found, list(cases(fmt, terms)), wanted // CHUNK, state)
        if wanted == count:
            return
        wanted *= 4


def _extend(found: dict[str, Any], group: list[Case], chunks: int, state: Path) -> None:
    first = min(found.get(str(c), {}).get("chunks", 0) for c in group)
    for chunk in range(first, chunks):
        for case in group:
            empty = {"chunks": 0, "error": -1.0, "number": 0, "broken": [], "disordered": []}
            entry = found.setdefault(str(case), empty)
            if entry["chunks"] > chunk:
                continue
            with mcf.executor("numba"):
                new = trial(case, chunk)
            for what in ("broken", "disordered"):
                numbers = getattr(new, what)
                if numbers:
                    print(f"{case}: {what} {numbers[:3]}", flush=True)
                    entry[what] += numbers[:3]
            if new.error > entry["error"]:
                entry["error"], entry["number"] = new.error, new.number
            entry["chunks"] = chunk + 1
        if chunk % _STRIDE == _STRIDE - 1 or chunk == chunks - 1:
            written = state.with_suffix(".new")
            written.write_text(json.dumps(found))
            written.replace(state)
            print(f"{group[0].fmt.name} {group[0].terms}: {chunk + 1} chunks", flush=True)


def table(state: Path) -> str:
    """The worst error of every case in units of u^n, and the number of its input."""
    found = json.loads(state.read_text())
    lines = [
        "| operation | n | " + " | ".join(f.name for f in FORMATS) + " |",
        "|---|---|" + "---|" * len(FORMATS),
    ]
    rows = [
        case
        for operation in OPERATIONS
        for terms in (1, 2, 3, 4)
        for case in cases(FORMATS[0], terms)
        if (case.operation, case.float_second) == operation
    ]
    for case in rows:
        cells = []
        for fmt in FORMATS:
            entry = found[str(Case(case.operation, case.float_second, case.terms, fmt))]
            cells.append(f"{entry['error']:.3f} ({entry['number']})")
        lines.append(f"| {case.label} | {case.terms} | {' | '.join(cells)} |")
    return "\n".join(lines)


def show(case: Case, number: int) -> None:
    """Print the components of an input, in hexadecimal, and the error of its result."""
    chunk, at = divmod(number, CHUNK)
    for k, argument in enumerate(inputs(case, chunk)):
        parts = ", ".join(float(t[at]).hex() for t in argument)
        print(f"{'xyz'[k]} = ({parts})")
    print(f"error {trial(case, chunk, slice(at, at + 1)).error:.6f} u^{case.terms}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("state", type=Path)
    command.add_argument("--count", type=int, default=10**7, help="inputs per case")
    command = commands.add_parser("table")
    command.add_argument("state", type=Path)
    command = commands.add_parser("show")
    command.add_argument("operation")
    command.add_argument("terms", type=int)
    command.add_argument("format", choices=[f.name for f in FORMATS])
    command.add_argument("number", type=int)
    command.add_argument("--float", action="store_true", help="the second argument is a float")
    options = parser.parse_args()
    if options.command == "run":
        run(options.state, options.count)
    elif options.command == "table":
        print(table(options.state))
    else:
        fmt = next(f for f in FORMATS if f.name == options.format)
        show(Case(options.operation, options.float, options.terms, fmt), options.number)


if __name__ == "__main__":
    main()
