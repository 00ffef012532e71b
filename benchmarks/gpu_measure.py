"""Rows and sizes of a GPU day, and the timing of a case."""

# The library and the examples are imported from the checkout, whether it is installed or not.
# ruff: noqa: E402

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "examples", ROOT / "benchmarks", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from harness import Timing, queued

# The first ones decide what the others mean.
PRECISIONS = (
    "plus", "8bit", "master", "plain", "bf16_sr", "4bit", "light", "split16", "stochastic",
)  # fmt: skip


class Row(NamedTuple):
    """One result: a value or, where there is none, a word."""

    case: str
    quantity: str
    value: float | str


class Size(NamedTuple):
    """How much work to do: that of a GPU, or what an interpreter on a CPU can do.

    Attributes:
        copied: float32 elements of the copy.
        params: parameters of the optimizer's step, all in one matrix.
        width: width of the model of many tensors.
        blocks: blocks of that model, of ten tensors each.
        elements: elements of arithmetic and functions, of formats wider than 16 bits.
        narrow_elements: elements of arithmetic and functions of 16-bit formats.
        products: rows and columns of matrices.
        models: names of shapes, with the windows of a step.
        vocabulary: tokens of the models; None for those of the shape.
        context: tokens of a window; None for those of the shape.
        rounds: rounds of each case.
        seconds: seconds of all rounds of a case.
        precisions: our precisions in steps and training.
    """

    copied: int
    params: int
    width: int
    blocks: int
    elements: int
    narrow_elements: int
    products: tuple[int, ...]
    models: tuple[tuple[str, int], ...]
    vocabulary: int | None
    context: int | None
    rounds: int
    seconds: float
    precisions: tuple[str, ...]


FULL = Size(
    2**29, 2**30, 528, 30, 2**26, 2**28, (1024, 4096), (("gpt-124m", 16), ("llama-1b", 4)),
    None, None, 9, 1.0, PRECISIONS,
)  # fmt: skip
# On a machine without a GPU, Triton's interpreter runs the kernels.
SMALL = Size(
    2**12, 2**12, 16, 2, 2**8, 2**8, (16,), (("gpt-tiny", 1),),
    256, 16, 3, 0.02, PRECISIONS,
)  # fmt: skip


class Work(NamedTuple):
    """Something to call, and the rows that follow from the seconds of a call."""

    call: Callable[[], object]
    rows: Callable[[float], dict[str, float]] = lambda seconds: {}


class Case(NamedTuple):
    """One measurement.

    Attributes:
        name: the name in the results.
        make: makes the operands and what is called.
        ours: whether it launches kernels of this library.
        host: whether the host's time is a result.
    """

    name: str
    make: Callable[[], Work]
    ours: bool = True
    host: bool = False


def measured(case: Case, device: torch.device, size: Size) -> Iterator[Row]:
    """Time a case; an exception becomes a row, and the next case can run."""
    work = None
    try:
        forget(device)
        work = case.make()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        busy, host = queued(work.call, device, rounds=size.rounds, seconds=size.seconds)
        yield from _told(case, work, busy, host)
        if device.type == "cuda":
            yield Row(case.name, "peak GiB", torch.cuda.max_memory_allocated() / 2**30)
    except ImportError as error:
        yield Row(case.name, "left out", short(error))
    except Exception as error:
        yield Row(case.name, "error", short(error))


def _told(case: Case, work: Work, busy: Timing, host: Timing) -> Iterator[Row]:
    yield Row(case.name, "ms", 1e3 * busy.median)
    if case.host:
        yield Row(case.name, "host ms", 1e3 * host.median)
    for quantity, value in work.rows(busy.median).items():
        yield Row(case.name, quantity, value)


def forget(device: torch.device) -> None:
    """Free what the last case held, so that the peak of memory is that of the next one."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def short(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def copy(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield the copy that tells what the memory can do."""

    def make() -> Work:
        source = torch.empty(size.copied, device=device).normal_()
        target = torch.empty_like(source)
        return Work(lambda: target.copy_(source), lambda s: {"GB/s": 8e-9 * size.copied / s})

    yield Case("copy of float32", make, ours=False)


@functools.cache
def bandwidth(device: torch.device, size: Size) -> float:
    """Return bytes a second that a copy reads and writes."""
    (case,) = copy(device, size)
    work = case.make()
    busy, _ = queued(work.call, device, rounds=5, seconds=size.seconds)
    return 8 * size.copied / busy.median
