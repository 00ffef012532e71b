"""Linear algebra of expansions beside the peers that are installed, one thread.

    python benchmarks/linalg.py [--sizes 4 8 16 32 64 100 256 512] [--batches 1000x4 1000x8 100x16]
                                [--terms 2 4] [--rounds 5] [--short]

Milliseconds a call, and the fastest call's ratio to that of mcf. The LAPACK of torch and of NumPy
in float64 is the reference; python-flint (balls of as many bits) and mpmath run where they can be
imported; xprec (QD) for two components. What took too long at one size (`--seconds`, by the cube
of the size) is left out at larger ones. Batches are matrices in one call; of flint, which has none,
a loop over them, and the time is that of all of them. The residual is that of the docstring,
|A V - V diag(w)| and its likes over |A|, in units of n u**terms; for `solve` |A X - B| over
|A| |X|.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# NumPy's BLAS has threads of its own, and reads this when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from harness import environment, in_turn, machine, save_csv, table

import mcf

HERE = Path(__file__).parent
# mpmath takes seconds for more.
MOST = 16
OURS: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda a, b: a @ b,
    "solve": torch.linalg.solve,
    "cholesky": lambda a, b: torch.linalg.cholesky(a @ a.mT),
    "qr": lambda a, b: torch.linalg.qr(a),
    "inv": lambda a, b: torch.linalg.inv(a),
    "det": lambda a, b: torch.linalg.det(a),
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b)[0],
    "eigh": lambda a, b: torch.linalg.eigh(a + a.mT),
    "svd": lambda a, b: torch.linalg.svd(a, full_matrices=False),
    "matrix_exp": lambda a, b: torch.linalg.matrix_exp(a),
}
NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda a, b: a @ b,
    "solve": np.linalg.solve,
    "cholesky": lambda a, b: np.linalg.cholesky(a @ a.T),
    "qr": lambda a, b: np.linalg.qr(a),
    "inv": lambda a, b: np.linalg.inv(a),
    "det": lambda a, b: np.linalg.det(a),
    "lstsq": lambda a, b: np.linalg.lstsq(a, b, rcond=None),
    "eigh": lambda a, b: np.linalg.eigh(a + a.T),
    "svd": lambda a, b: np.linalg.svd(a, full_matrices=False),
}


# What batches are measured on, beside a loop of flint or without one.
BATCHED = ("matmul", "solve", "cholesky", "qr", "inv", "det", "eigh", "svd")


def uniform(n: int, terms: int, seed: int, *batch: int) -> mcf.MCFTensor:
    """Numbers in (-1, 1) with all components, from integers."""
    g = torch.Generator().manual_seed(seed)
    parts = [
        (
            torch.randint(-(2**40), 2**40, (*batch, n, n), generator=g).double()
            * 2.0 ** (-40 - 53 * k)
        )
        for k in range(terms)
    ]
    return mcf.from_components(mcf.kernels.operations.renormalize(tuple(parts), terms))


def residual(name: str, a: Any, b: Any, result: Any) -> str:
    """In units of n u**terms, in the Frobenius norm."""
    if name == "solve":
        error, scale = a @ result - b, a.norm() * result.norm()
    elif name == "qr":
        error, scale = result[0] @ result[1] - a, a.norm()
    elif name == "cholesky":
        whole = a @ a.mT
        error, scale = result @ result.mT - whole, whole.norm()
    elif name == "eigh":
        error, scale = (a + a.mT) @ result[1] - result[1] * result[0], (a + a.mT).norm()
    elif name == "svd":
        error, scale = (result[0] * result[1]) @ result[2] - a, a.norm()
    else:
        return ""
    unit = a.shape[0] * 2.0 ** (-53 * a.terms)
    return f"{(error.norm() / scale).item() / unit:.3g}"


def peers(name: str, n: int, terms: int, a: Any, b: Any) -> dict[str, Callable[[], object]]:
    """The same by others."""
    x, y = a.to_plain(torch.float64), b.to_plain(torch.float64)
    found: dict[str, Callable[[], object]] = {"torch float64": lambda: OURS[name](x, y)}
    if name in NUMPY:
        left, right = x.numpy(), y.numpy()
        found["numpy float64"] = lambda: NUMPY[name](left, right)
    try:
        import flint

        flint.ctx.prec = 53 * terms
        third = flint.arb(1) / 3
        p, q = (flint.arb_mat(m.tolist()) * third for m in (x, y))
        if name == "matmul":
            found["python-flint"] = lambda: p * q
        elif name == "solve":
            found["python-flint"] = lambda: p.solve(q)
        elif name == "inv":
            found["python-flint"] = lambda: p.inv()
        elif name == "det":
            found["python-flint"] = lambda: p.det()
        elif name == "matrix_exp":
            found["python-flint"] = lambda: p.exp()
        elif name == "eigh":
            whole = flint.acb_mat(p + p.transpose())
            found["python-flint acb_mat.eig"] = lambda: whole.eig(right=True, algorithm="approx")
    except ImportError:
        pass
    try:
        import mpmath

        mpmath.mp.prec = 53 * terms
        call = {"eigh": mpmath.eigsy, "svd": mpmath.svd_r, "qr": mpmath.qr}.get(name)
        if call and n <= MOST:
            given = mpmath.matrix((x + x.mT if name == "eigh" else x).tolist()) / 3
            found["mpmath"] = lambda: call(given)
    except ImportError:
        pass
    if terms == 2:
        try:
            import xprec
            import xprec.linalg

            wide = a.components[0].numpy().astype(xprec.ddouble) + a.components[1].numpy()
            if name == "matmul":
                other = b.components[0].numpy().astype(xprec.ddouble) + b.components[1].numpy()
                found["xprec"] = lambda: wide @ other
            elif name == "qr":
                found["xprec"] = lambda: xprec.linalg.qr(wide)
            elif name == "svd":
                found["xprec"] = lambda: xprec.linalg.svd(wide)
        except ImportError:
            pass
    return found


def batched_peers(name: str, terms: int, a: Any, b: Any) -> dict[str, Callable[[], object]]:
    """All matrices of a batch, by torch and NumPy in float64 and by a loop of flint."""
    x, y = a.to_plain(torch.float64), b.to_plain(torch.float64)
    found: dict[str, Callable[[], object]] = {"torch float64": lambda: OURS[name](x, y)}
    if name in NUMPY and name not in ("cholesky", "eigh"):
        left, right = x.numpy(), y.numpy()
        found["numpy float64"] = lambda: NUMPY[name](left, right)
    try:
        import flint

        flint.ctx.prec = 53 * terms
        third = flint.arb(1) / 3
        rows = [[flint.arb_mat(m.tolist()) * third for m in each] for each in (x, y)]
        pairs = list(zip(*rows, strict=True))
        calls = {
            "matmul": lambda p, q: p * q,
            "solve": lambda p, q: p.solve(q),
            "inv": lambda p, q: p.inv(),
            "det": lambda p, q: p.det(),
        }
        if name in calls:
            found["python-flint, a loop"] = lambda: [calls[name](p, q) for p, q in pairs]
    except ImportError:
        pass
    return found


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 32, 64, 100, 256, 512])
    parser.add_argument("--batches", nargs="*", default=["1000x4", "1000x8", "100x16"])
    parser.add_argument("--terms", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--functions", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="limit per variant and size")
    parser.add_argument("--short", action="store_true", help="one small size, to see that it runs")
    parser.add_argument("--out", type=Path, help="the CSV; by default named after the machine")
    options = parser.parse_args()
    if options.short:
        options.sizes, options.batches, options.terms, options.rounds = [8], ["3x4"], [2], 1
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    # Seconds of the fastest call at the largest size so far, and that size.
    known: dict[tuple[str, int, str], tuple[float, int]] = {}
    sizes = [(1, n) for n in sorted(options.sizes)]
    sizes += [tuple(map(int, each.split("x"))) for each in options.batches]  # type: ignore[misc]
    for batch, n in sizes:
        for terms in options.terms:
            shape = () if batch == 1 else (batch,)
            a, b = uniform(n, terms, 0, *shape), uniform(n, terms, 1, *shape)
            for name in options.functions:
                if batch > 1 and name not in BATCHED:
                    continue
                ours = OURS[name]
                variants: dict[str, Callable[[], object]] = {
                    "mcf": lambda ours=ours, a=a, b=b: ours(a, b)
                }
                others = peers(name, n, terms, a, b) if batch == 1 else {}
                variants |= others or batched_peers(name, terms, a, b)
                for variant in list(variants) if batch == 1 else ():
                    time, size = known.get((name, terms, variant), (0.0, n))
                    if time * (n / size) ** 3 > options.seconds:
                        del variants[variant]
                times = in_turn(
                    variants,
                    rounds=options.rounds,
                    seconds=options.seconds,
                    device=torch.device("cpu"),
                )
                best = {variant: timing.quantile(0) for variant, timing in times.items()}
                if batch == 1:
                    known |= {(name, terms, variant): (each, n) for variant, each in best.items()}
                first = len(rows)
                for variant, timing in times.items():
                    mine = variant == "mcf" and batch == 1
                    ratio = best[variant] / best["mcf"] if "mcf" in best else float("nan")
                    rows.append(
                        {
                            "function": name,
                            "n": n,
                            "batch": batch,
                            "terms": terms,
                            "variant": variant,
                            "ms": f"{timing.median * 1e3:.3f}",
                            "best ms": f"{best[variant] * 1e3:.3f}",
                            "to mcf": f"{ratio:.3g}",
                            "residual": residual(name, a, b, ours(a, b)) if mine else "",
                        }
                    )
                print(table(rows[first:], list(rows[0])), flush=True)
    if options.short:
        return
    device = torch.device("cpu")
    out = options.out or HERE / "results" / f"linalg-{machine(device)}.csv"
    command = " ".join(["python benchmarks/linalg.py", *sys.argv[1:]])
    save_csv(out, rows, {"command": command, **environment(device)})


if __name__ == "__main__":
    main()
