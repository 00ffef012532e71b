"""Operations of pairs of float64 numbers beside the packages that have them: one element, and many.

    pip install xprec numpy-quaddtype python-flint
    pip install --no-deps torch-dd==0.1.1    # before Python 3.12 with --ignore-requires-python
    python benchmarks/peer_operations.py --save
    python benchmarks/peer_operations.py --sizes 1 --rounds 10     # a look

xprec (QD's code as a NumPy dtype), numpy-quaddtype (113 bits, SLEEF), torch-dd (with its compiled
extension where it can be built) and python-flint (balls of 106 bits, for one element) in turn with
ours, one thread, the same numbers: 106 random bits from 1 to 2. Nanoseconds for each element, the
median of the rounds; of one element for the call. A peer that lacks an operation has a "-".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import mcf
from benchmarks import harness

Call = Callable[[], object]
CPU = torch.device("cpu")
PEERS = ("mcf", "xprec", "numpy-quaddtype", "torch-dd", "python-flint")
COLUMNS = ["elements", "operation", *(f"{p} ns" for p in PEERS), "fastest peer / mcf"]

# What operands may be: of expansions and torch-dd, of arrays, of flint's numbers. None: it has not.
Form = tuple[Any, Any, Any]
OPERATIONS: dict[str, Form] = {
    "x + y": (lambda x, y, m: x + y,) * 3,
    "x * y": (lambda x, y, m: x * y,) * 3,
    "x / y": (lambda x, y, m: x / y,) * 3,
    "sqrt(x)": (
        lambda x, y, m: torch.sqrt(x),
        lambda x, y, m: np.sqrt(x),
        lambda x, y, m: x.sqrt(),
    ),
    "exp(x)": (lambda x, y, m: torch.exp(x), lambda x, y, m: np.exp(x), lambda x, y, m: x.exp()),
    "log(x)": (lambda x, y, m: torch.log(x), lambda x, y, m: np.log(x), lambda x, y, m: x.log()),
    "sin(x)": (lambda x, y, m: torch.sin(x), lambda x, y, m: np.sin(x), lambda x, y, m: x.sin()),
    "atan(x)": (
        lambda x, y, m: torch.atan(x),
        lambda x, y, m: np.arctan(x),
        lambda x, y, m: x.atan(),
    ),
    "tanh(x)": (
        lambda x, y, m: torch.tanh(x),
        lambda x, y, m: np.tanh(x),
        lambda x, y, m: x.tanh(),
    ),
    "x ** 3": (lambda x, y, m: x**3,) * 3,
    "x ** y": (lambda x, y, m: x**y,) * 3,
    "x < y": (lambda x, y, m: x < y,) * 3,
    "where(m, x, y)": (
        lambda x, y, m: torch.where(m, x, y),
        lambda x, y, m: np.where(m, x, y),
        None,
    ),
    "maximum(x, y)": (
        lambda x, y, m: torch.maximum(x, y),
        lambda x, y, m: np.maximum(x, y),
        lambda x, y, m: x.max(y),
    ),
    "abs(x)": (lambda x, y, m: abs(x),) * 3,
    "sum(x)": (lambda x, y, m: torch.sum(x), lambda x, y, m: np.sum(x), None),
    "max(x)": (lambda x, y, m: torch.amax(x), lambda x, y, m: np.max(x), None),
    "cumsum(x)": (lambda x, y, m: torch.cumsum(x, 0), lambda x, y, m: np.cumsum(x), None),
    "sort(x)": (lambda x, y, m: torch.sort(x).values, lambda x, y, m: np.sort(x), None),
    "searchsorted(s, y)": (
        lambda x, y, m: torch.searchsorted(x, y),
        lambda x, y, m: np.searchsorted(x, y),
        None,
    ),
    "x[m]": (lambda x, y, m: x[m], lambda x, y, m: x[m], None),
    "stack(x, y)": (lambda x, y, m: torch.stack([x, y]), lambda x, y, m: np.stack([x, y]), None),
}


def numbers(size: int) -> list[mcf.MCFTensor]:
    """Two tensors of numbers from 1 to 2."""
    generator = torch.Generator().manual_seed(0)
    return [mcf.rand(size, dtype=torch.float64, generator=generator) + 1.0 for _ in range(2)]


def operands(size: int) -> dict[str, tuple[Any, ...]]:
    """Of each package that is there its x, y and a mask, and x sorted; the others are named."""
    x, y = numbers(size)
    s, mask = x.sort().values, torch.arange(size) % 3 == 1
    found: dict[str, tuple[Any, ...]] = {"mcf": (x, y, mask, s)}

    def arrays(dtype: Any) -> tuple[Any, ...]:
        three = [[c.numpy().astype(dtype) for c in v.components] for v in (x, y, s)]
        a, b, c = (high + low for high, low in three)
        return a, b, mask.numpy(), c

    try:
        import xprec

        found["xprec"] = arrays(xprec.ddouble)
    except ImportError as error:
        print(f"not measured: xprec ({error})", flush=True)
    try:
        from numpy_quaddtype import QuadPrecDType

        found["numpy-quaddtype"] = arrays(QuadPrecDType())
    except ImportError as error:
        print(f"not measured: numpy-quaddtype ({error})", flush=True)
    try:
        import torch_dd
        from torch_dd import native

        built = native.is_available()
        print(f"torch-dd: its extension is {'compiled' if built else 'not compiled'}", flush=True)
        a, b, c = (torch_dd.DDTensor(*v.components) for v in (x, y, s))
        found["torch-dd"] = (a, b, mask, c)
    except ImportError as error:
        print(f"not measured: torch-dd ({error})", flush=True)
    if size == 1:
        try:
            import flint

            flint.ctx.prec = 106
            a, b, c = (sum(flint.arb(k.item()) for k in v.components) for v in (x, y, s))
            found["python-flint"] = (a, b, None, c)
        except ImportError as error:
            print(f"not measured: python-flint ({error})", flush=True)
    return found


def calls(name: str, given: dict[str, tuple[Any, ...]], each: int) -> dict[str, Call]:
    """An operation by each package that has it, as many times as there are to be in a round."""
    of_tensors, of_arrays, of_numbers = OPERATIONS[name]
    forms = {"mcf": of_tensors, "torch-dd": of_tensors, "python-flint": of_numbers}
    found: dict[str, Call] = {}
    for peer, (x, y, mask, ordered) in given.items():
        form = forms.get(peer, of_arrays)
        first = ordered if name.startswith("searchsorted") else x
        if form is None:
            continue
        try:
            form(first, y, mask)
        except Exception as error:
            print(f"{peer} has no {name}: {type(error).__name__}", flush=True)
            continue

        def call(form: Any = form, x: Any = first, y: Any = y, mask: Any = mask) -> None:
            for _ in range(each):
                form(x, y, mask)

        found[peer] = call
    return found


def rows_of(size: int, rounds: int, seconds: float) -> list[dict[str, object]]:
    """A row for each operation."""
    given = operands(size)
    each = max(1, 200 // size)
    rows = []
    for name in OPERATIONS:
        timings = harness.in_turn(
            calls(name, given, each), rounds=rounds, seconds=seconds, device=CPU
        )
        medians = {p: t.median / each / size for p, t in timings.items()}
        theirs = [m for p, m in medians.items() if p != "mcf"]
        ratio = f"{min(theirs) / medians['mcf']:.3g}" if theirs else "-"
        row: dict[str, object] = {"elements": size, "operation": name, COLUMNS[-1]: ratio}
        for peer in PEERS:
            row[f"{peer} ns"] = f"{1e9 * medians[peer]:.4g}" if peer in medians else "-"
        print("  ".join(f"{row[c]}" for c in COLUMNS), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print a table, save it where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 1e3, 1e6], help="elements")
    parser.add_argument("--rounds", type=int, default=60, help="at most")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each call, about")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        row
        for size in map(int, options.sizes)
        for row in rows_of(size, options.rounds, options.seconds)
    ]
    print(harness.table(rows, COLUMNS))
    if options.save:
        path = Path(__file__).parent / "results" / f"peer_operations-{harness.machine(CPU)}.csv"
        command = "python benchmarks/peer_operations.py " + " ".join(sys.argv[1:])
        harness.save_csv(path, rows, {"command": command.strip(), **harness.environment(CPU)})
        print(f"saved {path}")


if __name__ == "__main__":
    main()
