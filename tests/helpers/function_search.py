"""Hill climbing for the worst cases of the elementary functions.

python -m tests.helpers.function_search run STATE.json --seconds 60 --formats fp64 --terms 3 4
python -m tests.helpers.function_search table STATE.json
python -m tests.helpers.function_search record STATE.json    into function_worst.json

The first inputs are those of `elementary.inputs` and what earlier searches found. A generation is
some thousand mutants (`mutation`) of the worst so far and of those of each leading exponent; every
eighth is new inputs. Errors come from MPFR (`references`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mcf
import mcf.elementary
from mcf.elementary.bounds import FUNCTIONS
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from tests.helpers.elementary import Components, inputs
from tests.helpers.function_survey import Case
from tests.helpers.mutation import Array, mutants
from tests.helpers.references import errors, full_precision

FORMATS = (BF16, FP16, FP32, FP64)
RECORD = Path(__file__).with_name("function_worst.json")

# Inputs of a generation; the worst of all and of each leading exponent from which they come.
GENERATION = 8192
_BEST, _OF_EACH = 512, 4
# Generations between two of new inputs.
_NEW = 8
# Where arguments below 2**-260 give what 0 gives: MPFR takes milliseconds for those.
_FLAT = ("exp", "cos", "cosh", "sigmoid", "erfc", "normal_cdf", "normal_pdf", "gelu", "gelu_tanh")


def inside(name: str, x: Array) -> Array:
    """Which arguments are within the domain, without its poles and ends; [terms, count]."""
    first, rest = x[0], x[1] if len(x) > 1 else np.zeros_like(x[0])
    size = np.abs(first)
    below_one = (size < 1) | ((size == 1) & (rest * np.sign(first) < 0))
    if name in ("log", "log2", "log10", "pow"):
        return first > 0
    if name == "log1p":
        return (first > -1) | ((first == -1) & (rest > 0))
    if name in ("asin", "acos", "atanh"):
        return below_one
    if name == "acosh":
        return (first > 1) | ((first == 1) & (rest > 0))
    return np.ones(first.shape, bool)


class Climb:
    """The worst inputs so far of a function, and how they came about.

    Args:
        case: function, components, format.
        seed: of the first inputs and of all mutations.
        size: inputs of a generation.
        known: whether what earlier searches found is among the first inputs.
    """

    def __init__(
        self, case: Case, seed: int = 0, size: int = GENERATION, known: bool = True
    ) -> None:
        self.case, self.seed, self.size = case, seed, size
        self.rng = np.random.default_rng(seed)
        self.evaluated, self.generation = 0, 0
        self.broken: list[tuple[Array, ...]] = []
        self.given, self.error = self._new()
        found = [row for at, _, row in recorded() if at == case]
        if known and found:
            given, error = self._measured(rows(found))
            self.given = [np.concatenate(p, 1) for p in zip(self.given, given, strict=True)]
            self.error = np.concatenate([self.error, error])

    def _new(self) -> tuple[list[Array], Array]:
        """Inputs of no parents, and their errors."""
        seed = self.seed + 1000 * self.generation
        batches = inputs(self.case.function, self.case.fmt, self.case.terms, self.size // 4, seed)
        columns = zip(*batches, strict=True)
        given = [
            np.concatenate([torch.stack(b).double().numpy() for b in column], axis=1)
            for column in columns
        ]
        return self._measured(given)

    def _measured(self, given: list[Array]) -> tuple[list[Array], Array]:
        """Those within the domain, with their errors; keeps what is infinite and should not be."""
        case = self.case
        good = inside(case.function, given[0])
        for x in given:
            good &= (x[0] != 0) & np.isfinite(x).all(0)
        # References hold 448 bits of an argument.
        given = [np.where(np.abs(x) < np.ldexp(np.abs(x[0]), -390), 0.0, x) for x in given]
        given = [np.ascontiguousarray(x[:, good]) for x in given]
        arguments = tuple(tensors(case.fmt, x) for x in given)
        result = getattr(mcf.elementary, case.function)(*arguments)
        found = errors(case.function, case.fmt, arguments, result)
        self.evaluated += given[0].shape[1]
        self.broken += [tuple(x[:, k] for x in given) for k in found.wrong]
        error = np.where(np.isfinite(found.relative), found.relative, -1.0)
        error[found.wrong] = -1.0
        return given, error

    def step(self) -> None:
        """One generation."""
        self.generation += 1
        keep = self._parents()
        self.given, self.error = [x[:, keep] for x in self.given], self.error[keep]
        if self.generation % _NEW == 0:
            given, error = self._new()
        else:
            # The worse the oftener.
            count = len(self.error)
            pick = np.minimum(
                self.rng.integers(0, count, self.size), self.rng.integers(0, count, self.size)
            )
            mates = self.rng.integers(0, count, self.size)
            low, high = self.case.fmt.emin, self.case.fmt.emax - 1
            low = max(low, -260) if self.case.function in _FLAT else low
            # Of two arguments one changes, or both do.
            which = self.rng.integers(0, 3, self.size)
            children = []
            for k, x in enumerate(self.given):
                child = mutants(self.rng, self.case.fmt, x[:, pick], x[:, mates], low, high)
                still = (which == k) if len(self.given) > 1 else np.zeros(self.size, bool)
                children.append(np.where(still, x[:, pick], child))
            given, error = self._measured(children)
        self.given = [np.concatenate(p, 1) for p in zip(self.given, given, strict=True)]
        self.error = np.concatenate([self.error, error])

    def _parents(self) -> Array:
        """Numbers of the worst of all, and of each leading exponent, the worst first."""
        order = np.argsort(-self.error, kind="stable")
        rows = np.concatenate([x[:, order] for x in self.given])
        _, first = np.unique(rows, axis=1, return_index=True)
        order = order[np.sort(first)]
        exponents = np.frexp(self.given[0][0][order])[1]
        by = np.argsort(exponents, kind="stable")
        _, start, counts = np.unique(exponents[by], return_index=True, return_counts=True)
        rank = np.arange(len(by)) - np.repeat(start, counts)
        few = by[(rank < _OF_EACH) & (self.error[order][by] > 0)]
        return order[np.union1d(np.arange(min(_BEST, len(order))), few[few < 8 * _BEST])]

    def worst(self, count: int = 1) -> list[tuple[float, list[list[str]]]]:
        """The worst errors, evaluated again with more bits, and their arguments in hexadecimal."""
        some = np.argsort(-self.error, kind="stable")[:count]
        given = [np.ascontiguousarray(x[:, some]) for x in self.given]
        again = measured(self.case, given)
        rows = [[[float(c).hex() for c in x[:, k]] for x in given] for k in range(len(some))]
        return sorted(zip(again.tolist(), rows, strict=True), key=lambda found: -found[0])


def rows(arguments: list[list[list[str]]]) -> list[Array]:
    """Recorded arguments, [terms, count] each."""
    columns = zip(*arguments, strict=True)
    return [np.array([[float.fromhex(c) for c in x] for x in column]).T for column in columns]


def tensors(fmt: Format, x: Array) -> Components:
    """Rows as components of a format."""
    return tuple(torch.from_numpy(np.ascontiguousarray(c)).to(fmt.dtype) for c in x)


def measured(case: Case, given: Sequence[Array]) -> Array:
    """Errors with at least four times the result's bits; infinite where finiteness differs."""
    arguments = tuple(tensors(case.fmt, x) for x in given)
    result = getattr(mcf.elementary, case.function)(*arguments)
    bits = full_precision(case.fmt, case.terms)
    found = errors(case.function, case.fmt, arguments, result, bits)
    error = np.where(np.isnan(found.relative), 0.0, found.relative)
    error[found.wrong] = np.inf
    return error


