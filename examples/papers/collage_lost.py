"""Collage's Figure 2 and Definitions 3.2 and 3.3: weights, updates, and what of them is lost.

    python examples/papers/collage_lost.py              # half a minute on one thread
    python examples/papers/collage_lost.py --steps 3000 --width 128 --layers 4

A small GPT (`examples/pretraining`) is trained in the paper's options A (plain bf16), B
(Collage-light), C (Collage-plus), all in bf16 arithmetic as there, and D (float32 master weights).
At some steps the update u of every weight p is computed again from the states, and counted:

- lost, Definition 3.2 (arXiv:2405.03637): the addition p + u, rounded, gives p though u is not 0;
  p is the bf16 weight, of D its float32 master. So for (1 - b2) g^2 added to b2 v.
- lost, `optimizer.metrics()`: what is *stored* for the weight, low word or master included, has
  not changed although u is not 0.
- EDQ / |d|, Definition 3.3, of what is stored: `metrics()["edq_ratio"]`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from parts import paper
from parts.paper import Row
from pretraining import data, model, options
from torch import Tensor

from mcf.optim import AdamW

OPTIONS = {"A": "plain", "B": "light", "C": "plus", "D": "master"}
NAMES = {"A": "A, bf16", "B": "B, Collage-light", "C": "C, Collage-plus", "D": "D, float32 masters"}
BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.1
MEASURED = 12


def update(group: dict[str, Any], state: dict[str, Tensor], p: Tensor) -> Tensor:
    """u of a step that has been made, from its states and the weight before.

    Each operation is rounded to the format of the weight, as in bf16 arithmetic
    (docs/semantics.md); in float32 for float32 masters.
    """
    step = int(state["step"])
    c1, c2 = (1 - beta**step for beta in group["betas"])
    m, v = state["exp_avg"], state["exp_avg_sq"]
    # One operation a line: torch rounds each.
    root = (v / c2).sqrt() + group["eps"]
    direction = (m / c1) / root
    return -((direction + p * group["weight_decay"]) * group["lr"])


def lost(before: Tensor, added: Tensor) -> Tensor:
    """Definition 3.2: where the sum, rounded, is the first number though the other is not 0."""
    return (before + added == before) & (added != 0)


def train(option: str, given: argparse.Namespace, seed: int, corpus: data.Corpus) -> list[Row]:
    """One training; the rows of its measured steps, and the histograms of the last one."""
    chosen = options.parse([
        "--layers", str(given.layers), "--width", str(given.width), "--heads", "2", "--context",
        "32", "--batch-size", "8", "--steps", str(given.steps), "--beta2", "0.5",
    ])  # fmt: skip
    gpt = model.build(chosen, corpus.vocab_size, seed, torch.device("cpu"))
    weights = list(gpt.parameters())
    strict = torch.float32 if option == "D" else torch.bfloat16
    optimizer = AdamW(
        gpt.parameters(), lr=1e-3, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY,
        precision=OPTIONS[option], compute_dtype=strict, track_metrics=True,
    )  # fmt: skip
    shown = {max(1, round(given.steps * (k + 1) / MEASURED)) for k in range(MEASURED)}
    rows: list[Row] = []
    for step in range(1, given.steps + 1):
        windows = data.batch(corpus.train, seed=seed, step=step, size=8, length=33)
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, step / (0.1 * given.steps))
        optimizer.zero_grad()
        model.loss(gpt, torch.from_numpy(windows)).backward()
        states = [optimizer.state[w] for w in weights]
        before = [
            s.get("master_param", w).detach().clone() for s, w in zip(states, weights, strict=True)
        ]
        moments = [
            s["exp_avg_sq"].clone() if s else torch.zeros_like(w)
            for s, w in zip(states, weights, strict=True)
        ]
        optimizer.step()
        if step in shown:
            rows += count(option, optimizer, before, moments, step, seed)
            if step == given.steps:
                rows += sizes(option, optimizer, before, step, seed)
    return rows


def flat(optimizer: AdamW, before: list[Tensor]) -> tuple[Tensor, Tensor]:
    """All weights before a step, and their updates."""
    group = optimizer.param_groups[0]
    states = [optimizer.state[w] for w in group["params"]]
    # In the first step of option D there are no masters yet, but weights that they begin with.
    kept = [p.to(s["exp_avg"].dtype) for p, s in zip(before, states, strict=True)]
    updates = [update(group, s, p) for p, s in zip(kept, states, strict=True)]
    return torch.cat([p.flatten() for p in kept]), torch.cat([u.flatten() for u in updates])


@torch.no_grad()
def count(
    option: str, optimizer: AdamW, before: list[Tensor], moments: list[Tensor], step: int, seed: int
) -> list[Row]:
    """What a step lost."""
    p, u = flat(optimizer, before)
    v = torch.cat([x.flatten().to(p.dtype) for x in moments])
    g = torch.cat([w.grad.flatten().to(p.dtype) for w in optimizer.param_groups[0]["params"]])
    metrics = optimizer.metrics()
    found = {
        "paper_p": lost(p, u).double().mean(),
        # Of option C's pairs these are the leading numbers.
        "paper_v": lost(BETA2 * v, (1 - BETA2) * (g * g)).double().mean(),
        "ours_p": metrics["lost_param"],
        "ours_v": metrics["lost_exp_avg_sq"],
        "edq_ratio": metrics["edq_ratio"],
    }
    return [row(option, seed, step, what, "", value) for what, value in found.items()]


@torch.no_grad()
def sizes(option: str, optimizer: AdamW, before: list[Tensor], step: int, seed: int) -> list[Row]:
    """Histograms of |p|, |u| and |u| / |p| over octaves."""
    p, u = flat(optimizer, before)
    both = (u != 0) & (p != 0)
    rows = []
    for what, x in {"weight": p[p != 0], "update": u[u != 0], "ratio": (u / p)[both]}.items():
        found, counts = torch.log2(x.abs().double()).floor().long().unique(return_counts=True)
        for octave, n in zip(found.tolist(), counts.tolist(), strict=True):
            rows.append(row(option, seed, step, what, octave, n / len(x)))
    return rows


def row(option: str, seed: int, step: int, what: str, at: object, value: Any) -> Row:
    """A row of the results."""
    return {
        "option": option, "seed": seed, "step": step, "what": what, "octave": at,
        "value": f"{float(value):.6g}",
    }  # fmt: skip


def measure(given: argparse.Namespace) -> list[Row]:
    """All options and seeds."""
    corpus = data.load(options.parse(["--max-bytes", "1000000", "--beta2", "0.5"]))
    return [
        x for seed in range(given.seeds) for option in OPTIONS
        for x in train(option, given, seed, corpus)
    ]  # fmt: skip


def late(rows: list[Row], option: str, what: str) -> list[float]:
    """The mean over the second half of the measured steps, for each seed."""
    half = max(int(r["step"]) for r in rows) / 2
    of = [r for r in rows if r["option"] == option and r["what"] == what and int(r["step"]) > half]
    by_seed = [[float(r["value"]) for r in of if r["seed"] == s] for s in paper.names(of, "seed")]
    return [sum(x) / len(x) for x in by_seed]


def report(rows: list[Row], image: Path) -> None:
    """Table and figure."""
    lines = [
        {"option": name,
         "lost p, Definition 3.2": paper.spread(late(rows, o, "paper_p"), ".1%"),
         "lost p, metrics()": paper.spread(late(rows, o, "ours_p"), ".1%"),
         "lost v, Definition 3.2": paper.spread(late(rows, o, "paper_v"), ".1%"),
         "lost v, metrics()": paper.spread(late(rows, o, "ours_v"), ".1%"),
         "EDQ/norm": paper.spread(late(rows, o, "edq_ratio"))}
        for o, name in NAMES.items()
    ]  # fmt: skip
    print(paper.table(lines, list(lines[0])))
    made, axes = paper.figure(3)
    first = paper.names(rows, "seed")[0]

    def octaves(option: str, what: str) -> tuple[list[int], list[float]]:
        of = [r for r in rows if (r["option"], r["seed"], r["what"]) == (option, first, what)]
        return [int(r["octave"]) for r in of], [100 * float(r["value"]) for r in of]

    both, ratios, share = axes[0]
    for what, colour in (("weight", paper.COLOURS[1]), ("update", paper.COLOURS[0])):
        both.step(*octaves("D", what), where="post", color=colour, label=f"|{what}|")
    both.set(title="D: sizes after the last step", xlabel="floor(log2)", ylabel="% of elements")
    both.legend()
    ratios.step(*octaves("D", "ratio"), where="post", color=paper.BLACK)
    ratios.axvspan(-9, -8, color=paper.COLOURS[3], alpha=0.5, lw=0)
    ratios.text(-9.5, ratios.get_ylim()[1] * 0.93, "lost in bf16", ha="right", fontsize=10)
    ratios.set(title="|update| / |weight|", xlabel="floor(log2)", ylabel="% of elements")
    colours = (paper.COLOURS[0], paper.COLOURS[2], paper.COLOURS[1], paper.BLACK)
    for o, colour in zip(OPTIONS, colours, strict=True):
        steps = sorted({int(r["step"]) for r in rows})
        for what, dashes in (("paper_p", "-"), ("ours_p", "--")):
            mean = [
                100 * paper.mean_error(paper.values(rows, "value", option=o, what=what, step=s))[0]
                for s in steps
            ]
            share.plot(steps, mean, dashes, color=colour, label=NAMES[o] if dashes == "-" else None)
    share.set(title="lost additions to weights, %", xlabel="step", ylim=(-1, 60))
    share.text(0.97, 0.96, "line: Definition 3.2\ndashes: of what is stored", ha="right", va="top",
               transform=share.transAxes, fontsize=10)  # fmt: skip
    share.legend(fontsize=10, loc="upper left")
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--steps", type=paper.whole(2), default=240)
    parser.add_argument("--seeds", type=paper.whole(1), default=2)
    parser.add_argument("--layers", type=paper.whole(1), default=2)
    parser.add_argument("--width", type=paper.whole(2), default=48)
    given = parser.parse_args(arguments)
    if given.small:
        given.steps, given.seeds, given.layers, given.width = 4, 1, 1, 16
    paper.main("collage_lost", given, measure, report)


if __name__ == "__main__":
    main()
