"""Search for the worst inputs of arithmetic by mutation; see `climbing` for how.

python -m tests.helpers.search run STATE.json --seconds 60     goes on where it stopped
python -m tests.helpers.search record STATE.json               into worst_inputs.json
python -m tests.helpers.search table                           prints what is recorded, in Markdown
python -m tests.helpers.search show div-3-fp32                 one recorded input and its error

A case is an operation, a number of components and a format. Its search climbs again and again, seed
by seed, the first populations being random bit patterns and the hard inputs of `survey`; every
second seed begins at the bottom of the range, where underflow is. What is maximised is the part of
the bound that an error is, beyond what underflow may cost; a result that is not normalised counts
as infinitely wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import mcf
from tests.helpers.climbing import Array, Found, Inputs, Space, climb, unrelated
from tests.helpers.expansions import tensors
from tests.helpers.residuals import residuals
from tests.helpers.survey import ALL, FORMATS, Case, ranges
from tests.helpers.worst import OPERATIONS, apply

WORST = Path(__file__).with_name("worst_inputs.json")
CASES = {str(case): case for case in ALL}

_ARGUMENTS = {"fma": 3, "add": 2, "mul": 2, "div": 2}


def shapes(case: Case) -> list[int]:
    """Components of each argument."""
    if case.operation == "renormalize":
        return [2 * max(2, case.terms)]
    if case.float_second:
        return [case.terms, 1]
    return [case.terms] * _ARGUMENTS.get(case.operation, 1)


def space(case: Case, *, bottom: bool = False) -> Space:
    """The inputs of a case in the middle of the range, or at its bottom."""
    low, high = ranges(case.fmt)[1] if bottom else (-3, 4)
    positive = case.operation in ("sqrt", "rsqrt")
    return Space(case.fmt, low, high, positive, case.operation == "renormalize")


def start(case: Case, seed: int, count: int) -> Inputs:
    """The first population: random bit patterns and hard inputs."""
    among = space(case, bottom=seed % 2 == 1)
    random = unrelated(among, shapes(case), count, np.random.default_rng([seed, 1]))
    hard = [torch.stack([t.double() for t in a]).numpy() for a in case.arguments(seed)]
    return [np.concatenate([r, h[:, :count]], axis=1) for r, h in zip(random, hard, strict=True)]


def trial(
    case: Case, inputs: Inputs, function: Callable[..., Any] | None = None
) -> tuple[Array, Array]:
    """Errors beyond what underflow may cost, in u^n, and the part of the bound that each is.

    Args:
        case: the operation.
        inputs: its arguments.
        function: what computes it in place of the library's.
    """
    given = [tensors(case.fmt, list(x)) for x in inputs]
    result = function(*given) if function else apply(case.operation, given, case.terms)
    found = residuals(case.operation, case.fmt, given, result)
    dtype, unit = case.fmt.dtype, 2 ** (case.terms * case.fmt.p)
    assert dtype is not None
    own = float(case.bound.relative(dtype) * unit)
    product = float(case.bound.relative_to_product(dtype) * unit)
    error = found.beyond(case.bound.absolute)
    part = error / (own + (product - own) * found.share)
    # A zero's error has no ratio; exact integers judge it where bounds are tested.
    part = np.where(np.isfinite(part), part, -1.0)
    return error, np.where(found.disordered, math.inf, part)


def searched(case: Case, seed: int, *, generations: int = 70, children: int = 8000) -> Found:
    """One climb."""
    return climb(
        space(case, bottom=seed % 2 == 1),
        start(case, seed, children),
        lambda inputs: trial(case, inputs)[1],
        seed=seed,
        generations=generations,
        children=children,
    )


def run(state: Path, cases: Sequence[Case], seconds: float) -> None:
    """Search each case until it has had so many seconds."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    for case in tqdm(cases):
        entry = found.setdefault(str(case), {"seconds": 0.0, "seeds": 0, "part": -1.0})
        with mcf.executor("numba"):
            # The first call compiles.
            trial(case, start(case, 0, 8))
            while entry["seconds"] < seconds:
                began = time.process_time()
                best = searched(case, entry["seeds"])
                if best.score > entry["part"]:
                    arguments = [[v.hex() for v in a] for a in best.arguments]
                    entry |= {"part": best.score, "seed": entry["seeds"]}
                    entry |= {"generation": best.generation, "arguments": arguments}
                entry["seeds"] += 1
                entry["seconds"] += time.process_time() - began
        if entry["part"] > 1:
            tqdm.write(f"{case}: {entry['part']:.3f} of the bound")
        state.write_text(json.dumps(found))


def inputs_of(arguments: Sequence[Sequence[str]]) -> Inputs:
    """One input from its hexadecimal components."""
    return [np.array([[float.fromhex(v)] for v in a]) for a in arguments]


def recorded() -> dict[str, Any]:
    """The worst inputs that are kept with the tests, by case."""
    found: dict[str, Any] = json.loads(WORST.read_text(encoding="utf-8"))
    return found


def record(state: Path) -> None:
    """Keep what was found, where it is worse than what was kept or that is not there."""
    kept = recorded() if WORST.exists() else {}
    for name, entry in json.loads(state.read_text()).items():
        old = kept.get(name)
        with mcf.executor("torch"):
            error = trial(CASES[name], inputs_of(entry["arguments"]))[0][0]
            before = trial(CASES[name], inputs_of(old["arguments"]))[0][0] if old else -1.0
        new = {k: entry[k] for k in ("seed", "generation", "arguments")}
        best = {"error": f"{error:.3f}", **new} if error > before else old
        seconds = round(entry["seconds"]) + (old["seconds"] if old else 0)
        kept[name] = {**best, "seconds": seconds}
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in CASES if name in kept]
    WORST.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def table() -> str:
    """The worst error of every case, in units of u^n."""
    found = recorded()
    lines = [
        "| operation | n | " + " | ".join(f.name for f in FORMATS) + " |",
        "|---|---|" + "---|" * len(FORMATS),
    ]
    for operation, float_second in OPERATIONS:
        for terms in range(2 if float_second else 1, 5):
            row = [Case(operation, float_second, terms, fmt) for fmt in FORMATS]
            cells = " | ".join(found.get(str(c), {"error": ""})["error"] for c in row)
            lines.append(f"| {row[0].label} | {terms} | {cells} |")
    return "\n".join(lines)


def _chosen(options: argparse.Namespace) -> list[Case]:
    return [
        case
        for case in ALL
        if case.fmt.name in options.formats
        and case.terms in options.terms
        and case.operation in options.operations
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
    names = [f.name for f in FORMATS]
    operations = list(dict.fromkeys(name for name, _ in OPERATIONS))
    command.add_argument("--formats", nargs="+", choices=names, default=names)
    command.add_argument("--terms", nargs="+", type=int, choices=(1, 2, 3, 4), default=(1, 2, 3, 4))
    command.add_argument("--operations", nargs="+", choices=operations, default=operations)
    commands.add_parser("record").add_argument("state", type=Path)
    commands.add_parser("table")
    commands.add_parser("show").add_argument("case", choices=CASES, metavar="CASE")
    options = parser.parse_args(arguments)
    if options.command == "run":
        run(options.state, _chosen(options), options.seconds)
    elif options.command == "record":
        record(options.state)
    elif options.command == "table":
        print(table())
    else:
        entry = recorded()[options.case]
        for name, argument in zip("xyz", entry["arguments"], strict=False):
            print(f"{name} = ({', '.join(argument)})")
        print(f"error {entry['error']} u^{CASES[options.case].terms}")


if __name__ == "__main__":
    main()
