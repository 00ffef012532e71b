"""Train one small GPT under every precision strategy and beside other projects' optimizers.

    python benchmarks/strategies.py                  # the model of `make pretrain`, hours
    python benchmarks/strategies.py --quick          # a seventh of its size, 300 steps each
    python benchmarks/strategies.py --report         # table of what there is

Every variant starts from the same weights and sees the same batches, for each seed and beta2. Rows
are appended to a CSV as runs end; started again, the script goes on where it was, and several
processes share the work. Columns: validation loss and its distance from float32 master weights, the
part of each update that the weights took (EDQ / |d|) and lost additions over the last quarter,
bytes per parameter counted on the tensors, and the time of a step in one interleaved run. Then a
long horizon: the same updates at a rate that falls from 4e-6 to 1e-6, where low words stall.
"""

# The model is imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import strategy_report as report
from harness import machine
from horizon import falling
from pretraining import data, measure, model, options
from strategy_variants import Variant, find, set_rate, stored_bytes, variants
from torch import nn

MODELS = {
    "full": ["--steps", "3000"],
    "quick": ["--layers", "2", "--width", "64", "--heads", "2", "--context", "32",
              "--batch-size", "8", "--steps", "300", "--eval-windows", "512"],
}  # fmt: skip
BETA2 = (0.95, 0.99, 0.999)


