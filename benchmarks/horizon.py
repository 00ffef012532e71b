"""Where small updates go, and how far stored weights are from AdamW in float64.

    python benchmarks/horizon.py     # a minute; the rows are saved

`falling`: the share of the way that weights of 1 go in 3000 equal updates whose rate falls from
4e-6 to 1e-6 on half a cosine. `long`: where 20,000 updates of 1e-5 lead (1.2). Both are means over
512 weights. `distance`: how far 8000 weights are from float64 AdamW after 800 steps with noise, as
a share of the way (`tests/optim/test_long_runs.py`). Of our precisions, and of optimizers of others
that keep all they know of a weight in the weight; the rest have forms of their own.
"""

# The tests' settings are imported from the root.
# ruff: noqa: E402

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import environment, machine, save_csv, table
from strategy_variants import Variant, set_rate, variants

CPU = torch.device("cpu")


def readable(variant: Variant) -> bool:
    """Whether what a variant stores of a weight can be read."""
    return variant.family in ("ours", "torch", "torchao")


def stored(variant: Variant, optimizer: Optimizer, weight: Tensor) -> Tensor:
    """The weight, with what is beside it, in float64."""
    if variant.family != "ours":
        return weight.detach().double()
    parts = optimizer.master_weight(weight, exact=True)  # type: ignore[attr-defined]
    return sum((part.detach().double() for part in parts), torch.zeros(weight.shape).double())


def walk(variant: Variant, rates: Iterable[float], device: torch.device = CPU) -> float:
    """The mean of weights that began at 1, after updates of these rates."""
    # A matrix, as vectors keep wider moments than codes.
    weight = nn.Parameter(torch.ones(16, 32, dtype=variant.weights, device=device))
    weight.grad = torch.full_like(weight, -1)
    # A bf16 second moment takes this beta2 exactly; with .999 it stalls, and updates grow.
    made = variant.make([{"params": [weight], "weight_decay": 0.0}], 4e-6, 0.5, 0)
    for rate in rates:
        set_rate(made, rate)
        made.step()
    return float(stored(variant, made, weight).mean())


def falling(variant: Variant, device: torch.device = CPU, steps: int = 3000) -> float:
    """The share of the way under rates from 4e-6 to 1e-6."""
    rates = [1e-6 + 3e-6 * (1 + math.cos(math.pi * t / steps)) / 2 for t in range(steps)]
    return (walk(variant, rates, device) - 1) / sum(rates)


def distance(variant: Variant) -> float:
    """How far weights are from float64, as a share of the way."""
    from tests.optim.test_long_runs import LR, OPTIONS, STEPS, gradient, rate, start

    begin = start(0).view(100, -1)
    truth = nn.Parameter(begin.double())
    weight = nn.Parameter(begin.clone().to(variant.weights))
    decay, beta2 = OPTIONS["weight_decay"], OPTIONS["betas"][1]
    reference = torch.optim.AdamW([truth], LR, (0.9, beta2), weight_decay=decay)
    made: Any = variant.make([{"params": [weight], "weight_decay": decay}], LR, beta2, 0)
    for t in range(STEPS):
        g = gradient(t, 0).view(100, -1)
        truth.grad, weight.grad = g.double(), g.to(variant.weights)
        for optimizer in (reference, made):
            set_rate(optimizer, rate(t))
            optimizer.step()
    end, way = truth.detach(), truth.detach() - begin.double()
    return float((stored(variant, made, weight) - end).norm() / way.norm())


def main() -> None:
    """Measure, print and save."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [
        {"variant": v.name, "falling": f"{falling(v):.4f}",
         "long": f"{walk(v, [1e-5] * 20_000):.4f}", "distance": f"{distance(v):.2g}"}
        for v in tqdm([v for v in variants(CPU) if readable(v)], desc="small updates")
    ]  # fmt: skip
    path = ROOT / "benchmarks" / "results" / f"horizon-{machine(CPU)}.csv"
    save_csv(path, rows, environment(CPU))
    print(table(rows, list(rows[0])))


if __name__ == "__main__":
    main()
