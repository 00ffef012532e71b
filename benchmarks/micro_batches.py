"""What micro-batches straight into the moments cost in loss and spare in bytes.

    python benchmarks/micro_batches.py               # adds the runs that are missing, then reports
    python benchmarks/micro_batches.py --report

Trains the quick model of `strategies.py` in four micro-batches for each step, whose gradients are
added up in p.grad, in two components (`GradientAccumulator`), or taken into the moments
(`MomentAccumulator`). All runs of a seed start from the same weights and see the same batches; no
clipping, which needs all gradients at once. A row holds the validation loss and the bytes per
parameter between two backward passes of a step, gradients included.
"""

# The model is imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from harness import machine
from pretraining import data, measure, model, options
from strategies import MODELS, append, groups, rate
from strategy_variants import set_rate

from mcf.optim import AdamW, GradientAccumulator, MomentAccumulator

PRECISIONS = ("master", "plus", "bf16_sr", "8bit", "light")
PARTS = 4
# What is done to an optimizer, by what becomes of gradients.
KEPT: dict[str, Callable[[Any], Any]] = {
    "sum": lambda optimizer: None,
    "two components": GradientAccumulator,
    "moments": MomentAccumulator,
}
# Beside which losses are reported.
TRUTH = ("master", "sum")


def train(
    precision: str, kept: str, seed: int, chosen: options.Options, corpus: data.Corpus
) -> dict[str, float]:
    """One training: its loss and its bytes."""
    torch.manual_seed(seed)
    gpt = model.build(chosen, corpus.vocab_size, seed, torch.device("cpu")).to(torch.bfloat16)
    betas = (0.9, 0.99)
    optimizer = AdamW(
        groups(gpt, chosen.weight_decay), chosen.lr, betas, precision=precision, seed=seed
    )
    accumulator = KEPT[kept](optimizer)
    length, stored = chosen.context + 1, 0
    for step in range(1, chosen.steps + 1):
        windows = torch.from_numpy(
            data.batch(corpus.train, seed=seed, step=step, size=chosen.batch_size, length=length)
        )
        set_rate(optimizer, rate(step, chosen, 1e-3))
        for k, part in enumerate(windows.chunk(PARTS)):
            (model.loss(gpt, part) / PARTS).backward()
            if step == 2 and k == 1:
                stored = measure.stored_bytes(optimizer)
                lows = (accumulator.components(p)[1:] for p in gpt.parameters()
                        if isinstance(accumulator, GradientAccumulator))  # fmt: skip
                stored += sum(t.nbytes for low in lows for t in low)
        optimizer.step()
        optimizer.zero_grad()
    held_out = data.evenly_spaced(corpus.val, count=chosen.eval_windows, length=length)
    with torch.no_grad():
        pieces = torch.from_numpy(held_out).split(64)
        loss = sum(float(model.loss(gpt, w)) * len(w) for w in pieces) / len(held_out)
    return {"val_loss": loss, "bytes": stored / sum(w.numel() for w in gpt.parameters())}


def report(rows: list[dict[str, str]]) -> None:
    """Mean distances from float32 master weights with sums, seed by seed, and standard errors."""
    losses = {(r["precision"], r["kept"], r["seed"]): float(r["val_loss"]) for r in rows}
    print("| precision | gradients | bytes | loss less master's | standard error | seeds |")
    print("|---|---|---|---|---|---|")
    for precision in PRECISIONS:
        for kept in KEPT:
            mine = [r for r in rows if (r["precision"], r["kept"]) == (precision, kept)]
            found = [
                float(r["val_loss"]) - losses[(*TRUTH, r["seed"])]
                for r in mine
                if (*TRUTH, r["seed"]) in losses
            ]
            if len(found) < 2:
                continue
            error = statistics.stdev(found) / len(found) ** 0.5
            size, mean = float(mine[0]["bytes"]), statistics.fmean(found)
            words = (precision, kept, f"{size:.2f}", f"{mean:+.4f}", f"{error:.4f}", len(found))
            print(f"| {' | '.join(map(str, words))} |")


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(8)])
    parser.add_argument("--steps", type=int, help="fewer than the quick model's 300")
    parser.add_argument("--report", action="store_true", help="only report what there is")
    parser.add_argument("--out", type=Path, help="the CSV")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    name = f"micro-batches-{machine(torch.device('cpu'))}.csv"
    path = arguments.out or ROOT / "benchmarks" / "results" / name

    def rows() -> list[dict[str, str]]:
        return list(csv.DictReader(path.open())) if path.exists() else []

    if not arguments.report:
        more = [] if arguments.steps is None else ["--steps", str(arguments.steps)]
        chosen = options.parse([*MODELS["quick"], *more, "--beta2", "0.5"])
        corpus = data.load(chosen)
        runs = [(p, k, s) for s in arguments.seeds for k in KEPT for p in PRECISIONS]
        for precision, kept, seed in tqdm(runs, desc="trainings", mininterval=10):
            key = {"precision": precision, "kept": kept, "seed": str(seed)}
            if not any(all(row[k] == v for k, v in key.items()) for row in rows()):
                append(path, {**key, **train(precision, kept, seed, chosen, corpus)})
    report(rows())


if __name__ == "__main__":
    main()
