"""Collage's Figures 1 and 4 and Tables 1, 2 and 8: betas as pairs, and memory, counted.

    python examples/papers/collage_memory.py            # seconds
    python examples/papers/collage_memory.py --memory 80 --no-recompute

Nothing here is measured on a GPU. Bytes per parameter are those of the tensors of a real optimizer;
peak memory and the longest sequence come from the formulae of `examples/pretraining/scaling.py`
(docs/scaling.md), in the paper's setting: tensor parallelism of 8 in a machine, blocks computed
again in the backward pass (`--no-recompute`: kept), embedding and head cut as well. An allocator
needs more than the tensors that are alive, so these are lower bounds. Table 1 is exact.
"""

from __future__ import annotations

import argparse
import dataclasses
from fractions import Fraction
from pathlib import Path

import torch
from parts import paper
from parts.paper import Row
from pretraining import scaling
from pretraining.dry_run import state_bytes
from pretraining.scaling import Mesh, Work
from pretraining.shapes import SHAPES, Shape, gpt

import mcf
from mcf.optim import AdamW

OPTIONS = {"A": "plain", "B": "light", "C": "plus", "D": "master"}
KINDS = {
    "parameter": {"param"},
    "gradient": {"grad"},
    "moments": {"exp_avg", "exp_avg_sq"},
    "low words or masters": {"param_lo", "exp_avg_sq_lo", "master_param"},
}
BETAS = ("0.9", "0.95", "0.98", "0.99", "0.999", "0.9999")
TENSOR = 8
MODELS = {
    "GPT 125M": gpt(12, 768, 12, 2048),
    "GPT 1.3B": gpt(24, 2048, 16, 2048),
    "GPT 2.7B": gpt(32, 2560, 32, 2048),
    "GPT 6.7B": gpt(32, 4096, 32, 2048),
    "OpenLLaMA 7B": dataclasses.replace(SHAPES["llama-7b"], context=2048),
}
# Half of the layers, as with two stages of pipeline parallelism.
LARGEST = gpt(24, 7168, 56)
LENGTHS = range(256, 32769, 256)


def row(table: str, option: str, case: str, value: object) -> Row:
    """A row of the results."""
    return {"table": table, "option": option, "case": case, "value": value}


def pairs() -> list[Row]:
    """Table 1: each beta in one bf16 number and in two, and how far they are off, exactly."""
    rows = []
    for beta in BETAS:
        pair = mcf.tensor(beta, terms=2, dtype=torch.bfloat16)
        parts = [Fraction(float(x)) for x in pair.components]
        for name, value in (("bf16", parts[0]), ("pair", sum(parts))):
            error = float(abs(value - Fraction(beta)))
            rows.append(row("beta2", name, beta, f"{error:.3g}"))
        rows += [row("beta2", f"part {k}", beta, repr(float(x))) for k, x in enumerate(parts)]
    return rows


def stored() -> list[Row]:
    """Figure 1 and Table 2: bytes of what one bf16 parameter has, counted on an optimizer."""
    rows = []
    for option, precision in OPTIONS.items():
        p = torch.nn.Parameter(torch.zeros(1024, dtype=torch.bfloat16))
        p.grad = torch.zeros_like(p)
        optimizer = AdamW([p], precision=precision)
        optimizer.init_state()
        tensors = {"param": p, "grad": p.grad, **optimizer.state[p]}
        sizes = {
            n: t.numel() * t.element_size() / p.numel()
            for n, t in tensors.items() if isinstance(t, torch.Tensor) and t.numel() > 1
        }  # fmt: skip
        known = set().union(*KINDS.values())
        if not known >= sizes.keys():
            raise AssertionError(f"{sorted(sizes.keys() - known)} belong to no bar")
        for kind, names in KINDS.items():
            rows.append(row("bytes", option, kind, sum(sizes.get(n, 0.0) for n in names)))
    return rows


