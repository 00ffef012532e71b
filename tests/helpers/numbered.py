"""Try numbered inputs of every operation; see `survey` for their numbers.

python -m tests.helpers.numbered run STATE.json --count 10000000    goes on where it stopped
python -m tests.helpers.numbered table STATE.json                   prints a Markdown table
python -m tests.helpers.numbered show add 2 fp64 123456             one input and its error

`--functions` is for elementary functions in place of arithmetic, `--formats` and `--terms` for some
of the cases.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import mcf
from mcf.elementary.function_bounds import FUNCTIONS
from mcf.kernels.formats import FP64, Format
from tests.helpers import function_survey, survey
from tests.helpers.survey import CHUNK, FORMATS
from tests.helpers.worst import OPERATIONS

Case = survey.Case | function_survey.Case
LENGTHS = (1, 2, 3, 4)

# Chunks between two records of what was found.
_STRIDE = 10


def run(state: Path, cases: list[Case], count: int) -> None:
    """Bring every case to `count` inputs, in rounds of four times more."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    groups: dict[tuple[Format, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.fmt, case.terms), []).append(case)
    wanted = 10 * CHUNK
    while True:
        wanted = min(wanted, count)
        for group in tqdm(groups.values(), desc=f"{wanted} inputs a case"):
            _extend(found, group, -(-wanted // CHUNK), state)
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
                new = case.trial(chunk)
            for what in ("broken", "disordered"):
                numbers = getattr(new, what)
                if numbers:
                    tqdm.write(f"{case}: {what} {numbers[:3]}")
                    entry[what] += numbers[:3]
            if new.error > entry["error"]:
                entry["error"], entry["number"] = new.error, new.number
            entry["chunks"] = chunk + 1
        if chunk % _STRIDE == _STRIDE - 1 or chunk == chunks - 1:
            written = state.with_suffix(".new")
            written.write_text(json.dumps(found))
            written.replace(state)


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
        for case in survey.cases(FORMATS[0], terms)
        if (case.operation, case.float_second) == operation
    ]
    for case in rows:
        cells = []
        for fmt in FORMATS:
            entry = found[str(dataclasses.replace(case, fmt=fmt))]
            cells.append(f"{entry['error']:.3f} ({entry['number']})")
        lines.append(f"| {case.label} | {case.terms} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_functions(state: Path) -> str:
    """The worst error of every function: for four float64 components in units of u^4.

    That with the number of its input; elsewhere the worst of all lengths, as a part of the bound.
    """
    found = json.loads(state.read_text())
    names = [f.name for f in FORMATS]
    lines = [
        "| function | " + " | ".join(names) + " | fp64 x 4 |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for function in FUNCTIONS:
        cells = []
        for fmt in FORMATS:
            some = [
                function_survey.Case(function, terms, fmt)
                for terms in LENGTHS
                if (fmt, terms) != (FP64, 4)
            ]
            cells.append(f"{max(found[str(c)]['error'] / c.bound for c in some):.4f}")
        entry = found[f"{function}-4-fp64"]
        cells.append(f"{entry['error']:.3f} ({entry['number']})")
        lines.append(f"| `{function}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def show(case: Case, number: int) -> None:
    """Print the components of an input, in hexadecimal, and the error of its result."""
    chunk, at = divmod(number, CHUNK)
    for k, argument in enumerate(case.arguments(chunk)):
        parts = ", ".join(float(t[at]).hex() for t in argument)
        print(f"{'xyz'[k]} = ({parts})")
    print(f"error {case.trial(chunk, slice(at, at + 1)).error:.6f} u^{case.terms}")


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the command line names."""
    kind: Any = function_survey if options.functions else survey
    return [
        case
        for fmt in FORMATS
        if fmt.name in options.formats
        for terms in options.terms
        for case in kind.cases(fmt, terms)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [f.name for f in FORMATS]
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "table"):
        command = commands.add_parser(name)
        command.add_argument("state", type=Path)
        command.add_argument("--functions", action="store_true", help="elementary functions")
        if name == "run":
            command.add_argument("--count", type=int, default=10**7, help="inputs per case")
            command.add_argument("--formats", nargs="+", choices=names, default=names)
            command.add_argument("--terms", nargs="+", type=int, choices=LENGTHS, default=LENGTHS)
    command = commands.add_parser("show")
    command.add_argument("operation")
    command.add_argument("terms", type=int, choices=LENGTHS)
    command.add_argument("format", choices=names)
    command.add_argument("number", type=int)
    command.add_argument("--float", action="store_true", help="the second argument is a float")
    options = parser.parse_args(arguments)
    if options.command == "run":
        run(options.state, chosen(options), options.count)
    elif options.command == "table":
        print((table_of_functions if options.functions else table)(options.state))
    else:
        fmt = next(f for f in FORMATS if f.name == options.format)
        case: Case
        if options.operation in FUNCTIONS:
            case = function_survey.Case(options.operation, options.terms, fmt)
        else:
            case = survey.Case(options.operation, options.float, options.terms, fmt)
        show(case, options.number)


if __name__ == "__main__":
    main()
