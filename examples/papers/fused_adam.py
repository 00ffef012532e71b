"""bf16_fused_adam: bf16 weights with 16 bits more are float32 master weights, at its test's length.

    python examples/papers/fused_adam.py                # seconds
    python examples/papers/fused_adam.py --steps 1000

The project (version 0.1; imoneoi/bf16_fused_adam) keeps the high half of a float32 weight as the
bf16 parameter and the low half beside it, cut towards zero, and tests 100 steps against float32
weights with a tolerance of 2e-4. Here its test's settings (rates, eps, decay, betas, sizes of
weights and gradients; of its shapes the two that are small) run under `split16`, which rounds to
nearest, and the same rule with a float32 copy apart; what is told is how many bits differ. Besides,
float64 AdamW on the same gradients says how far both are from no rounding at all.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from parts import paper
from parts.paper import Row
from torch import Tensor, nn

from mcf.optim import AdamW, Precision

# Of the project's test; its third shape, 4096 x 14336, takes minutes here.
SIZES, RATES, EPS, TOLERANCE = (1, 4096), (1e-3, 5e-4, 1e-4), (1e-5, 1e-8), 2e-4
BETAS, DECAY, WEIGHT, GRADIENT = (0.9, 0.95), 0.1, 0.02, 0.001
PRECISIONS = {
    "split16": "split16",
    "split8": "split8",
    "pair (light)": "light",
    "bf16 alone (plain)": "plain",
}


def draws(size: int, seed: int, scale: float) -> Tensor:
    """Numbers about `scale`, from sums of integers, in float64."""
    draw = torch.Generator().manual_seed(seed)
    total = torch.randint(-(2**19), 2**19, (12, size), generator=draw).double().sum(0)
    return total * (scale / 2**20)


def run(size: int, lr: float, eps: float, steps: int) -> list[Row]:
    """All precisions beside a float32 copy of the weight, on the same gradients."""
    start = draws(size, 0, WEIGHT).float()
    names = {**PRECISIONS, "float32": str(Precision(param="float32"))}
    made = {}
    for name, precision in names.items():
        p = nn.Parameter(start.bfloat16())
        made[name] = AdamW(
            [p], lr=lr, betas=BETAS, eps=eps, weight_decay=DECAY, precision=precision
        )
    truth = nn.Parameter(start.bfloat16().double())
    reference = torch.optim.AdamW([truth], lr=lr, betas=BETAS, eps=eps, weight_decay=DECAY)
    for step in range(1, steps + 1):
        g = draws(size, step, GRADIENT).bfloat16()
        for optimizer in (*made.values(), reference):
            (p,) = optimizer.param_groups[0]["params"]
            p.grad = g.to(p.dtype)
            optimizer.step()
    way = (truth.detach() - start.bfloat16().double()).norm()
    stored = {n: o.master_weight(o.param_groups[0]["params"][0]) for n, o in made.items()}
    copy = stored["float32"]
    return [
        {"precision": name, "size": size, "lr": lr, "eps": eps, "steps": steps,
         "different": int((weight.float() != copy).sum()),
         "largest": f"{float((weight.float() - copy).abs().max()):.3g}",
         "off": f"{float((weight.double() - truth).detach().norm() / way):.3g}"}
        for name, weight in stored.items()
    ]  # fmt: skip


def measure(given: argparse.Namespace) -> list[Row]:
    """All settings."""
    return [
        row for size, lr, eps in itertools.product(SIZES, RATES[: given.rates], EPS)
        for row in run(size, lr, eps, given.steps)
    ]  # fmt: skip


def report(rows: list[Row], image: Path) -> None:
    """Table and figure."""
    lines = []
    for name in paper.names(rows, "precision"):
        of = [r for r in rows if r["precision"] == name]
        largest = max(float(r["largest"]) for r in of)
        lines.append({
            "stored": name,
            "weights": sum(int(r["size"]) for r in of),
            "differ from float32's": sum(int(r["different"]) for r in of),
            "by at most": f"{largest:.2g}",
            f"within {TOLERANCE:g}": "yes" if largest <= TOLERANCE else "no",
            "off the way of float64": f"{max(float(r['off']) for r in of):.2g}",
        })  # fmt: skip
    print(paper.table(lines, list(lines[0])))
    made, axes = paper.figure(1)
    place, tiny = axes[0, 0], 1e-12
    lines = [line for line in lines if line["stored"] != "float32"]
    for k, line in enumerate(lines):
        found = [float(r["largest"]) for r in rows if r["precision"] == line["stored"]]
        colour = (*paper.COLOURS[1:4], paper.COLOURS[0])[k]
        place.plot([max(x, tiny) for x in found], [k] * len(found), "o", color=colour, alpha=0.5)
    place.axvline(TOLERANCE, color=paper.GREY, ls="--", lw=1)
    place.text(TOLERANCE / 1.3, -0.45, "its test's tolerance", fontsize=10, ha="right")
    place.axvline(tiny, color=paper.GREY, lw=0.8)
    place.text(tiny * 1.3, -0.45, "the same bits", fontsize=10)
    place.set(xscale="log", ylim=(len(lines) - 0.5, -0.8), xlim=(tiny / 3, 0.05))
    place.set_xlabel("largest difference from float32")
    place.set_yticks(range(len(lines)), [line["stored"] for line in lines])
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--steps", type=paper.whole(1), default=100)
    parser.add_argument("--rates", type=paper.whole(1), default=len(RATES))
    given = parser.parse_args(arguments)
    if given.small:
        given.rates, given.steps = 1, 20
    paper.main("fused_adam", given, measure, report)


if __name__ == "__main__":
    main()
