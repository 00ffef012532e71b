"""Matrix products and dot products of expansions beside the peers that are installed.

    python benchmarks/matmul.py [--sizes 64 128 256 512 1024] [--threads 2] [--rounds 5] [--short]

QD (Debian's libqd-dev) runs in a C++ driver that is compiled on the way, with a plain -O2 and for
this processor, MultiFloats in another (drivers.py says where it is looked for); xprec,
numpy-quaddtype and python-flint run where they can be imported; float64 in torch is the limit.
"ozaki" is the scheme of error-free slices on torch's product, which the library does not use
(benchmarks/peers/ozaki.py); "reproducible" is the correctly rounded product by residues,
`mcf.matmul(..., reproducible=True)`. Speeds are multiplications and additions per second. The error
is the largest over a sample of elements, relative to |A| |B|, in units of 2**(-53 n).
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import drivers
import numpy as np
import torch
from harness import environment, in_turn, machine, merge_csv, save_csv, table
from peers import ozaki
from torch import Tensor

from mcf import reductions
from mcf.kernels import operations
from mcf.reductions.products import matmul

HERE = Path(__file__).parent
Components = tuple[Tensor, ...]


def expansion(n: int, shape: tuple[int, ...], seed: int) -> Components:
    """Standard normal numbers with n full components."""
    generator = torch.Generator().manual_seed(seed)
    parts = [
        torch.randn(shape, generator=generator, dtype=torch.float64) * 2.0 ** (-53 * k)
        for k in range(n)
    ]
    return operations.renormalize(tuple(parts), n)


def records(x: Components) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Components side by side, as QD's structures have them."""
    return np.ascontiguousarray(torch.stack(x, -1).numpy())


def qd_calls(
    kind: str, function: str, n: int, threads: int, *arrays: Any
) -> dict[str, Callable[[], object]]:
    """An entry of the driver on numpy arrays, as compiled in each way; none without QD."""
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    calls: dict[str, Callable[[], object]] = {}
    for flags in (drivers.NATIVE, drivers.AS_DEBIAN):
        library = drivers.driver("matmul.cpp", flags)
        if isinstance(library, str):
            print(f"not measured: QD (install libqd-dev: {library})", flush=True)
            continue
        entry = getattr(library, f"{kind}_{function}")
        calls[f"QD {kind}_real {drivers.LABELS[flags]}"] = functools.partial(
            # The arrays live as long as the call.
            lambda entry, keep: entry(ctypes.c_size_t(n), ctypes.c_int(threads), *pointers),
            entry,
            arrays,
        )
    return calls


def multifloats_calls(
    function: str, n: int, terms: int, threads: int, *operands: Components
) -> dict[str, Callable[[], object]]:
    """An entry of MultiFloats on planes of components; none without its header."""
    library = drivers.multifloats()
    if isinstance(library, str):
        print(f"not measured: MultiFloats ({library})", flush=True)
        return {}
    entry = getattr(library, f"mf{terms}_{function}")
    planes = [(ctypes.c_void_p * terms)(*(c.data_ptr() for c in x)) for x in operands]
    return {
        # The components live as long as the call.
        "MultiFloats": lambda keep=operands: entry(  # type: ignore[misc]
            ctypes.c_size_t(n), ctypes.c_int(threads), *planes
        )
    }


def gemm_peers(
    n: int, terms: int, a: Components, b: Components, threads: int
) -> dict[str, Callable[[], object]]:
    """What else computes a product of these matrices, where it is not hopelessly slow."""
    peers: dict[str, Callable[[], object]] = {}
    kind = {2: "dd", 4: "qd"}.get(terms)
    if kind and n <= (512 if terms == 2 else 256):
        left, right, out = records(a), records(b), np.empty((n, n, terms))
        peers |= qd_calls(kind, "gemm", n, threads, left, right, out)
    if n <= 512:
        result = tuple(torch.empty_like(c) for c in a)
        peers |= multifloats_calls("gemm", n, terms, threads, a, b, result)
    if terms == 2 and n <= 512:
        try:
            import xprec

            pair = [x[0].numpy().astype(xprec.ddouble) + x[1].numpy() for x in (a, b)]
            peers["xprec"] = lambda: pair[0] @ pair[1]
        except ImportError:
            pass
        try:
            if n <= 128:
                import numpy_quaddtype as quad

                wide = [x[0].numpy().astype(quad.QuadPrecDType()) for x in (a, b)]
                peers["numpy-quaddtype"] = lambda: np.matmul(*wide)
        except ImportError:
            pass
    try:
        import flint

        flint.ctx.prec = 53 * terms
        flint.ctx.threads = threads
        if n <= 512:
            matrices = [flint.arb_mat(x[0].tolist()) for x in (a, b)]
            # Entries with full mantissas.
            third = flint.arb(1) / 3
            matrices = [m * third for m in matrices]
            peers["python-flint arb_mat"] = lambda: matrices[0] * matrices[1]
    except ImportError:
        pass
    return peers


