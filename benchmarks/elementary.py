"""Time elementary functions on expansions beside QD, mpmath, python-flint and torch.

    python benchmarks/elementary.py                # 2**18 elements, all functions
    python benchmarks/elementary.py --short        # 2**16, three functions, some seconds
    python benchmarks/elementary.py --functions j0 y0

One thread. Nanoseconds per element, medians of interleaved rounds; in float64 but for the column
that says float32; powers have the exponent 2.375. QD is Debian's libqd-dev,
compiled here; what is not installed is left out. The error column is the worst of 200 elements in
units of u^terms (u = 2**-53) against python-flint.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from harness import environment, in_turn, machine, merge_csv, table

import mcf.elementary
from mcf.elementary.function_bounds import FUNCTIONS

HERE = Path(__file__).parent
# Function -> the interval of the arguments.
DOMAINS = {
    "exp": (-20.0, 20.0), "log": (0.01, 100.0), "sin": (-100.0, 100.0), "cos": (-100.0, 100.0),
    "tan": (-1.5, 1.5), "atan": (-5.0, 5.0), "asin": (-1.0, 1.0), "sinh": (-5.0, 5.0),
    "tanh": (-3.0, 3.0), "erf": (-4.0, 4.0), "pow": (0.01, 100.0), "gelu": (-4.0, 4.0),
    "sigmoid": (-10.0, 10.0), "erfinv": (-0.999, 0.999), "lgamma": (0.01, 100.0),
    "digamma": (0.01, 100.0), "trigamma": (0.01, 100.0), "i0": (-100.0, 100.0),
    "j0": (-100.0, 100.0), "y0": (0.01, 100.0), "k0": (0.01, 100.0),
    "airy_ai": (-60.0, 20.0),
}  # fmt: skip
SHORT = ("exp", "log", "sin")
# What others call them.
MPMATH = {"lgamma": "loggamma", "pow": "power", "airy_ai": "airyai"}
# Functions that others have with an order, as mpmath and flint call them, and torch's. Of Y and K
# flint's balls are wide at the precision that is asked for.
OF_ORDER: dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "trigamma": ("psi", "zeta", functools.partial(torch.polygamma, 1)),
    "i0": ("besseli", "bessel_i", torch.special.i0),
    "j0": ("besselj", "bessel_j", torch.special.bessel_j0),
    "y0": ("bessely", "bessel_y", torch.special.bessel_y0),
    "k0": ("besselk", "bessel_k", torch.special.modified_bessel_k0),
}
# Of powers the base is from there; the exponent is no whole number.
EXPONENT = 2.375


def qd() -> ctypes.CDLL | None:
    """QD behind a few entries, or None with a line of why."""
    if shutil.which("g++") is None:
        print("QD: no g++")
        return None
    library = Path(tempfile.mkdtemp()) / "elementary.so"
    source = HERE / "peers" / "elementary.cpp"
    command = ["g++", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
    result = subprocess.run(
        [*command, str(source), "-o", str(library), "-lqd"], capture_output=True, text=True
    )
    if result.returncode:
        print("QD: not installed (libqd-dev), or it does not compile")
        return None
    return ctypes.CDLL(str(library))


def variants(name: str, terms: int, n: int, library: ctypes.CDLL | None) -> dict[str, Any]:
    """What is timed: name -> (call, elements)."""
    rng = np.random.default_rng(1)
    low, high = DOMAINS[name]
    x0 = rng.uniform(low, high, n)
    planes = [x0]
    for _ in range(terms - 1):
        planes.append(planes[-1] * 2.0**-54 * rng.uniform(-1, 1, n))
    x = tuple(torch.from_numpy(p) for p in planes)
    single = tuple(torch.from_numpy(p) for p in float32_planes(x0, terms))
    out: dict[str, Any] = {
        "mcf": (functools.partial(ours, name, x), n),
        "mcf float32": (functools.partial(ours, name, single), n),
    }
    kind = {2: "dd", 4: "qd"}.get(terms)
    if library is not None and kind and hasattr(library, f"{kind}_{name}"):
        qd_function = getattr(library, f"{kind}_{name}")
        few = n if kind == "dd" else n // 8
        given = np.ascontiguousarray(np.stack(planes, -1)[:few])
        result = np.empty_like(given)
        pointer = ctypes.POINTER(ctypes.c_double)
        a, b = given.ctypes.data_as(pointer), result.ctypes.data_as(pointer)
        out["QD"] = (lambda: qd_function(ctypes.c_size_t(few), a, b), few)
    bits = 53 * terms
    rows = [sum(map(float, r)) for r in np.stack(planes, -1)[:200]]
    if importlib.util.find_spec("mpmath") and name != "gelu" and name != "sigmoid":
        import mpmath

        context = mpmath.mp.clone()
        context.prec = bits
        numbers = [context.mpf(v) for v in rows]
        if name in OF_ORDER:
            order = 1 if name == "trigamma" else 0
            function = functools.partial(getattr(context, OF_ORDER[name][0]), order)
        else:
            function = getattr(context, MPMATH.get(name, name))
        more = (EXPONENT,) if name == "pow" else ()
        out["mpmath"] = (lambda: [function(v, *more) for v in numbers], len(rows))
    if importlib.util.find_spec("flint") and name not in ("gelu", "sigmoid"):
        import flint

        flint.ctx.prec = bits
        balls = [flint.arb(v) for v in rows]
        if name == "pow":
            exponent = flint.arb(EXPONENT)
            out["flint"] = (lambda: [v**exponent for v in balls], len(rows))
        elif name in OF_ORDER:
            entry, complex_balls = OF_ORDER[name][1], [flint.acb(v) for v in balls]
            if name == "trigamma":
                # The Hurwitz zeta function of order 2.
                out["flint"] = (lambda: [flint.acb(2).zeta(v) for v in complex_balls], len(rows))
            else:
                zero = flint.acb(0)
                out["flint"] = (lambda: [getattr(v, entry)(zero) for v in complex_balls], len(rows))
        else:
            out["flint"] = (lambda: [getattr(v, name)() for v in balls], len(rows))
    if name in OF_ORDER:
        plain = OF_ORDER[name][2]
    elif name == "airy_ai":
        plain = torch.special.airy_ai
    else:
        plain = torch.nn.functional.gelu if name == "gelu" else getattr(torch, name)
    if terms == 1:
        more = (EXPONENT,) if name == "pow" else ()
        out["torch"] = (lambda: plain(x[0], *more), n)
    return out


def ours(name: str, x: tuple[torch.Tensor, ...]) -> Any:
    """Our function on an expansion."""
    function: Callable[..., Any] = getattr(mcf.elementary, name)
    if name != "pow":
        return function(x)
    exponent = torch.tensor(EXPONENT, dtype=x[0].dtype)
    return function(x, tuple(exponent * (k == 0) for k in range(len(x))))


def float32_planes(x: Any, terms: int) -> list[Any]:
    """float64 numbers as so many components of float32, those beyond the second made up."""
    planes = [x.astype(np.float32)]
    planes.append((x - planes[0]).astype(np.float32))
    while len(planes) < terms:
        planes.append(planes[-1] * np.float32(2.0**-25))
    return planes[:terms]


def error(name: str, terms: int) -> str:
    """The worst of some elements against ball arithmetic."""
    if importlib.util.find_spec("flint") is None:
        return "-"
    sys.path.insert(0, str(HERE.parent))
    from mcf.kernels import FP64
    from tests.helpers.elementary import Inputs, worst

    if name not in FUNCTIONS:
        return "-"
    d = Inputs(FP64, terms, seed=9)
    low, high = DOMAINS[name]
    x = d.expansion(d.rng.uniform(low, high, 200))
    if name == "pow":
        y = tuple(torch.full_like(t, EXPONENT * (k == 0)) for k, t in enumerate(x))
        return f"{worst(name, FP64, (x, y), mcf.elementary.pow(x, y))[0]:.2f}"
    return f"{worst(name, FP64, (x,), getattr(mcf.elementary, name)(x))[0]:.2f}"


def main() -> None:
    """Time, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer functions and elements")
    parser.add_argument("--seconds", type=float, default=2.0, help="per variant")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/*.csv")
    parser.add_argument(
        "--functions", nargs="+", choices=DOMAINS, metavar="NAME", help="these alone"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    n = 1 << 16 if options.short else 1 << 18
    seconds = 0.3 if options.short else options.seconds
    library = qd()
    rows = []
    for name in options.functions or (SHORT if options.short else DOMAINS):
        for terms in (1, 2, 3, 4):
            timed = variants(name, terms, n, library)
            calls = {k: call for k, (call, _) in timed.items()}
            times = in_turn(calls, rounds=20, seconds=seconds, device=torch.device("cpu"))
            ns = {k: times[k].median / timed[k][1] * 1e9 for k in timed}
            row: dict[str, Any] = {"function": name, "terms": terms}
            for peer in ("mcf", "mcf float32", "QD", "mpmath", "flint", "torch"):
                row[f"{peer} ns"] = f"{ns[peer]:.4g}" if peer in ns else "-"
            row["QD / mcf"] = f"{ns['QD'] / ns['mcf']:.2f}" if "QD" in ns else "-"
            row["error"] = error(name, terms)
            rows.append(row)
            print(" ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    print(table(rows, list(rows[0])))
    if options.save:
        cpu = torch.device("cpu")
        path = HERE / "results" / f"elementary-{machine(cpu)}.csv"
        command = " ".join(["python benchmarks/elementary.py", *sys.argv[1:]])
        merge_csv(path, rows, {"command": command, **environment(cpu)}, ("function", "terms"))
        print(f"written: {path}")


if __name__ == "__main__":
    main()
