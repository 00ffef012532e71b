"""Search for the worst inputs of arithmetic and of elementary functions by mutation.

python -m tests.helpers.search run STATE.json --seconds 60     goes on where it stopped
python -m tests.helpers.search record STATE.json               into worst_inputs.json
python -m tests.helpers.search remeasure                       the record, after a change of bounds
python -m tests.helpers.search table                           prints what is recorded, in Markdown
python -m tests.helpers.search show div-3-fp32                 one recorded input and its error

`--operations`, `--terms` and `--formats` choose the cases of a run; `functions` and `arithmetic`
stand for all of either. A case is climbed again and again, seed by seed (`arithmetic_search` and
`function_search` say from where), 70 generations each, until it has had its seconds of processor
time with those recorded before. A seed repeats its climb. With `--known` climbs start from what is
recorded, too: then they can be repeated only with the same record.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import mcf
from mcf.elementary.function_bounds import FUNCTIONS
from tests.helpers import arithmetic_search, function_search, function_survey, survey
from tests.helpers.climbing import Climb
from tests.helpers.mutation import Array, Inputs
from tests.helpers.survey import FORMATS
from tests.helpers.worst import OPERATIONS

WORST = Path(__file__).with_name("worst_inputs.json")
GENERATIONS = 70

LENGTHS = (1, 2, 3, 4)
Case = survey.Case | function_survey.Case
ARITHMETIC = {str(case): case for case in survey.ALL}
OF_FUNCTIONS = {
    str(case): case
    for fmt in FORMATS
    for terms in LENGTHS
    for case in function_survey.cases(fmt, terms)
}
CASES: dict[str, Case] = {**ARITHMETIC, **OF_FUNCTIONS}


def climb(case: Case, seed: int, **options: Any) -> Climb:
    """A climb of a case, see the modules of either kind."""
    if isinstance(case, survey.Case):
        return arithmetic_search.climb(case, seed, **options)
    return function_search.climb(case, seed, **options)


def measured(case: Case, inputs: Inputs) -> tuple[Array, Array]:
    """Errors in u^n, and the part of the bound that each is, with bits to spare."""
    if isinstance(case, survey.Case):
        return arithmetic_search.measured(case, inputs)
    return function_search.measured(case, inputs)


def run(state: Path, cases: Sequence[Case], seconds: float, known: bool = False) -> None:
    """Search each case until it has had so many seconds."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    kept = recorded()
    for case in tqdm(cases):
        old = kept.get(str(case), {})
        entry = found.setdefault(
            str(case), {"seconds": 0.0, "seeds": old.get("seeds", 0), "part": -1.0}
        )
        options = {"known": known_inputs(old)} if known and old else {}
        left = seconds - old.get("seconds", 0)
        with mcf.executor("numba"):
            # The first call compiles.
            climb(case, 0, children=8)
            while entry["seconds"] < left:
                began, spent = time.process_time(), 0.0
                one = climb(case, entry["seeds"], **options)
                while one.generation < GENERATIONS and entry["seconds"] + spent < left:
                    one.step()
                    spent = time.process_time() - began
                best = one.found()
                if best.score > entry["part"]:
                    arguments = [[v.hex() for v in a] for a in best.arguments]
                    entry |= {"part": best.score, "seed": entry["seeds"]}
                    entry |= {"generation": best.generation, "arguments": arguments}
                    entry.pop("known", None)
                    entry |= {"known": True} if options else {}
                entry["seeds"] += 1
                entry["seconds"] += spent
        if entry["part"] > 1:
            tqdm.write(f"{case}: {entry['part']:.3f} of the bound")
        _write(state, json.dumps(found))


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def inputs_of(arguments: Sequence[Sequence[str]]) -> Inputs:
    """One input from its hexadecimal components."""
    return [np.array([[float.fromhex(v)] for v in a]) for a in arguments]


def known_inputs(entry: dict[str, Any]) -> list[Inputs]:
    """All inputs of a record."""
    return [inputs_of(a) for a in (entry["arguments"], *entry.get("others", ()))]


def recorded() -> dict[str, Any]:
    """The worst inputs that are kept with the tests, by case.

    An entry has the error in u^n, the part of the bound that it is, how it was found, the seconds
    that were searched, the seed of the next climb, and the components; `others` are inputs that
    were worst before, or for what an algorithm was before.
    """
    found: dict[str, Any] = json.loads(WORST.read_text(encoding="utf-8"))
    return found


def record(state: Path) -> None:
    """Keep what was found, where it is worse than what was kept or that is not there."""
    kept = recorded() if WORST.exists() else {}
    found = json.loads(state.read_text())
    for name, entry in tqdm(found.items()):
        if not entry["seconds"]:
            continue
        old, case = kept.get(name, {}), CASES[name]
        with mcf.executor("torch"):
            error, part = (v[0] for v in measured(case, inputs_of(entry["arguments"])))
            before = measured(case, inputs_of(old["arguments"]))[1][0] if old else -np.inf
        if part > before:
            keys = ("seed", "generation", "known", "arguments")
            new = {k: entry[k] for k in keys if k in entry}
            others = {"others": old["others"]} if "others" in old else {}
            best = {"error": f"{error:.3f}", "part": f"{part:.3f}", **new, **others}
        else:
            best = old
        seconds = round(entry["seconds"] + old.get("seconds", 0), 1)
        kept[name] = {"seconds": seconds, "seeds": entry["seeds"]}
        kept[name] |= {k: v for k, v in best.items() if k not in kept[name]}
        # They are in the record now.
        entry["seconds"] = 0.0
    _keep(kept)
    _write(state, json.dumps(found))


