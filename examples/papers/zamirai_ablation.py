"""Zamirai et al.: which rounding to bf16 harms, each alone, and what mends it.

    python examples/papers/zamirai_ablation.py          # minutes on one thread
    python examples/papers/zamirai_ablation.py --models recurrent --steps 4000 --seeds 16

Three small models (`zamirai_models.py`) are trained in float32 with one kind of rounding each:
"forward" (weights that are read, outputs of all operations), "backward" (gradients of those
outputs), "gradient" (of the weights), "state" (moments, after each step), "update" (the weights,
after each step). Then all of them, in bf16 parameters under `mcf.optim`: rounded to nearest, by
Kahan's summation, stochastically. All runs of a model have the same first weights and batches for
each seed; what is told is the loss on held-out data less that of float32, of the same seed.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from parts import paper, zamirai_models
from parts.paper import Row
from parts.zamirai_models import Model, Rounding, to_bf16
from torch import nn

import mcf.optim

MODELS = {
    "convolutional": zamirai_models.convolutional,
    "recurrent": zamirai_models.recurrent,
    "embedding-heavy": zamirai_models.embedding,
}
ALONE = ("forward", "backward", "gradient", "state", "update")
EVERYWHERE: dict[str, dict[str, str]] = {
    "all": {"precision": "plain"},
    "all, Kahan": {"precision": "kahan"},
    "all, stochastic": {"precision": "stochastic"},
    "all, both": {"precision": "kahan", "low": "stochastic"},
}
VARIANTS = ("float32", *ALONE, "all but update", *EVERYWHERE)
EVALUATIONS = 8


def kinds(variant: str) -> set[str]:
    """What a variant rounds."""
    if variant in ALONE:
        return {variant}
    if variant == "all but update":
        return {*ALONE} - {"update"}
    return {*ALONE} if variant in EVERYWHERE else set()


def optimizer(model: Model, weights: list[nn.Parameter], variant: str) -> torch.optim.Optimizer:
    """AdamW or SGD with momentum: torch's in float32, ours where the weights are bf16."""
    library, how = (mcf.optim, EVERYWHERE[variant]) if variant in EVERYWHERE else (
        torch.optim, {})  # fmt: skip
    if model.adam:
        return library.AdamW(weights, lr=model.lr, weight_decay=0.0, **how)
    return library.SGD(weights, lr=model.lr, momentum=0.9, **how)


def train(model: Model, variant: str, seeds: int, steps: int) -> list[Row]:
    """One training of a stack; a row for each seed."""
    start = time.process_time()
    rounds = kinds(variant)
    q = Rounding("forward" in rounds, "backward" in rounds)
    dtype = torch.bfloat16 if variant in EVERYWHERE else torch.float32
    weights = [nn.Parameter(w.to(dtype)) for w in model.weights(seeds)]
    chosen = optimizer(model, weights, variant)
    last = range(steps, 0, -max(1, steps // (5 * EVALUATIONS)))[:EVALUATIONS]
    found = []
    held_out = model.batch(seeds, 0)
    for step in range(1, steps + 1):
        done = step / steps
        cosine = 0.505 + 0.495 * math.cos(math.pi * done)
        chosen.param_groups[0]["lr"] = model.lr * min(10 * done, cosine)
        chosen.zero_grad()
        model.losses(weights, model.batch(seeds, step), q).sum().backward()
        if variant not in EVERYWHERE:
            round_parts(chosen, rounds, before=True)
        chosen.step()
        if variant not in EVERYWHERE:
            round_parts(chosen, rounds, before=False)
        if step in last:
            with torch.no_grad():
                found.append(model.losses(weights, held_out, q).double())
    seconds = round((time.process_time() - start) / seeds, 2)
    return [
        {"model": model.name, "variant": variant, "seed": seed, "steps": steps, "loss": loss,
         "parameters": sum(w.numel() for w in weights) // seeds, "cpu_seconds": seconds}
        for seed, loss in enumerate(torch.stack(found).mean(0).tolist())
    ]  # fmt: skip


@torch.no_grad()
def round_parts(chosen: torch.optim.Optimizer, rounds: set[str], before: bool) -> None:
    """Round gradients before a step of a float32 optimizer; states and weights behind it."""
    for w in chosen.param_groups[0]["params"]:
        if before and "gradient" in rounds:
            w.grad.copy_(to_bf16(w.grad))
        if not before and "state" in rounds:
            for x in chosen.state[w].values():
                if x is not None and x.dim():
                    x.copy_(to_bf16(x))
        if not before and "update" in rounds:
            w.copy_(to_bf16(w))


def measure(given: argparse.Namespace) -> list[Row]:
    """All variants of all models."""
    rows: list[Row] = []
    for name in given.models:
        model = MODELS[name]()
        for variant in VARIANTS:
            rows += train(model, variant, given.seeds, given.steps)
    return rows


def gaps(rows: list[Row], model: str, variant: str) -> list[float]:
    """Losses less float32's of the same seed."""
    mine = paper.values(rows, "loss", model=model, variant=variant)
    truth = paper.values(rows, "loss", model=model, variant="float32")
    return [a - b for a, b in zip(mine, truth, strict=True)]


def report(rows: list[Row], image: Path) -> None:
    """Table and figure."""
    models = paper.names(rows, "model")
    lines = []
    for variant in VARIANTS:
        line = {"rounded": variant}
        for model in models:
            if variant == "float32":
                line[model] = paper.spread(paper.values(rows, "loss", model=model, variant=variant))
            else:
                line[model] = paper.spread(gaps(rows, model, variant), "+.4f")
        lines.append(line)
    print(paper.table(lines, list(lines[0])))
    made, axes = paper.figure(len(models))
    for place, model in zip(axes[0], models, strict=True):
        for row, variant in enumerate(VARIANTS[1:]):
            mean, error = paper.mean_error(gaps(rows, model, variant))
            harms = "update" in kinds(variant) and variant in ("update", "all")
            colour = paper.COLOURS[0 if harms else 1]
            place.errorbar(mean, row, xerr=2 * error, fmt="o", ms=5, color=colour, capsize=2)
        place.axvline(0, color=paper.GREY, lw=0.8)
        place.set_yticks(range(len(VARIANTS) - 1), VARIANTS[1:])
        place.invert_yaxis()
        place.locator_params(axis="x", nbins=5)
        count = paper.values(rows, "parameters", model=model)[0]
        place.set_title(f"{model}, {count:,.0f} parameters", loc="left")
        place.set_xlabel("held-out loss - float32's")
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=paper.whole(1), default=300)
    parser.add_argument("--seeds", type=paper.whole(2), default=6)
    given = parser.parse_args(arguments)
    if given.small:
        given.steps, given.seeds = 3, 2
    paper.main("zamirai_ablation", given, measure, report, ("model", "variant", "seed"))


if __name__ == "__main__":
    main()
