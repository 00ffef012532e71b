"""Complex expansions beside the peers that are installed, one thread.

    python benchmarks/complex.py [--terms 2 4] [--rounds 5] [--seconds 4] [--short]

Milliseconds a call: arithmetic and functions of vectors, matrix products, transforms,
factorisations, eigenvalues (mpmath solves for one right side, where others have as many as rows).
torch's complex128 is the reference; python-flint (acb of as many bits) and mpmath (mpc) run an
element or a call at a time, where that takes seconds at most.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import environment, in_turn, machine, save_csv, table

import mcf

HERE = Path(__file__).parent
OURS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    "exp": lambda x, y: torch.exp(x),
    "log": lambda x, y: torch.log(x),
    "sqrt": lambda x, y: torch.sqrt(x),
    "sin": lambda x, y: torch.sin(x),
    "asin": lambda x, y: torch.asin(x),
    "matmul": lambda x, y: x @ y,
    "fft": lambda x, y: torch.fft.fft(x),
    "rfft": lambda x, y: torch.fft.rfft(x),
    "solve": lambda x, y: torch.linalg.solve(x, y),
    "det": lambda x, y: torch.linalg.det(x),
    "qr": lambda x, y: torch.linalg.qr(x),
    "cholesky": lambda x, y: torch.linalg.cholesky(x),
    "eigh": lambda x, y: torch.linalg.eigh(x),
    "svd": lambda x, y: torch.linalg.svd(x),
    "eig": lambda x, y: torch.linalg.eig(x),
}
ARITHMETIC = ("x + y", "x * y", "x / y")
FACTORS = ("solve", "det", "qr", "cholesky", "eigh", "svd", "eig")
SQUARE = ("matmul", *FACTORS)
REAL = ("rfft", "eig")
SIZES = {
    **dict.fromkeys((*ARITHMETIC, "exp", "log", "sqrt", "sin", "asin"), (1, 10**4, 10**6)),
    "matmul": (16, 128),
    "fft": (64, 1000, 1009, 2**16, 2**20),
    "rfft": (1000, 2**16, 2**20),
    **dict.fromkeys(FACTORS, (8, 64)),
    "eig": (8, 32, 64),
}
# Elements, rows or lengths up to which a peer is tried.
MOST = {"matmul": (64, 128), "fft": (0, 2**16), "rfft": (0, 0), **dict.fromkeys(FACTORS, (16, 64))}
USUAL = (10**4, 10**4)


def uniform(name: str, n: int, terms: int, seed: int) -> Any:
    """Complex numbers with parts in (-1, 1) of all components, from integers; or real ones."""
    g = torch.Generator().manual_seed(seed)
    shape = (n, n) if name in SQUARE else (n,)

    def part() -> mcf.MCFTensor:
        parts = [
            torch.randint(-(2**40), 2**40, shape, generator=g).double() * 2.0 ** (-40 - 53 * k)
            for k in range(terms)
        ]
        return mcf.from_components(mcf.kernels.operations.renormalize(tuple(parts), terms))

    if name in REAL:
        return part()
    z = mcf.complex(part(), part())
    # Hermitian, and for Cholesky positive definite.
    return z @ z.mH + torch.eye(n, dtype=torch.float64) if name in ("cholesky", "eigh") else z


def peers(name: str, n: int, terms: int, x: Any, y: Any) -> dict[str, Callable[[], object]]:
    """The same by others."""
    kind = torch.float64 if name in REAL else torch.complex128
    a, b = x.to_plain(kind), y.to_plain(kind)
    found: dict[str, Callable[[], object]] = {"torch complex128": lambda: OURS[name](a, b)}
    slow, fast = MOST.get(name, USUAL)
    try:
        import flint

        if n <= fast:
            flint.ctx.prec = 53 * terms
            call = of_flint(flint, name, a.tolist(), b.tolist())
            if call is not None:
                found["python-flint"] = call
    except ImportError:
        pass
    try:
        import mpmath

        if n <= slow:
            mpmath.mp.prec = 53 * terms
            found["mpmath"] = of_mpmath(mpmath, name, a.tolist(), b.tolist())
    except ImportError:
        pass
    return found


def of_flint(flint: Any, name: str, a: Any, b: Any) -> Callable[[], object] | None:
    """By balls, of numbers that fill the precision; None for what it does not have."""
    third = flint.acb(1) / 3
    if name in SQUARE:
        p, q = (flint.acb_mat([[flint.acb(z) for z in row] for row in m]) * third for m in (a, b))
        calls: dict[str, Callable[[], object]] = {
            "matmul": lambda: p * q,
            "solve": lambda: p.solve(q, algorithm="approx"),
            "det": p.det,
            "eig": lambda: p.eig(right=True, algorithm="approx"),
        }
        return calls.get(name)
    u, v = ([flint.acb(z) * third for z in m] for m in (a, b))
    if name == "fft":
        return lambda: flint.acb.dft(u)
    if name in ARITHMETIC:
        call: Callable[[Any, Any], Any] = OURS[name]
        return lambda: [call(s, t) for s, t in zip(u, v, strict=True)]
    return lambda: [getattr(s, name)() for s in u]


def of_mpmath(mpmath: Any, name: str, a: Any, b: Any) -> Callable[[], object]:
    """By numbers that fill the precision."""
    if name in SQUARE:
        p, q = (mpmath.matrix(m) / 3 for m in (a, b))
        calls: dict[str, Callable[[], object]] = {
            "matmul": lambda: p * q,
            "solve": lambda: mpmath.lu_solve(p, q[:, 0]),
            "det": lambda: mpmath.det(p),
            "qr": lambda: mpmath.qr(p),
            "cholesky": lambda: mpmath.cholesky(p),
            "eigh": lambda: mpmath.eighe(p),
            "svd": lambda: mpmath.svd_c(p),
            "eig": lambda: mpmath.eig(p),
        }
        return calls[name]
    u, v = ([mpmath.mpc(z) / 3 for z in m] for m in (a, b))
    if name in ARITHMETIC:
        call: Callable[[Any, Any], Any] = OURS[name]
        return lambda: [call(s, t) for s, t in zip(u, v, strict=True)]
    return lambda: [getattr(mpmath, name)(s) for s in u]


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--terms", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--functions", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="limit per variant and size")
    parser.add_argument("--short", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path, help="the CSV; by default named after the machine")
    options = parser.parse_args()
    if options.short:
        options.terms, options.rounds = [2], 1
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.functions:
        for n in SIZES[name][: 1 if options.short else None]:
            for terms in options.terms:
                x, y = uniform(name, n, terms, 0), uniform(name, n, terms, 1)
                ours = OURS[name]
                variants: dict[str, Callable[[], object]] = {
                    "mcf": lambda ours=ours, x=x, y=y: ours(x, y)
                }
                variants |= peers(name, n, terms, x, y)
                times = in_turn(
                    variants,
                    rounds=options.rounds,
                    seconds=options.seconds,
                    device=torch.device("cpu"),
                )
                first = len(rows)
                for variant, timing in times.items():
                    rows.append(
                        {
                            "function": name,
                            "n": n,
                            "terms": terms,
                            "variant": variant,
                            "ms": f"{timing.median * 1e3:.3f}",
                            "best ms": f"{timing.quantile(0) * 1e3:.3f}",
                        }
                    )
                print(table(rows[first:], list(rows[0])), flush=True)
    if options.short:
        return
    device = torch.device("cpu")
    out = options.out or HERE / "results" / f"complex-{machine(device)}.csv"
    command = " ".join(["python benchmarks/complex.py", *sys.argv[1:]])
    save_csv(out, rows, {"command": command, **environment(device)})


if __name__ == "__main__":
    main()