def remeasure() -> None:
    """Measure what is kept again, after a change of bounds."""
    kept = recorded()
    for name, entry in tqdm(kept.items()):
        with mcf.executor("torch"):
            error, part = (v[0] for v in measured(CASES[name], inputs_of(entry["arguments"])))
        entry |= {"error": f"{error:.3f}", "part": f"{part:.3f}"}
    _keep(kept)


def _keep(kept: dict[str, Any]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in CASES if name in kept]
    _write(WORST, "{\n" + ",\n".join(lines) + "\n}\n")


def _rows(name: str) -> list[tuple[str, int, list[str]]]:
    """Of a table: an operation or function, a length, and the names of the cases of each format."""
    if name == "arithmetic":
        return [
            (row[0].label, terms, [str(c) for c in row])
            for operation, float_second in OPERATIONS
            for terms in LENGTHS[float_second:]
            for row in [[survey.Case(operation, float_second, terms, f) for f in FORMATS]]
        ]
    return [
        (f"`{function}`", terms, [f"{function}-{terms}-{f.name}" for f in FORMATS])
        for function in FUNCTIONS
        for terms in LENGTHS
    ]


def _header(first: str) -> list[str]:
    names = " | ".join(f.name for f in FORMATS)
    return [f"| {first} | n | {names} |", "|---|---|" + "---|" * len(FORMATS)]


def table() -> str:
    """The worst error of every case of arithmetic, in units of u^n."""
    found, lines = recorded(), _header("operation")
    for label, terms, names in _rows("arithmetic"):
        cells = " | ".join(found.get(name, {"error": ""})["error"] for name in names)
        lines.append(f"| {label} | {terms} | {cells} |")
    return "\n".join(lines)


def effort() -> str:
    """Seconds of processor time of a case, least and most; the largest part of a bound found."""
    found, lines = recorded(), _header("what")
    for kind in ("arithmetic", "functions"):
        for terms in LENGTHS:
            cells = []
            columns = zip(*(names for _, n, names in _rows(kind) if n == terms), strict=True)
            for column in columns:
                seconds = [found.get(name, {"seconds": 0})["seconds"] for name in column]
                parts = [float(found[name]["part"]) for name in column if name in found]
                least, most = (f"{x:.2g}" for x in (min(seconds), max(seconds)))
                span = f"{least} s" if least == most else f"{least} to {most} s"
                cells.append(span + (f", {max(parts):.3f}" if parts else ""))
            lines.append(f"| {kind} | {terms} | {' | '.join(cells)} |")
    return "\n".join(lines)


def show(name: str) -> str:
    """One recorded input and its error."""
    entry = recorded()[name]
    lines = [
        f"{letter} = ({', '.join(argument)})"
        for letter, argument in zip("xyz", entry["arguments"], strict=False)
    ]
    error = f"error {entry['error']} u^{CASES[name].terms}, {entry['part']} of the bound"
    return "\n".join([*lines, error])


def chosen(operations: Sequence[str], terms: Sequence[int], formats: Sequence[str]) -> list[Case]:
    """Cases of a run."""
    names = {n for n, _ in OPERATIONS} if "arithmetic" in operations else set()
    names |= set(FUNCTIONS) if "functions" in operations else set()
    names |= set(operations)
    return [
        case
        for case in CASES.values()
        if (case.operation if isinstance(case, survey.Case) else case.function) in names
        and case.terms in terms
        and case.fmt.name in formats
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("state", type=Path)
    command.add_argument("--seconds", type=float, default=60.0, help="for each case")
    command.add_argument("--known", action="store_true", help="start from what is recorded, too")
    formats = [f.name for f in FORMATS]
    names = ["arithmetic", "functions", *dict.fromkeys(n for n, _ in OPERATIONS), *FUNCTIONS]
    command.add_argument("--formats", nargs="+", choices=formats, default=formats)
    command.add_argument("--terms", nargs="+", type=int, choices=LENGTHS, default=LENGTHS)
    command.add_argument("--operations", nargs="+", choices=names, default=["arithmetic"])
    commands.add_parser("record").add_argument("state", type=Path)
    commands.add_parser("remeasure")
    commands.add_parser("table")
    commands.add_parser("show").add_argument("case", choices=recorded(), metavar="CASE")
    options = parser.parse_args(arguments)
    if options.command == "run":
        cases = chosen(options.operations, options.terms, options.formats)
        run(options.state, cases, options.seconds, options.known)
    elif options.command == "record":
        record(options.state)
    elif options.command == "remeasure":
        remeasure()
    elif options.command == "table":
        print(table(), effort(), sep="\n\n")
    else:
        print(show(options.case))


if __name__ == "__main__":
    main()