def groups(gpt: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay, the vectors of norm layers do not."""
    weights = list(gpt.parameters())
    return [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]


def rate(step: int, chosen: options.Options, final: float) -> float:
    """Linear to `lr`, then a half cosine to `final` times it."""
    if step <= chosen.warmup:
        return chosen.lr * step / chosen.warmup
    done = (step - chosen.warmup) / max(1, chosen.steps - chosen.warmup)
    return chosen.lr * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)


def fit(
    gpt: model.GPT, optimizer: torch.optim.Optimizer, part: data.Part, rates: Iterable[float],
    chosen: options.Options, seed: int,
) -> Iterator[int]:  # fmt: skip
    """Train on a part of a corpus with a step for each rate; yield the number of each step."""
    device = next(gpt.parameters()).device
    for step, lr in enumerate(rates, 1):
        windows = data.batch(
            part, seed=seed, step=step, size=chosen.batch_size, length=chosen.context + 1
        )
        set_rate(optimizer, lr)
        optimizer.zero_grad()
        model.loss(gpt, torch.from_numpy(windows).to(device)).backward()
        nn.utils.clip_grad_norm_(gpt.parameters(), chosen.clip)
        optimizer.step()
        yield step


def mean_loss(gpt: model.GPT, windows: npt.NDArray[np.int64]) -> float:
    """Return the mean loss over windows, 64 at a time."""
    device = next(gpt.parameters()).device
    with torch.no_grad():
        parts = torch.from_numpy(windows).to(device).split(64)
        return sum(float(model.loss(gpt, w)) * len(w) for w in parts) / len(windows)


def train(
    variant: Variant, seed: int, beta2: float, chosen: options.Options, corpus: data.Corpus,
    device: torch.device, final: float,
) -> dict[str, Any]:  # fmt: skip
    """Train once and return the row of the table."""
    torch.manual_seed(seed)
    gpt = model.build(chosen, corpus.vocab_size, seed, device).to(variant.weights)
    tracked = {"track_metrics": True} if variant.family == "ours" else {}
    optimizer = variant.make(groups(gpt, chosen.weight_decay), chosen.lr, beta2, seed, **tracked)
    found: list[dict[str, float]] = []
    rates = (variant.rate * rate(step, chosen, final) for step in range(1, chosen.steps + 1))
    for step in fit(gpt, optimizer, corpus.train, rates, chosen, seed):
        if tracked and 4 * step > 3 * chosen.steps:
            found.append(optimizer.metrics())  # type: ignore[attr-defined]
    length = chosen.context + 1
    held_out = data.evenly_spaced(corpus.val, count=chosen.eval_windows, length=length)
    loss = mean_loss(gpt, held_out)
    count = sum(w.numel() for w in gpt.parameters())
    names = ("edq_ratio", "lost_param", "lost_exp_avg_sq")
    return {
        "val_loss": loss,
        **{n: statistics.fmean(f[n] for f in found) if found else math.nan for n in names},
        "bytes_per_param": stored_bytes(optimizer, gpt.parameters()) / count,
    }


def claim(folder: Path, key: str) -> bool:
    """Take a run that no living process has."""
    path = folder / f"{key}.claim"
    try:
        os.write(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY), str(os.getpid()).encode())
    except FileExistsError:
        try:
            os.kill(int(path.read_text() or os.getpid()), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
            return claim(folder, key)
        except PermissionError:
            pass
        return False
    return True


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row in one write, after a header where there is none."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def grid(
    arguments: argparse.Namespace, path: Path, found: list[Variant], device: torch.device
) -> None:
    """All trainings that are not in the CSV yet."""
    chosen = options.parse([*MODELS[arguments.model], "--beta2", "0.5"])
    corpus = data.load(chosen)
    claims = arguments.out / f"claims-{path.stem}"
    claims.mkdir(parents=True, exist_ok=True)
    # The hardest beta2 first, so that a run cut short has it for every seed.
    runs = list(itertools.product(sorted(arguments.beta2, reverse=True), arguments.seeds, found))
    for beta2, seed, variant in tqdm(runs, desc="trainings", mininterval=10):
        if variant.hardest and beta2 != max(BETA2):
            continue
        key = {"model": arguments.model, "steps": str(chosen.steps), "variant": variant.name,
               "family": variant.family, "beta2": str(beta2), "seed": str(seed)}  # fmt: skip
        done = report.read(path)
        if any(all(row[k] == v for k, v in key.items()) for row in done):
            continue
        if not claim(claims, "-".join(key.values()).replace(" ", "_").replace(",", "")):
            continue
        start = time.perf_counter()
        row = train(variant, seed, beta2, chosen, corpus, device, arguments.final)
        append(path, {**key, **row, "seconds": round(time.perf_counter() - start, 1)})


def speed(path: Path, found: list[Variant], device: torch.device) -> None:
    """Time of a step of every variant on the full model's tensors, taking turns."""
    chosen = options.parse(MODELS["full"])
    gpt = model.build(chosen, 256, 0, device)
    makers = {
        v.name: lambda weights, make=v.make: make(
            [{"params": list(weights), "weight_decay": 0.1}], 1e-3, 0.999, 0
        )
        for v in found
        # It drops gradients that it has used: all steps but the first would do nothing.
        if v.family != "heavyball" and v.weights == torch.bfloat16
    }
    path.unlink(missing_ok=True)
    for name, nanoseconds in measure.step_nanoseconds(gpt, makers, rounds=30).items():
        append(path, {"variant": name, "ns_per_param": round(nanoseconds, 3)})


def horizon(path: Path, found: list[Variant], device: torch.device) -> None:
    """The share of the way that ours go in small updates."""
    done = {row["variant"] for row in report.read(path)}
    missing = [v for v in found if v.family == "ours" and v.name not in done]
    for variant in tqdm(missing, desc="long horizon"):
        append(path, {"variant": variant.name, "gone": round(falling(variant, device), 4)})


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        dest="model",
        action="store_const",
        const="quick",
        default="full",
        help="the small model",
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        metavar="NAME",
        help='these alone, also as parts of a precision joined by "_" and as "NAME, rate * 1.4"',
    )
    parser.add_argument("--beta2", type=float, nargs="+", default=list(BETA2))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--final",
        type=float,
        default=1e-3,
        help="share of the learning rate at the end of the cosine: 1e-6 at 1e-3",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "runs", help="where claims are kept")
    parser.add_argument("--report", action="store_true", help="only report what there is")
    arguments = parser.parse_args()  # fmt: skip
    torch.set_num_threads(arguments.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stem = f"strategies-{arguments.model}-{machine(device)}"
    results = ROOT / "benchmarks" / "results"
    paths = [results / f"{stem}{part}.csv" for part in ("", "-speed", "-horizon")]
    if not arguments.report:
        chosen = arguments.variants
        found = list(find(chosen, device)) if chosen else variants(device)
        grid(arguments, paths[0], found, device)
        horizon(paths[2], [v for v in found if v.rate == 1], device)
        # Steps are timed in turns, so a table of some variants would not stand next to the others.
        if not chosen:
            speed(paths[1], found, device)
    report.show(paths)


if __name__ == "__main__":
    main()
