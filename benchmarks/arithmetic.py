"""Arithmetic on expansions beside its peers on a CPU: add, mul, div, sqrt, axpy, dot.

    python benchmarks/arithmetic.py                 the full table
    python benchmarks/arithmetic.py --short         few rounds, for a look
    python benchmarks/arithmetic.py --rows add --terms 2 --append    some rows of a saved table

float64 components, n = 2 and 4, in one interleaved run for each size and number of threads: ours
into `out` and allocating, QD, MultiFloats and C++ loops of our networks (compiled here,
benchmarks/peers; drivers.py says where MultiFloats is looked for), xprec, numpy-quaddtype,
python-flint, torch's float64, and a copy of the same bytes as the limit. QD is compiled as by a
user of Debian's package (-O2) and for this processor. The C++ loop is there with plain stores, and
with those that go past the cache as ours do where a result is large. Besides 10**6 elements, which
are in memory, 10**4 for each thread stay in the caches. A call is timed after a sweep of the caches
and a call of its own. A peer that is missing is a printed line. Results go to benchmarks/results/
with --save.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

import mcf
from benchmarks import drivers, harness
from mcf import MCFTensor
from mcf.kernels import operations

# Elements in memory, and elements of each thread in its caches.
LARGE, SMALL = 1_000_000, 10_000
ROWS = ("add", "mul", "div", "sqrt", "axpy", "dot")
Components = tuple[Tensor, ...]
Call = Callable[[], object]
Row = dict[str, object]
_missing: set[str] = set()


def missing(peer: str, why: object) -> None:
    """Say once that a peer is not there."""
    if peer not in _missing:
        _missing.add(peer)
        print(f"not measured: {peer} ({why})", flush=True)


def numbers(n: int, size: int, seed: int) -> Components:
    """Random positive expansions around 1 with n full components."""
    rng = torch.Generator().manual_seed(seed)
    parts = []
    for k in range(n):
        x = torch.rand(size, generator=rng, dtype=torch.float64) - 0.5 * (k > 0)
        parts.append((x + 0.5 * (k == 0)) * 2.0 ** (-53 * k))
    return operations.renormalize(tuple(parts), n)


def ours(row: str, n: int, x: Components, y: Components) -> Iterator[tuple[str, Call]]:
    """Expansion tensors, into a preallocated one and into new ones."""
    left, right = mcf.from_components(x), mcf.from_components(y)
    if row == "dot":
        yield "mcf", lambda: torch.dot(left, right)
        return
    calls: dict[str, tuple[Callable[..., object], tuple[MCFTensor, ...]]] = {
        "add": (torch.add, (left, right)),
        "mul": (torch.mul, (left, right)),
        "div": (torch.div, (left, right)),
        "sqrt": (torch.sqrt, (left,)),
        "axpy": (torch.addcmul, (right, left, left[0].clone())),
    }
    function, arguments = calls[row]
    out = torch.empty_like(left)
    yield "mcf out=", lambda: function(*arguments, out=out)
    yield "mcf", lambda: function(*arguments)


def compiled(flags: tuple[str, ...]) -> ctypes.CDLL | str:
    """The C++ loops, with QD where it is installed."""
    library = drivers.driver("arithmetic.cpp", flags)
    if isinstance(library, str):
        missing("QD", f"install libqd-dev: {library}")
        library = drivers.driver("arithmetic.cpp", flags, qd=False)
    return library


def cpp(row: str, n: int, threads: int, x: Components, y: Components) -> Iterator[tuple[str, Call]]:
    """MultiFloats and networks of ours as C++ loops, and QD on arrays of its structures."""
    size = ctypes.c_size_t(len(x[0]))
    out = tuple(torch.empty_like(t) for t in x)
    planes = [(ctypes.c_void_p * n)(*(t.data_ptr() for t in c)) for c in (x, y, out)]
    packed = [torch.stack(c, dim=-1).contiguous() for c in (x, y, out)]
    structures = [ctypes.c_void_p(t.data_ptr()) for t in packed]
    for name, prefix, operands, library in (
        ("MultiFloats", "mf", planes, drivers.multifloats()),
        ("C++ loop", "loop", planes, compiled(drivers.NATIVE)),
        ("C++ loop, streaming", "stream", planes, compiled(drivers.NATIVE)),
        (f"QD {drivers.LABELS[drivers.NATIVE]}", "qd", structures, compiled(drivers.NATIVE)),
        (f"QD {drivers.LABELS[drivers.AS_DEBIAN]}", "qd", structures, compiled(drivers.AS_DEBIAN)),
    ):
        if isinstance(library, str):
            missing(name, library)
            continue
        try:
            function = getattr(library, f"{prefix}{n}_{row}")
        except AttributeError:
            if prefix in ("mf", "loop"):
                missing(f"{name} of {row}, n = {n}", "not written")
            continue

        def call(
            function: Callable[..., object] = function,
            operands: object = operands,
            # The packed tensors live as long as the call.
            keep: object = (packed, out),
        ) -> None:
            function(size, threads, *operands)  # type: ignore[misc]

        yield name, call


def numpy_peer(
    name: str, make: Callable[[Components], np.ndarray], row: str, x: Components, y: Components
) -> Iterator[tuple[str, Call]]:
    """A package with a NumPy dtype; NumPy's ufuncs use one thread."""
    a, b = make(x), make(y)
    out = np.empty_like(a)
    first = a[:1]
    functions: dict[str, Call] = {
        "add": lambda: np.add(a, b, out=out),
        "mul": lambda: np.multiply(a, b, out=out),
        "div": lambda: np.divide(a, b, out=out),
        "sqrt": lambda: np.sqrt(a, out=out),
        "axpy": lambda: np.add(np.multiply(a, first, out=out), b, out=out),
        "dot": lambda: np.sum(np.multiply(a, b, out=out)),
    }
    try:
        functions[row]()
    except Exception as error:
        missing(f"{name} {row}", error)
        return
    yield name, functions[row]


