"""Many small trainings in pairs: how far each precision ends from float32 master weights.

    python benchmarks/quality.py                     # what is missing of 24 seeds; hours
    python benchmarks/quality.py --strategies 4bit   # a strategy more, for the seeds that are there
    python benchmarks/quality.py --report            # table and plot of what there is
    python benchmarks/quality.py --tasks gpt --stack 1 --seeds 5 --results gpt.jsonl   # larger

Every strategy has the same initial weights and batches for each seed; what is compared is the
difference to `master` with the same task, beta2 and seed. A loss is the mean of eight evaluations
over the last fifth. A row of the results is one training; it names processor and versions. Started
again, the script goes on behind the rows that are there, with the same rows: stacks of seeds are
fixed, and no training takes anything from an earlier one. All strategies and betas of a stack come
before the next stack, so that a study cut short is one of fewer seeds.
"""

# The models are imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# One process: torchao's steps are compiled here and not by a pool.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
from filelock import FileLock, Timeout

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import quality_report as report
from harness import environment, machine
from quality_tasks import STEPS, TASKS, Stack, Task
from strategies import BETA2, rate
from strategy_variants import TRUTH, Variant, find, set_rate, stored_bytes
from torch import nn

CPU = torch.device("cpu")
# Noise in a second moment acts as a larger rate, which may help: this says how much it would.
FASTER = f"{TRUTH}, rate * 1.1"
# A training that differs from `master` by rounding alone shows how far chance carries two runs.
REPLICATE = f"{TRUTH}, rate * 1.0001"
# `stochastic` loses additions to its second moment at .999: a study that does not see it sees
# nothing.
STRATEGIES = (
    TRUTH, REPLICATE, "plus", "split16_sr", "split8_sr", "split16_8bit", "bf16_sr", "8bit",
    "4bit", "torchao 8 bit stochastic", "torchao 4 bit stochastic", "stochastic", FASTER,
    "light", "split8_8bit", "torch fp32", "torch bf16",
)  # fmt: skip
EVALUATIONS = 8
Row = dict[str, Any]
KEY = ("task", "steps", "stack", "variant", "beta2", "seed")


def train(variant: Variant, task: Task, seeds: range, beta2: float) -> list[Row]:
    """Train a stack; a row for each seed."""
    start = time.process_time()
    torch.manual_seed(seeds.start)
    stack = Stack(task, seeds, variant.weights)
    chosen, weights = task.chosen, (stack.matrices, stack.vectors)
    optimizer = variant.make(stack.groups(chosen.weight_decay), chosen.lr, beta2, seeds.start)
    every = max(1, chosen.steps // (5 * EVALUATIONS))
    last = range(chosen.steps, 0, -every)[:EVALUATIONS]
    found = []
    for step in range(1, chosen.steps + 1):
        set_rate(optimizer, variant.rate * rate(step, chosen, 1e-3))
        optimizer.zero_grad()
        # Models of a stack share no weight: a sum of losses gives each its own gradient.
        stack.losses(step).sum().backward()
        optimizer.step()
        if step in last:
            with torch.no_grad():
                found.append(stack.losses(0).double())
    means = torch.stack(found).mean(0).tolist()
    size = stored_bytes(optimizer, weights) / sum(w.numel() for w in weights)
    seconds = round((time.process_time() - start) / len(seeds), 2)
    return [
        {"task": task.name, "steps": chosen.steps, "stack": len(seeds), "variant": variant.name,
         "family": variant.family, "beta2": str(beta2), "seed": str(seed),
         "val_loss": task.told(mean), "bytes_per_param": round(size, 4), "cpu_seconds": seconds}
        for seed, mean in zip(seeds, means, strict=True)
    ]  # fmt: skip


def read(path: Path) -> list[Row]:
    """All rows; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, rows: list[Row]) -> None:
    """Add rows under a temporary name that is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    before = path.read_text() if path.exists() else ""
    temporary.write_text(before + "".join(json.dumps(row) + "\n" for row in rows))
    os.replace(temporary, path)


def task(name: str, steps: int, lr: float | None = None, scale: float = 1) -> Task:
    """Return a task, with another name where its rate or its start is another."""
    made = TASKS[name](steps)
    if lr is not None:
        chosen = dataclasses.replace(made.chosen, lr=lr)
        made = dataclasses.replace(made, name=f"{name} at {lr:g}", chosen=chosen)
    return made if scale == 1 else scaled(made, scale)


def scaled(task: Task, factor: float) -> Task:
    """Return a task whose matrices begin larger."""

    def build(seed: int) -> nn.Module:
        net = task.build(seed)
        with torch.no_grad():
            for w in net.parameters():
                if w.dim() > 1:
                    w.copy_((w * factor).bfloat16())
        return net

    return dataclasses.replace(task, name=f"{task.name}, weights * {factor:g}", build=build)


def study(arguments: argparse.Namespace, path: Path) -> None:
    """All trainings that are not in the results."""
    found = list(find(arguments.strategies, CPU))
    chosen = [
        task(name, arguments.steps, arguments.lr, arguments.scale) for name in arguments.tasks
    ]
    where = environment(CPU)
    stacks = [
        range(s, s + arguments.stack)
        for s in range(arguments.first, arguments.first + arguments.seeds, arguments.stack)
    ]
    for seeds, picked, beta2, variant in itertools.product(
        stacks, chosen, sorted(arguments.beta2, reverse=True), found
    ):
        done = {tuple(str(row[k]) for k in KEY) for row in read(path)}
        name = (picked.name, str(picked.chosen.steps), str(len(seeds)), variant.name, str(beta2))
        if all((*name, str(seed)) in done for seed in seeds):
            continue
        rows = train(variant, picked, seeds, beta2)
        append(path, [{**row, **where} for row in rows])
        mean = sum(row["val_loss"] for row in rows) / len(rows)
        print(*name, seeds, f"{mean:.4f}", rows[0]["cpu_seconds"], flush=True)


def main(argv: list[str] | None = None) -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), metavar="NAME")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["text", "pieces"])
    parser.add_argument("--beta2", nargs="+", type=float, default=list(BETA2))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=24, help="how many")
    parser.add_argument("--stack", type=int, default=8, help="seeds trained at once")
    parser.add_argument("--steps", type=int, default=STEPS, help="updates")
    parser.add_argument("--lr", type=float, help="highest learning rate, if not the task's own")
    parser.add_argument("--scale", type=float, default=1.0, help="of the matrices at the start")
    parser.add_argument("--threads", type=int, default=1)
    results = ROOT / "benchmarks" / "results" / f"quality-{machine(CPU)}.jsonl"
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--report", action="store_true", help="only report what there is")
    arguments = parser.parse_args(argv)
    if arguments.first % arguments.stack or arguments.seeds % arguments.stack:
        parser.error(
            f"--first {arguments.first} and --seeds {arguments.seeds} must be multiples of "
            f"--stack {arguments.stack}: a stack is trained whole"
        )
    torch.set_num_threads(arguments.threads)
    if not arguments.report:
        (ROOT / "runs").mkdir(exist_ok=True)
        try:
            with FileLock(ROOT / "runs" / f"{arguments.results.stem}.lock", timeout=0):
                study(arguments, arguments.results)
        except Timeout:
            parser.error(f"another process writes {arguments.results}")
    report.show(read(arguments.results))


if __name__ == "__main__":
    main()