def recorded() -> Iterator[tuple[Case, float, list[list[str]]]]:
    """Worst cases that were found: case, error then, components of the arguments."""
    formats = {f.name: f for f in FORMATS}
    for row in json.loads(RECORD.read_text(encoding="utf-8")):
        case = Case(row["function"], row["terms"], formats[row["format"]])
        yield case, row["error"], row["arguments"]


def run(state: Path, cases: list[Case], seconds: float, seed: int) -> None:
    """Search every case for so long; what a case has found is kept, and it is not done again."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    for case in cases:
        if found.get(str(case), {}).get("seconds", 0) >= seconds:
            continue
        with mcf.executor("numba"):
            climb, start = Climb(case, seed), time.monotonic()
            start = time.monotonic()
            while time.monotonic() - start < seconds:
                climb.step()
            worst = climb.worst(4)
        found[str(case)] = {
            "function": case.function, "terms": case.terms, "format": case.fmt.name,
            "seconds": seconds, "evaluated": climb.evaluated, "worst": worst,
            "broken": [[[float(c).hex() for c in x] for x in row] for row in climb.broken[:4]],
        }  # fmt: skip
        print(
            f"{case}: {worst[0][0]:.4f} of {climb.evaluated}, {len(climb.broken)} broken",
            flush=True,
        )
        written = state.with_suffix(".new")
        written.write_text(json.dumps(found))
        written.replace(state)


def record(state: Path) -> None:
    """Add the worst of each case to the recorded ones."""
    found = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    for entry in json.loads(state.read_text()).values():
        error, arguments = entry["worst"][0]
        key = {k: entry[k] for k in ("function", "terms", "format")}
        found.append({**key, "error": round(error, 4), "arguments": arguments})
    found.sort(key=lambda r: (r["function"], r["terms"], r["format"], -r["error"]))
    lines = ",\n ".join(json.dumps(r) for r in found)
    RECORD.write_text(f"[{lines}]\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [f.name for f in FORMATS]
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "table", "record"):
        command = commands.add_parser(name)
        command.add_argument("state", type=Path)
        if name == "run":
            command.add_argument("--seconds", type=float, default=60)
            command.add_argument("--seed", type=int, default=0)
            command.add_argument("--formats", nargs="+", choices=names, default=["fp64"])
            command.add_argument("--terms", nargs="+", type=int, default=[3, 4])
            command.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=FUNCTIONS)
    options = parser.parse_args(arguments)
    if options.command == "run":
        cases = [
            Case(function, terms, fmt)
            for terms in options.terms
            for fmt in FORMATS
            if fmt.name in options.formats
            for function in options.functions
        ]
        run(options.state, cases, options.seconds, options.seed)
    elif options.command == "record":
        record(options.state)
    else:
        for name, entry in json.loads(options.state.read_text()).items():
            print(f"{name}: {entry['worst'][0][0]:.4f} of {entry['evaluated']}")


if __name__ == "__main__":
    main()
