"""Report for bugs: `python -m mcf.report` prints versions, compares bits and takes timings."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

import mcf
from mcf.kernels import registry
from mcf.optim import AdamW
from mcf.optim.storage.strategies import PrecisionName

PACKAGES = ("mcf-torch", "torch", "triton", "numba", "llvmlite", "numpy")


def environment() -> Iterator[tuple[str, str]]:
    """Yield versions, machine and settings as pairs of a name and a text."""
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", platform.platform()
    yield "processor", f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    for k in range(torch.cuda.device_count()):
        yield f"gpu {k}", torch.cuda.get_device_name(k)
    for name in sorted(os.environ):
        if name.startswith(("MCF_", "TRITON_", "NUMBA_", "OMP_NUM")):
            yield name, os.environ[name]
    for name, reason in executors().items():
        yield f"executor {name}", reason or "available"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            named = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
            return next(named, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def executors() -> dict[registry.ExecutorName, str]:
    """Return why each executor cannot run; an empty text if it can."""
    found = {}
    for name in registry.EXECUTORS:
        try:
            registry.named(name)
            found[name] = ""
        except ImportError as error:
            found[name] = str(error)
    return found


def _whole(count: int, seed: int, bits: int) -> Tensor:
    """Return random `bits`-bit integers times powers of two, equal on every machine."""
    made = torch.Generator().manual_seed(seed)
    whole = torch.randint(-(2**bits), 2**bits, (count,), generator=made, device="cpu").double()
    exponents = torch.randint(-8, 8, (count,), generator=made, device="cpu").tolist()
    return whole * torch.tensor(
        [2.0 ** (k - bits) for k in exponents], dtype=torch.float64, device="cpu"
    )


def _arithmetic(device: str) -> Iterator[Tensor]:
    for dtype, terms in ((torch.bfloat16, 2), (torch.float32, 3), (torch.float64, 2)):
        x, y = (mcf.tensor(_whole(999, k, 50), terms, dtype).to(device) for k in (1, 2))
        for z in (x + y, x * y, x / (y * y + 1), (x * x).sqrt(), x.sum(), x.exp()):
            yield from z.components


def _weights(seed: int, device: str) -> Tensor:
    return _whole(27 * 38, seed, 7).bfloat16().reshape(27, 38).to(device)


def _training(precision: PrecisionName, device: str) -> Iterator[Tensor]:
    w = torch.nn.Parameter(_weights(3, device))
    optimizer = AdamW([("w", w)], lr=2.0**-6, precision=precision)
    for k in range(5):
        w.grad = _weights(4 + k, device)
        optimizer.step()
    yield w.detach()
    for _, value in sorted(optimizer.state[w].items()):
        if isinstance(value, Tensor):
            yield value


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a hash of the bits of all tensors."""
    made = hashlib.sha256()
    for t in tensors:
        made.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()[:16]


# Computations, and the digest recorded for each.
WORK: dict[str, tuple[Callable[[str], Iterable[Tensor]], str]] = {
    "arithmetic": (_arithmetic, "72d1b0ec4f1b9b22"),
    "AdamW plus": (lambda device: _training("plus", device), "b9fbbe83a98fb2cc"),
    "AdamW 8bit": (lambda device: _training("8bit", device), "3f1d07359e043eda"),
}


def bits() -> Iterator[tuple[str, str, str, bool]]:
    """Yield work, executor, digest of the results, and whether the digest is the recorded one.

    A GPU comes first and replaces Triton's interpreter. If the work raises, the text of the error
    replaces the digest.
    """
    places = [(name, "cpu") for name, reason in executors().items() if not reason]
    if torch.cuda.is_available() and ("triton", "cpu") in places:
        places.remove(("triton", "cpu"))
        places.insert(0, ("triton", "cuda"))
    for name, device in places:
        for work, (compute, recorded) in WORK.items():
            try:
                with mcf.executor(name):
                    found = digest(compute(device))
            except Exception as error:
                found = f"error: {type(error).__name__}: {error}".partition("\n")[0]
            yield work, name if device == "cpu" else f"{name} on {device}", found, found == recorded


def _median(call: Callable[[], object]) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    timer.timeit(3)
    return float(statistics.median(timer.timeit(1).mean for _ in range(5)))


def speed(device: str, count: int = 1 << 22) -> Iterator[tuple[str, float]]:
    """Yield rough timings in milliseconds: medians of five calls after three."""

    def step(make: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype) -> float:
        w = torch.nn.Parameter(torch.ones(count, dtype=dtype, device=device))
        w.grad = torch.full_like(w, 2.0**-10)
        return 1e3 * _median(make([w]).step)

    x = torch.ones(count, device=device)
    yield f"copy of {count} float32", 1e3 * _median(x.clone)
    yield (
        f"step of {count}, torch fused float32",
        step(lambda p: torch.optim.AdamW(p, fused=True), torch.float32),
    )
    for precision in ("plus", "8bit"):
        make = (lambda name: lambda p: AdamW(p, precision=name))(precision)
        yield f"step of {count}, {precision}", step(make, torch.bfloat16)
    pair = mcf.tensor(x.double() / 3, 2, torch.float32)
    yield f"product of {count} float32 pairs", 1e3 * _median(lambda: pair * pair)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 1 if any bits differ from the recorded ones."""
    parser = argparse.ArgumentParser(
        "python -m mcf.report",
        description="Versions and machine, a comparison of all executors' bits with recorded "
        "ones, and a few timings. Put its output into bug reports.",
    )
    parser.add_argument("--no-speed", action="store_true", help="leave the timings out")
    given = parser.parse_args(arguments)
    for name, text in environment():
        print(f"{name + ':':18} {text}")
    print("\nbits")
    wrong = 0
    for work, where, found, same in bits():
        wrong += not same
        print(f"  {work:12} {where:16} {found}  {'as recorded' if same else 'DIFFERENT'}")
    if not given.no_speed:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        print(f"\nmilliseconds on {device}")
        for name, value in speed(device):
            print(f"  {name:40} {value:8.2f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
