"""Collage's Figure 3 and Table 6 in miniature: beta2 and the batch size; does option D explode?

    python examples/papers/collage_beta2.py             # a minute on one thread
    python examples/papers/collage_beta2.py --steps 3000 --seeds 24 --batches 8 32

The text task of `benchmarks/quality.py` (a transformer of one block, 17,088 parameters, on the
standard library's sources), a stack of seeds at once, under the paper's options A to D and float32
states without masters; for each seed and batch size all begin alike and see the same batches. What
is told is the held-out loss less that of D. Then D and C at beta2 = .99 at rates up to 64 times the
task's: the paper saw the loss of D explode there, and not that of C. A spike is a rise of a seed's
training loss, a mean of ten steps, by more than half a nat over its least before.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import torch
from parts import paper
from parts.paper import Row
from quality_tasks import TASKS, Stack, Task
from torch import Tensor

from mcf.optim import AdamW

OPTIONS = {"A": "plain", "B": "light", "C": "plus", "D without masters": "fp32_states",
           "D": "master"}  # fmt: skip
BETA2 = (0.95, 0.99, 0.999)
SPIKE, WINDOW = 0.5, 10


def task_of(steps: int, size: int) -> Task:
    """The text task with another number of windows in a batch."""
    task = TASKS["text"](steps)
    each = task.chosen.batch_size
    parts = -(-size // each)

    def batch(seed: int, step: int) -> tuple[Tensor, ...]:
        if step == 0:
            return task.batch(seed, 0)
        found = [task.batch(seed, step * parts - k) for k in range(parts)]
        return tuple(torch.cat(x)[:size] for x in zip(*found, strict=True))

    return dataclasses.replace(task, batch=batch)


def train(
    task: Task, option: str, beta2: float, seeds: int, lr: float
) -> tuple[list[float], Tensor, dict[str, float]]:
    """Held-out losses by seed, training losses [steps, seeds], metrics of the last quarter."""
    steps = task.chosen.steps
    stack = Stack(task, range(seeds), torch.bfloat16)
    optimizer = AdamW(
        stack.groups(task.chosen.weight_decay), lr=lr, betas=(0.9, beta2),
        precision=OPTIONS[option], track_metrics=True,
    )  # fmt: skip
    losses, found = [], []
    for step in range(1, steps + 1):
        done = step / steps
        for group in optimizer.param_groups:
            group["lr"] = lr * min(10 * done, 0.5005 + 0.4995 * math.cos(math.pi * done))
        optimizer.zero_grad()
        each = stack.losses(step)
        each.sum().backward()
        optimizer.step()
        losses.append(each.detach())
        if 4 * step > 3 * steps:
            found.append(optimizer.metrics())
    with torch.no_grad():
        ends = stack.losses(0).tolist()
    names = ("edq_ratio", "lost_param", "lost_exp_avg_sq")
    return ends, torch.stack(losses), {n: sum(f[n] for f in found) / len(found) for n in names}


def spikes(losses: Tensor) -> int:
    """How many seeds have a spike, or a loss that is no number."""
    means = losses[: len(losses) // WINDOW * WINDOW].view(-1, WINDOW, losses.shape[1]).mean(1)
    rise = (means - means.cummin(0).values).amax(0)
    return int((~(rise <= SPIKE)).sum())


def measure(given: argparse.Namespace) -> list[Row]:
    """The grid, then the search."""
    rows: list[Row] = []
    for size in given.batches:
        task = task_of(given.steps, size)
        for beta2 in BETA2:
            for option in OPTIONS:
                ends, losses, metrics = train(task, option, beta2, given.seeds, task.chosen.lr)
                rows += [
                    row("grid", size, beta2, option, 1, seed, end, spikes(losses), metrics)
                    for seed, end in enumerate(ends)
                ]
    task = task_of(given.steps, given.batches[0])
    for times in given.rates:
        for option in ("C", "D"):
            lr = times * task.chosen.lr
            ends, losses, metrics = train(task, option, 0.99, given.seeds, lr)
            rows += [
                row("search", given.batches[0], 0.99, option, times, seed, end, spikes(losses),
                    metrics)
                for seed, end in enumerate(ends)
            ]  # fmt: skip
    return rows


def row(
    what: str, size: int, beta2: float, option: str, times: int, seed: int, loss: float,
    spiked: int, metrics: dict[str, float],
) -> Row:  # fmt: skip
    """A row of the results."""
    return {
        "what": what, "batch": size, "beta2": beta2, "option": option, "rate": times, "seed": seed,
        "loss": f"{loss:.6f}", "spikes": spiked, **{k: f"{x:.5f}" for k, x in metrics.items()},
    }  # fmt: skip


def gaps(rows: list[Row], **of: object) -> list[float]:
    """Losses of the grid less those of D with the same seed."""
    mine = paper.values(rows, "loss", what="grid", **of)
    truth = paper.values(rows, "loss", what="grid", **{**of, "option": "D"})
    return [a - b for a, b in zip(mine, truth, strict=True)]


def report(rows: list[Row], image: Path) -> None:
    """Tables and figure."""
    sizes, betas = (paper.names([r for r in rows if r["what"] == "grid"], c)
                    for c in ("batch", "beta2"))  # fmt: skip
    cases = [(size, beta2) for size in sizes for beta2 in betas]
    lines = []
    for option in OPTIONS:
        line = {"option": option}
        for size, beta2 in cases:
            of = {"batch": size, "beta2": beta2, "option": option}
            told = paper.spread(paper.values(rows, "loss", what="grid", **of), ".3f")
            gap = paper.spread(gaps(rows, **of), "+.4f")
            line[f"{size}, {beta2}"] = told if option == "D" else gap
        for name in ("edq_ratio", "lost_param", "lost_exp_avg_sq"):
            found = paper.values(rows, name, what="grid", batch=sizes[-1], beta2=betas[-1],
                                 option=option)  # fmt: skip
            line[name] = f"{found[0]:.3f}"
        lines.append(line)
    print(paper.table(lines, list(lines[0])))
    search = []
    for times in paper.names([r for r in rows if r["what"] == "search"], "rate"):
        line = {"rate, times the task's": times}
        for option in ("C", "D"):
            of = {"what": "search", "rate": times, "option": option}
            line[f"loss of {option}"] = paper.spread(paper.values(rows, "loss", **of), ".3f")
            spiked = int(paper.values(rows, "spikes", **of)[0])
            line[f"seeds of {option} with a spike"] = str(spiked)
        search.append(line)
    print("\n" + paper.table(search, list(search[0])))
    made, axes = paper.figure(len(sizes))
    colours = (paper.COLOURS[0], paper.COLOURS[2], paper.COLOURS[1], paper.COLOURS[5])
    for place, size in zip(axes[0], sizes, strict=True):
        for k, (option, colour) in enumerate(zip(list(OPTIONS)[:-1], colours, strict=True)):
            each = [gaps(rows, batch=size, beta2=b, option=option) for b in betas]
            found = [paper.mean_error(x) for x in each]
            at = [n + 0.1 * (k - 1.5) for n in range(len(betas))]
            place.errorbar(at, [m for m, _ in found], [2 * e for _, e in found], fmt="o",
                           color=colour, capsize=2, label=option)  # fmt: skip
        place.axhline(0, color=paper.GREY, lw=0.8)
        place.set_xticks(range(len(betas)), betas)
        place.set(title=f"batches of {size} windows", xlabel="beta2", ylabel="held-out loss - D's")
    axes[0, 0].legend(fontsize=10, loc="center", bbox_to_anchor=(0.5, 0.3), ncols=2)
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--steps", type=paper.whole(WINDOW), default=150)
    parser.add_argument("--seeds", type=paper.whole(2), default=4)
    parser.add_argument("--batches", type=paper.whole(1), nargs="+", default=[2, 8])
    parser.add_argument("--rates", type=paper.whole(1), nargs="+", default=[1, 16, 64])
    given = parser.parse_args(arguments)
    if given.small:
        given.steps, given.seeds, given.batches, given.rates = 10, 2, [1], [64]
    paper.main("collage_beta2", given, measure, report)


if __name__ == "__main__":
    main()