def sampled_error(c: Components, a: Components, b: Components, samples: int = 4) -> float:
    """The largest error of a few elements relative to |A| |B|, in units of u**terms."""
    generator = torch.Generator().manual_seed(0)
    worst = Fraction(0)
    for _ in range(samples):
        i, j = (int(k) for k in torch.randint(a[0].shape[0], (2,), generator=generator))
        rows = [sum(map(Fraction, v)) for v in zip(*(x[i].tolist() for x in a), strict=True)]
        cols = [sum(map(Fraction, v)) for v in zip(*(x[:, j].tolist() for x in b), strict=True)]
        products = [p * q for p, q in zip(rows, cols, strict=True)]
        got = sum(Fraction(x[i, j].item()) for x in c)
        worst = max(worst, abs(got - sum(products)) / sum(map(abs, products)))
    return float(worst * 2 ** (53 * len(c)))


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--terms", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="limit per variant and size")
    parser.add_argument("--dot", type=int, default=10**6, help="their length; 0 for none")
    parser.add_argument("--short", action="store_true", help="one small size, to see that it runs")
    parser.add_argument("--append", action="store_true", help="keep the CSV's other rows")
    parser.add_argument("--out", type=Path, help="the CSV; by default named after the machine")
    options = parser.parse_args()
    if options.short:
        options.sizes, options.rounds, options.seconds, options.dot = [64], 3, 1.0, 10**4
    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    rows: list[dict[str, Any]] = []

    def measure(what: str, n: int, terms: int, work: float, variants: dict[str, Any]) -> None:
        times = in_turn(variants, rounds=options.rounds, seconds=options.seconds, device=device)
        for name, timing in times.items():
            rows.append(
                {
                    "operation": what,
                    "n": n,
                    "terms": terms,
                    "variant": name,
                    "Gop/s": f"{work / timing.median / 1e9:.4f}",
                    "best Gop/s": f"{work / timing.quantile(0) / 1e9:.4f}",
                    "error": "",
                }
            )

    # Before xprec is imported, which replaces numpy.finfo: Numba reads it when it compiles.
    for terms in options.terms:
        x = expansion(terms, (options.dot or 1,), 0)
        matmul(tuple(c[:1, None] for c in x), tuple(c[None, :1] for c in x))
        reductions.dot(x, x, terms=max(2, terms))
        reductions.dot(x, x, reproducible=True)
        matmul(tuple(c[:1, None] for c in x), tuple(c[None, :1] for c in x), reproducible=True)

    for n in options.sizes:
        for terms in options.terms:
            a, b = expansion(terms, (n, n), 0), expansion(terms, (n, n), 1)
            variants: dict[str, Callable[[], object]] = {
                "mcf": lambda a=a, b=b: matmul(a, b),
                "reproducible": lambda a=a, b=b: matmul(a, b, reproducible=True),
            }
            if terms == 1:
                variants["torch float64"] = lambda a=a, b=b: a[0] @ b[0]
            else:
                variants["ozaki"] = lambda a=a, b=b: ozaki.matmul(a, b)
                variants |= gemm_peers(n, terms, a, b, options.threads)
            first = len(rows)
            measure("matmul", n, terms, float(n) ** 3, variants)
            for row in rows[first:]:
                if row["variant"] in ("mcf", "reproducible", "ozaki"):
                    c = variants[row["variant"]]()
                    row["error"] = f"{sampled_error(c, a, b):.3g}"  # type: ignore[arg-type]
            print(table(rows[first:], list(rows[0])), flush=True)
    n = options.dot
    for terms in options.terms if n else ():
        x, y = expansion(terms, (n,), 0), expansion(terms, (n,), 1)
        count = max(2, terms)
        variants = {
            "mcf": lambda x=x, y=y, k=count: reductions.dot(x, y, terms=k),
            "mcf reproducible": lambda x=x, y=y: reductions.dot(x, y, reproducible=True),
        }
        if terms == 1:
            variants["torch float64"] = lambda x=x, y=y: torch.dot(x[0], y[0])
        if terms > 1:
            sums = tuple(torch.empty(1, dtype=torch.float64) for _ in range(terms))
            variants |= multifloats_calls("dot", n, terms, options.threads, x, y, sums)
        kind = {2: "dd", 4: "qd"}.get(terms)
        if kind:
            left, right, out = records(x), records(y), np.empty(terms)
            variants |= qd_calls(kind, "dot", n, options.threads, left, right, out)
        first = len(rows)
        measure("dot", n, terms, float(n), variants)
        print(table(rows[first:], list(rows[0])), flush=True)
    out = options.out or HERE / "results" / f"matmul-{machine(device)}.csv"
    command = " ".join(["python benchmarks/matmul.py", *sys.argv[1:]])
    about = {"command": command, **environment(device)}
    if options.append:
        merge_csv(out, rows, about, ("operation", "n", "terms", "variant"))
    else:
        save_csv(out, rows, about)


if __name__ == "__main__":
    main()
