"""The parts of a GPU day: each yields rows (case, quantity, value) as soon as it has them."""

# The models are imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from harness import in_turn
from pretraining import decoder
from pretraining.shapes import SHAPES
from strategy_variants import Variant, lacks, ours, stored_bytes, theirs

import mcf
import mcf.plan
import mcf.report

PRECISIONS = (
    "plain", "light", "plus", "split16", "stochastic", "bf16_sr", "8bit", "4bit", "master",
)  # fmt: skip


class Row(NamedTuple):
    """One result: a value or, where there is none, a word."""

    case: str
    quantity: str
    value: float | str


class Size(NamedTuple):
    """How much work: that of a GPU, or what a CPU can do in the tests.

    Attributes:
        params: of the optimizer's step, all in one matrix.
        elements: of arithmetic.
        products: rows and columns of matrices.
        models: names of shapes, with their windows of a step.
        rounds: of each variant.
        precisions: ours in the steps.
        peers: whether others' optimizers run too.
        tests: arguments of pytest.
    """

    params: int
    elements: int
    products: tuple[int, ...]
    models: tuple[tuple[str, int], ...]
    rounds: int
    precisions: tuple[str, ...]
    peers: bool
    tests: tuple[str, ...]


FULL = Size(
    2**30, 2**26, (1024, 4096), (("gpt-124m", 16), ("llama-1b", 4)), 9, PRECISIONS, True,
    ("-m", "gpu and not slow and not nightly", "--require-gpu", "-n", "8", "tests"),
)  # fmt: skip
# On a machine without a GPU the kernels of Triton run in its interpreter.
SMALL = Size(
    2**12, 2**8, (16,), (("gpt-1m", 1),), 3, ("plus", "8bit"), False,
    ("-k", "interpreted and two_sum", "tests/kernels/test_triton_gpu.py"),
)  # fmt: skip