def packages(
    row: str, n: int, threads: int, x: Components, y: Components
) -> Iterator[tuple[str, Call]]:
    """xprec and numpy-quaddtype (two components' worth), python-flint (any precision)."""
    if n == 2 and threads == 1:
        try:
            import xprec

            yield from numpy_peer(
                "xprec",
                lambda c: c[0].numpy().astype(xprec.ddouble) + c[1].numpy().astype(xprec.ddouble),
                row,
                x,
                y,
            )
        except ImportError as error:
            missing("xprec", error)
        try:
            from numpy_quaddtype import QuadPrecDType

            quad = QuadPrecDType()
            yield from numpy_peer(
                "numpy-quaddtype",
                lambda c: c[0].numpy().astype(quad) + c[1].numpy().astype(quad),
                row,
                x,
                y,
            )
        except ImportError as error:
            missing("numpy-quaddtype", error)
    if row in ("add", "dot") and threads == 1:
        try:
            import flint
        except ImportError as error:
            missing("python-flint", error)
            return
        flint.ctx.prec = 53 * n
        size = len(x[0])
        # A row and a row, or a row and a column: flint has no products by element.
        left = flint.arb_mat(1, size, [flint.arb(v) for v in x[0].tolist()])
        shape = (size, 1) if row == "dot" else (1, size)
        right = flint.arb_mat(*shape, [flint.arb(v) for v in y[0].tolist()])
        yield "python-flint", (lambda: left + right) if row == "add" else (lambda: left * right)