def peak(shape: Shape, option: str, windows: int, recompute: bool, in_flight: int = 1) -> float:
    """Bytes on one of 8 tensor parallel devices at the fullest moment."""
    # Megatron cuts embedding and head, which `scaling` leaves whole: an eighth of the tokens.
    vocabulary = -(-shape.vocabulary // TENSOR)
    work = Work(shape, vocabulary, windows, 1, state_bytes(OPTIONS[option]), recompute)
    held = scaling.memory(work, Mesh(1, 1, TENSOR))
    return sum(held.values()) + (in_flight - 1) * held["activations"]


def longest(option: str, windows: int, memory: float, recompute: bool) -> int:
    """The longest sequence of GPT 30B in the steps of LENGTHS that fits; 0 where none does.

    The first of two stages of a pipeline keeps the activations of two micro-batches.
    """
    found = 0
    for length in LENGTHS:
        shape = dataclasses.replace(LARGEST, context=length)
        if peak(shape, option, windows, recompute, in_flight=2) <= memory:
            found = length
    return found


def measure(given: argparse.Namespace) -> list[Row]:
    """All tables."""
    rows = [*pairs(), *stored()]
    for option in OPTIONS:
        for name, shape in MODELS.items():
            size = peak(shape, option, 1, given.recompute) / 2**30
            rows.append(row("peak GiB", option, name, f"{size:.4g}"))
        for windows in (1, 2):
            length = longest(option, windows, given.memory * 2**30, given.recompute)
            rows.append(row("longest", option, f"micro-batch {windows}", length))
    return rows


def report(rows: list[Row], image: Path) -> None:
    """Tables and figure."""
    found = {(r["table"], r["option"], r["case"]): r["value"] for r in rows}
    betas = [
        {"beta2": b, "in bf16": found["beta2", "part 0", b],
         "as a pair": f"({found['beta2', 'part 0', b]}, {found['beta2', 'part 1', b]})",
         "error in bf16": found["beta2", "bf16", b], "of the pair": found["beta2", "pair", b]}
        for b in BETAS
    ]  # fmt: skip
    sizes = []
    for o, precision in OPTIONS.items():
        each = {kind: float(found["bytes", o, kind]) for kind in KINDS}
        saved = {
            m: 1 - float(found["peak GiB", o, m]) / float(found["peak GiB", "D", m]) for m in MODELS
        }
        sizes.append(
            {"option": f"{o}, `{precision}`", "bytes": f"{sum(each.values()):g}",
             **{m: f"{float(found['peak GiB', o, m]):.2f}" for m in MODELS},
             "less than D": f"{sum(saved.values()) / len(saved):.1%}",
             "longest, 1": found["longest", o, "micro-batch 1"],
             "longest, 2": found["longest", o, "micro-batch 2"]}
        )  # fmt: skip
    for table in (betas, sizes):
        print(paper.table(table, list(table[0])) + "\n")
    made, axes = paper.figure(3)
    bars, peaks, lengths = axes[0]
    names = list(OPTIONS)
    bottom = [0.0] * len(names)
    for kind, colour in zip(KINDS, (*paper.COLOURS[1:4], paper.COLOURS[0]), strict=True):
        high = [float(found["bytes", o, kind]) for o in names]
        bars.bar(names, high, bottom=bottom, color=colour, label=kind, width=0.6)
        bottom = [a + b for a, b in zip(bottom, high, strict=True)]
    bars.set(title="bytes per parameter", ylim=(0, 21))
    bars.legend(fontsize=10, loc="upper left", ncols=2)
    colours = (paper.COLOURS[0], paper.COLOURS[2], paper.COLOURS[1], paper.BLACK)
    for o, colour in zip(names, colours, strict=True):
        high = [float(found["peak GiB", o, m]) for m in MODELS]
        peaks.plot(range(len(MODELS)), high, "o-", ms=4, color=colour, label=o)
        at = [float(found["longest", o, f"micro-batch {n}"]) for n in (1, 2)]
        place = names.index(o)
        for k, value in enumerate(at):
            where, pale = place + 0.36 * k - 0.18, 1 - 0.45 * k
            bar = lengths.bar(where, value, 0.34, color=colour, alpha=pale)
            lengths.bar_label(bar, fontsize=9)
    peaks.set_xticks(range(len(MODELS)), [m.replace(" ", "\n") for m in MODELS])
    peaks.set(title="peak GiB of a device, computed", ylim=0)
    peaks.legend()
    lengths.set_xticks(range(len(names)), names)
    lengths.set(title="longest sequence, GPT 30B: micro-batch 1, 2")
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--memory", type=float, default=40, help="GiB of a device (40)")
    parser.add_argument("--no-recompute", dest="recompute", action="store_false")
    given = parser.parse_args(arguments)
    if not given.memory > 0:
        parser.error(f"argument --memory: {given.memory} is not a positive number")
    paper.main("collage_memory", given, measure, report)


if __name__ == "__main__":
    main()