def bits(device: torch.device, size: Size) -> Iterator[Row]:
    """Results of all executors beside recorded ones; then the tests of kernels on this device."""
    for work, executor, _, same in mcf.report.bits():
        yield Row(f"{work}, {executor}", "bits", "as recorded" if same else "OTHER BITS")
    # Line by line: what has passed is told though the time is up.
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *size.tests]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    counts = {"PASSED": 0, "FAILED": 0, "ERROR": 0, "SKIPPED": 0}
    assert run.stdout is not None
    for line in run.stdout:
        found = re.search(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b", line)
        # The summary at the end names failures again.
        if found and "%]" in line:
            counts[found[1]] += 1
            yield Row("pytest " + " ".join(size.tests), found[1].lower(), counts[found[1]])
    yield Row("pytest " + " ".join(size.tests), "exit status", run.wait())


def copy(device: torch.device, size: Size) -> Iterator[Row]:
    """Bytes that a copy reads and writes, a second: what the memory can do."""
    yield Row("copy of float32", "GB/s", bandwidth(device, size.elements))


def bandwidth(device: torch.device, elements: int) -> float:
    """Of a copy of so many float32 numbers."""
    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    calls = {"copy": lambda: target.copy_(source)}
    time = in_turn(calls, rounds=20, seconds=5, device=device)["copy"].median
    return 8e-9 * elements / time


def _found(size: Size, device: torch.device) -> Iterator[Variant | Row]:
    """The optimizers over bf16 parameters that run here; a row for each that does not."""
    known = {v.name: v for v in ours()}
    yield from (known[name] for name in size.precisions)
    for peer in theirs() if size.peers else ():
        if peer.weights == torch.bfloat16:
            reason = lacks(peer, device)
            yield Row(peer.name, "left out", reason.partition("\n")[0]) if reason else peer


def steps(device: torch.device, size: Size) -> Iterator[Row]:
    """A step of each optimizer over one matrix, and the share of a copy's bytes a second."""
    copied = bandwidth(device, size.elements)
    plan = {row.name: row for row in mcf.plan.rows(size.params, bandwidth=1e9 * copied)}
    shape = (max(1, size.params >> 12), min(size.params, 1 << 12))
    for variant in _found(size, device):
        if isinstance(variant, Row):
            yield variant
            continue
        weight = torch.nn.Parameter(torch.full(shape, 0.5, dtype=torch.bfloat16, device=device))
        weight.grad = torch.full_like(weight, 2.0**-7)
        optimizer = variant.make([{"params": [weight], "weight_decay": 0.1}], 2.0**-10, 0.999, 0)
        timed = in_turn({"step": optimizer.step}, rounds=size.rounds, seconds=5, device=device)
        seconds = timed["step"].median
        yield Row(variant.name, "ms", 1e3 * seconds)
        yield Row(variant.name, "ns/param", 1e9 * seconds / size.params)
        held = stored_bytes(optimizer, [weight]) / size.params
        yield Row(variant.name, "bytes/param", held)
        if variant.name in plan:
            yield Row(
                variant.name, "share of the copy's speed", plan[variant.name].seconds / seconds
            )


def arithmetic(device: torch.device, size: Size) -> Iterator[Row]:
    """Operations on expansions, ns an element and the share of a copy's bytes a second."""
    copied = bandwidth(device, size.elements)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        for terms in (2, 4):
            whole = torch.arange(1, size.elements + 1, dtype=torch.float64, device=device)
            x = mcf.tensor(whole / 2**30, terms, dtype)
            y = mcf.tensor(whole.flip(0) / 2**20, terms, dtype)
            calls: dict[str, Callable[[], object]] = {
                "x + y": lambda x=x, y=y: x + y,
                "x * y": lambda x=x, y=y: x * y,
                "x / y": lambda x=x, y=y: x / y,
                "sqrt(x)": lambda x=x: x.sqrt(),
                "exp(x)": lambda x=x: x.exp(),
                "x.sum()": lambda x=x: x.sum(),
            }
            times = in_turn(calls, rounds=size.rounds, seconds=2, device=device)
            for name, timing in times.items():
                case = f"{name}, {terms} x {str(dtype).removeprefix('torch.')}"
                yield Row(case, "ns/element", 1e9 * timing.median / size.elements)
                tensors = {"x.sum()": 1, "sqrt(x)": 2, "exp(x)": 2}.get(name, 3)
                moved = tensors * terms * dtype.itemsize * size.elements
                share = moved / (1e9 * copied) / timing.median
                yield Row(case, "share of the copy's speed", share)


def products(device: torch.device, size: Size) -> Iterator[Row]:
    """Matrix products of expansions, multiplications and additions of expansions a second."""
    for n in size.products:
        for dtype in (torch.float32, torch.float64):
            for terms in (1, 2, 4):
                whole = torch.arange(1, n * n + 1, dtype=torch.float64, device=device).view(n, n)
                x = mcf.tensor(whole / 2**20, terms, dtype)
                timed = in_turn(
                    {"x @ x": lambda x=x: x @ x}, rounds=size.rounds, seconds=2, device=device
                )
                case = f"{n} x {n}, {terms} x {str(dtype).removeprefix('torch.')}"
                yield Row(case, "Gop/s", 2e-9 * n**3 / timed["x @ x"].median)


def training(device: torch.device, size: Size) -> Iterator[Row]:
    """Forward, backward and step of decoders: tokens a second and peak memory."""
    for name, windows in size.models:
        shape = SHAPES[name]
        vocabulary = shape.vocabulary if device.type == "cuda" else 256
        model = decoder.build(shape, vocabulary, 0, device)
        parameters = list(model.parameters())
        total = sum(p.numel() for p in parameters)
        yield Row(name, "parameters", total)
        made = torch.Generator().manual_seed(0)
        length = 1 + (shape.context if device.type == "cuda" else 16)
        tokens = torch.randint(vocabulary, (windows, length), generator=made).to(device)
        for variant in _found(size, device):
            if isinstance(variant, Row):
                continue
            yield from _trained(f"{name}, {variant.name}", variant, model, tokens, size, device)


def _trained(
    case: str,
    variant: Variant,
    model: torch.nn.Module,
    tokens: Tensor,
    size: Size,
    device: torch.device,
) -> Iterator[Row]:
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    # Rates of zero: all optimizers see the same model, and a step costs what it costs.
    optimizer = variant.make(groups, 0.0, 0.999, 0)

    def update() -> None:
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    time = in_turn({"update": update}, rounds=size.rounds, seconds=10, device=device)["update"]
    yield Row(case, "tokens/s", tokens[:, 1:].numel() / time.median)
    count = sum(p.numel() for p in parameters)
    yield Row(case, "stored bytes/param", stored_bytes(optimizer, parameters) / count)
    if device.type == "cuda":
        yield Row(case, "peak GiB", torch.cuda.max_memory_allocated() / 2**30)


Section = Callable[[torch.device, Size], Iterable[Row]]
# With the seconds that each may take: 7 minutes and 40 seconds in all.
SECTIONS: dict[str, tuple[Section, int]] = {
    "copy": (copy, 20),
    "steps": (steps, 90),
    "training": (training, 110),
    "arithmetic": (arithmetic, 60),
    "products": (products, 40),
    "bits": (bits, 140),
}
INTERPRETED = {"TRITON_INTERPRET": "1"} if not torch.cuda.is_available() else {}


def environment() -> dict[str, str]:
    """Of a section's process: without a GPU Triton interprets."""
    return {**os.environ, **INTERPRETED}