def limits(row: str, n: int, x: Components, y: Components) -> Iterator[tuple[str, Call]]:
    """Plain float64, and a copy of as many bytes as the operation moves."""
    a, b, out = x[0], y[0], torch.empty_like(x[0])
    plain: dict[str, Call] = {
        "add": lambda: torch.add(a, b, out=out),
        "mul": lambda: torch.mul(a, b, out=out),
        "div": lambda: torch.div(a, b, out=out),
        "sqrt": lambda: torch.sqrt(a, out=out),
        "axpy": lambda: torch.add(b, a, alpha=1.25, out=out),
        "dot": lambda: torch.dot(a, b),
    }
    yield "torch float64", plain[row]
    # A copy reads and writes each byte: half of what the operation moves.
    count = moved(row, n, len(a)) // 16
    source, target = torch.rand(count, dtype=torch.float64), torch.empty(count, dtype=torch.float64)
    yield "copy", lambda: target.copy_(source)


def moved(row: str, n: int, size: int) -> int:
    """Bytes that an operation on n components reads and writes."""
    planes = {"sqrt": 2, "dot": 2}.get(row, 3)
    return planes * n * size * 8


def measured(row: str, n: int, threads: int, size: int, rounds: int, seconds: float) -> list[Row]:
    """All variants of one operation."""
    x, y = numbers(n, size, 0), numbers(n, size, 1)
    variants: dict[str, Call] = {}
    for found in (
        ours(row, n, x, y),
        cpp(row, n, threads, x, y),
        packages(row, n, threads, x, y) if size >= LARGE else iter(()),
        limits(row, n, x, y),
    ):
        variants.update(found)
    timings = harness.in_turn(
        variants, rounds=rounds, seconds=seconds, device=torch.device("cpu"), steady=True
    )
    bytes_moved = moved(row, n, size)
    results = []
    for name, t in timings.items():
        elements = 1 if name == "torch float64" else n
        results.append(
            {
                "operation": row,
                "n": n,
                "size": size,
                "threads": threads,
                "variant": name,
                "Gop/s": f"{size / t.median / 1e9:.4f}",
                "median us": f"{t.median * 1e6:.1f}",
                "p20 us": f"{t.quantile(0.2) * 1e6:.1f}",
                "p80 us": f"{t.quantile(0.8) * 1e6:.1f}",
                "GB/s": f"{bytes_moved * elements // n / t.median / 1e9:.1f}",
            }
        )
    return results


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=LARGE, help="elements in memory")
    parser.add_argument("--small", type=int, default=SMALL, help="elements of a thread in cache")
    parser.add_argument("--terms", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="per variant")
    parser.add_argument("--short", action="store_true", help="few rounds")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/*.csv")
    parser.add_argument("--append", action="store_true", help="save, beside the file's other rows")
    options = parser.parse_args()
    if options.short:
        options.rounds, options.seconds = 5, 0.2
    device = torch.device("cpu")
    results: list[Row] = []
    # Before xprec is imported, which replaces numpy.finfo: Numba reads it when it compiles.
    for n in options.terms:
        for size in (8, options.size):
            x, y = numbers(n, size, 0), numbers(n, size, 1)
            for row in options.rows:
                for _, call in ours(row, n, x, y):
                    call()
    for threads in options.threads:
        torch.set_num_threads(threads)
        for n in options.terms:
            for row in options.rows:
                for size, rounds in (
                    (options.size, options.rounds),
                    (options.small * threads, 5 * options.rounds),
                ):
                    found = measured(row, n, threads, size, rounds, options.seconds)
                    print(harness.table(found, list(found[0])), flush=True)
                    results += found
    if options.save or options.append:
        command = " ".join(["python benchmarks/arithmetic.py", *sys.argv[1:]])
        environment = {"command": command, **harness.environment(device)}
        path = Path(__file__).parent / "results" / f"arithmetic-{harness.machine(device)}.csv"
        if options.append:
            key = ("operation", "n", "size", "threads", "variant")
            harness.merge_csv(path, results, environment, key)
        else:
            harness.save_csv(path, results, environment)
        print(f"written: {path}")


if __name__ == "__main__":
    main()
