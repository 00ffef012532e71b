"""Trainings from one bf16 start under several precisions, measured by two readings of the weights.

`small_rates.py` and `grpo.py` are studies of this form. For each rate and seed, `master` is trained
first and every other precision is compared with its weights. *Served* words are the bf16 parameters
that a model computes with. *Stored* words are all the bits that the optimizer keeps of a weight.
A row of the CSV is one training; started again, a study trains only what has no row yet.
"""

# The models are imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import argparse
import copy
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import strategy_report
from harness import environment, machine
from horizon import stored
from pretraining.model import GPT
from strategies import append, claim
from strategy_variants import TRUTH, Variant, find, stored_bytes

CPU = torch.device("cpu")
# A training that differs from `master` by rounding alone shows how far chance carries two runs.
REPLICATE = f"{TRUTH}, rate * 1.0001"
BETA2 = 0.999
Row = dict[str, Any]


class Study(Protocol):
    """One study: its name, its start, its training, its measures."""

    name: str
    # Columns that belong to the key of each row: what makes a training another one.
    fixed: dict[str, str]

    def start(self, seed: int) -> GPT:
        """Return the model, rounded to bf16, from which all precisions begin."""

    def train(self, gpt: GPT, optimizer: Optimizer, rate: float, seed: int) -> Row:
        """Train in place; return columns that are measured on the way."""

    def measure(self, gpt: GPT, start: GPT) -> Row:
        """Return the columns that are measured on the weights before and after training."""


def parser(description: str, name: str, precisions: list[str], rates: list[float], seeds: int) -> (
    argparse.ArgumentParser
):  # fmt: skip
    """Return a parser of the options that both studies have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--precisions", nargs="+", default=precisions, metavar="NAME")
    made.add_argument("--rates", nargs="+", type=float, default=rates)
    made.add_argument("--seeds", nargs="+", type=int, default=list(range(seeds)))
    made.add_argument("--threads", type=int, default=1)
    results = ROOT / "benchmarks" / "results" / f"{name}-{machine(CPU)}.csv"
    made.add_argument("--results", type=Path, default=results)
    made.add_argument("--out", type=Path, default=ROOT / "runs", help="starts and claims are kept")
    made.add_argument("--quick", action="store_true", help="a few steps of a small model")
    made.add_argument("--report", action="store_true", help="only report what there is")
    made.add_argument("--image", type=Path, default=ROOT / "docs" / "images" / f"{name}.png")
    made.add_argument("--page", type=Path, default=ROOT / "docs" / "small_rates.md")
    return made


def digest(*parts: object) -> str:
    """Return the first 12 hexadecimal digits of a SHA-256 of tensors, texts and JSON values."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.contiguous().view(torch.uint8).numpy().tobytes()
        elif not isinstance(part, bytes):
            part = json.dumps(part).encode()
        # A length, so that two parts are not as one.
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.hexdigest()[:12]


def cached(folder: Path, name: str, gpt: GPT, make: Callable[[], object], *about: object) -> GPT:
    """Return a model with the weights of a file, or of `make`, which trains it in place.

    Args:
        folder: of the file.
        name: what the file's name begins with.
        gpt: the model before training.
        make: trains it.
        about: what the weights depend on beside machine and version of torch.
    """
    where = environment(CPU)
    key = digest(*about, where["device"], where["threads"], where["torch"], where["python"])
    path = folder / f"{name}-{key}.pt"
    if path.exists():
        gpt.load_state_dict(torch.load(path, weights_only=True))
        return gpt
    make()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    torch.save(gpt.state_dict(), temporary)
    os.replace(temporary, path)
    return gpt


def run(study: Study, arguments: argparse.Namespace) -> None:
    """Train what has no row yet, a rate and seed at a time."""
    torch.set_num_threads(arguments.threads)
    # The truth is first, so that the others find its weights.
    names = [TRUTH, *(n for n in arguments.precisions if n != TRUTH)]
    found, where = list(find(names, CPU)), environment(CPU)
    claims = arguments.out / f"claims-{arguments.results.stem}"
    claims.mkdir(parents=True, exist_ok=True)
    for seed, rate in itertools.product(arguments.seeds, arguments.rates):
        fixed = {**study.fixed, "rate": f"{rate:g}", "seed": str(seed)}
        done = {
            row["precision"]: row
            for row in strategy_report.read(arguments.results)
            if all(row[k] == v for k, v in fixed.items())
        }
        if all(v.name in done for v in found):
            continue
        if not claim(claims, "-".join(fixed.values())):
            continue
        start = study.start(seed)
        begun = study.measure(start, start)
        truth: list[Tensor] | None = None
        for variant in found:
            if variant.name in done and truth is not None:
                continue
            row, weights = _training(study, variant, start, truth, rate, seed)
            row = {**{f"start_{name}": value for name, value in begun.items()}, **row}
            truth = weights if truth is None else truth
            if variant.name in done:
                _same(row, done[variant.name], arguments.results)
                continue
            append(arguments.results, {"precision": variant.name, **fixed, **row, **where})
            print(variant.name, *fixed.values(), row["seconds"], flush=True)


def _training(
    study: Study, variant: Variant, start: GPT, truth: list[Tensor] | None, rate: float, seed: int
) -> tuple[Row, list[Tensor]]:
    """Train once; return the row, and the stored weights."""
    began = time.perf_counter()
    gpt = copy.deepcopy(start)
    weights = list(gpt.parameters())
    groups = [{"params": weights, "weight_decay": 0.0}]
    optimizer = variant.make(groups, rate, BETA2, seed)
    more = study.train(gpt, optimizer, variant.rate * rate, seed)
    first = [w.detach().double() for w in start.parameters()]
    last = [stored(variant, optimizer, w) for w in weights]
    wide = copy.deepcopy(gpt).float()
    with torch.no_grad():
        for w, value in zip(wide.parameters(), last, strict=True):
            w.copy_(value)
    measured = {
        f"{reading}_{name}": value
        for reading, model in (("served", gpt), ("stored", wide))
        for name, value in study.measure(model, start).items()
    }
    ours, true, begun = (
        torch.cat([w.flatten() for w in part]) for part in (last, truth or last, first)
    )
    served = torch.cat([w.detach().double().flatten() for w in weights])
    way = true - begun
    return {
        "start": digest(*(w.detach() for w in start.parameters())),
        "bytes_per_param": round(stored_bytes(optimizer, weights) / len(begun), 4),
        **measured,
        "distance": float((ours - true).norm() / way.norm()),
        "way": float((ours - begun) @ way / (way @ way)),
        "served_changed": float((served != begun).double().mean()),
        "stored_changed": float((ours != begun).double().mean()),
        **more,
        "seconds": round(time.perf_counter() - began, 1),
    }, last


def _same(row: Row, before: dict[str, str], path: Path) -> None:
    """Exit where a training does not give its row again: distances would be to other weights."""
    for name in ("start", *(k for k in row if k.startswith("stored_"))):
        if str(row[name]) != before[name]:
            sys.exit(
                f"{path}: {TRUTH} at rate {before['rate']}, seed {before['seed']} has {name} "
                f"{before[name]}, and {row[name]} when trained again: another machine or version "
                "made it; give another file with --results"
            )
