"""Theorem 1 of Zamirai et al.: where nearest rounding of bf16 weights stops, and what does not.

    python examples/papers/zamirai_floor.py             # half a minute on one thread
    python examples/papers/zamirai_floor.py --rates 6 --turns 200

Least squares f(w) = mean_i (x_i . (w - w*))^2 / 2 over the rows of a Hadamard matrix, each of norm
1, by stochastic gradient descent of `mcf.optim.SGD`, one row a step: every gradient is 0 at w*, so
that in exact arithmetic w arrives there. Weights are bf16 under several precisions. Gradients are
computed in float64 and handed over in bf16, which is what a bf16 parameter takes, so that what
differs is the rounding of the weight.

The theorem (as the paper's summary states it; arXiv:2010.06192): a run by nearest rounding stays

    |w_t - w*| >= min(eps (1 - a L) / (a L + eps) min_j |w*_j|, |w_0 - w*|)

away, for the rate a and gradients with the Lipschitz constant L. An update below half the distance
of neighbours of w_j is cancelled, and that half distance is at least eps |w_j| for eps = 2^-9, the
worst case over a binade of bf16; eps = 2^-8, as the summary has it, is the best case. Both are
drawn, and float32's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from parts import paper
from parts.paper import Row
from torch import Tensor, nn

import mcf.optim

PRECISIONS = {
    "fp32": ("plain", torch.float32, {}),
    "nearest": ("plain", torch.bfloat16, {}),
    "stochastic": ("stochastic", torch.bfloat16, {"seed": 0}),
    "Kahan": ("kahan", torch.bfloat16, {}),
    "split16": ("split16", torch.bfloat16, {}),
}
# A Hadamard matrix over 2, exact in any format; the Lipschitz constant of every gradient is 1.
INPUTS = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]).double() / 2
LIPSCHITZ = 1.0
# Of bf16; of float32, in which gradients are rounded too.
EPSILON = {"2^-8": 2.0**-8, "2^-9": 2.0**-9, "2^-25": 2.0**-25}


def problem(runs: int) -> tuple[Tensor, Tensor]:
    """w* and w_0 [runs, 4], in float64: integers over powers of two.

    w* lies in (1, 2) and is no bf16 number.
    """
    draw = np.random.default_rng(13).integers(1, 2**20, (runs, 4)).astype(np.float64)
    return 1 + torch.from_numpy(draw) / 2**20, torch.zeros(runs, 4, dtype=torch.float64)


def floor(eps: float, rate: float, truth: Tensor) -> float:
    """The theorem's bound, for w_0 far away; the mean over the runs."""
    slope = rate * LIPSCHITZ
    bound = eps * (1 - slope) / (slope + eps) * truth.abs().amin(1)
    return float(bound.mean())


def descend(how: str, rate: float, steps: int, runs: int) -> list[Row]:
    """All runs at once, as rows of one parameter; a row of results for each run at some steps."""
    precision, dtype, options = PRECISIONS[how]
    truth, begin = problem(runs)
    weight = nn.Parameter(begin.to(dtype))
    optimizer = mcf.optim.SGD([weight], lr=rate, precision=precision, **options)
    draw = torch.Generator().manual_seed(1)
    order = torch.randint(len(INPUTS), (steps, runs), generator=draw)
    shown = {round(steps ** (k / 15)) for k in range(16)}
    rows: list[Row] = []
    for step in range(1, steps + 1):
        x = INPUTS[order[step - 1]]
        away = weight.detach().double() - truth
        weight.grad = (x * (x * away).sum(1, keepdim=True)).to(dtype)
        optimizer.step()
        if step in shown:
            far = (weight.detach().double() - truth).norm(dim=1)
            rows += [
                {"rounding": how, "rate": rate, "step": step, "run": run, "distance": f"{d:.5g}"}
                for run, d in enumerate(far)
            ]
    return rows


def measure(given: argparse.Namespace) -> list[Row]:
    """All precisions at all rates."""
    rows: list[Row] = []
    for k in range(given.rates):
        rate = 2.0 ** -(1 + 2 * k)
        for how in PRECISIONS:
            rows += descend(how, rate, round(given.turns / rate), given.runs)
    return rows


def bounds(rows: list[Row]) -> dict[tuple[str, str], float]:
    """The theorem's bound by name of eps and rate."""
    truth, _ = problem(len(paper.names(rows, "run")))
    return {
        (name, rate): floor(eps, float(rate), truth)
        for name, eps in EPSILON.items()
        for rate in paper.names(rows, "rate")
    }


def ends(rows: list[Row], how: str, rate: str) -> list[float]:
    """The last distance of each run."""
    last = max(int(row["step"]) for row in rows if row["rate"] == rate)
    return paper.values(rows, "distance", rounding=how, rate=rate, step=last)


def report(rows: list[Row], image: Path) -> None:
    """Table and figure."""
    limits, rates = bounds(rows), paper.names(rows, "rate")
    represented = nearest(rows)
    lines = [
        {"rate": rate,
         **{h: paper.spread(ends(rows, h, rate), ".2e") for h in PRECISIONS},
         **{f"bound, eps = {name}": f"{limits[name, rate]:.2e}" for name in EPSILON}}
        for rate in rates
    ]  # fmt: skip
    print(paper.table(lines, list(lines[0])))
    for name in ("2^-8", "2^-9"):
        print(f"\nsmallest distance over bound, eps = {name}: {least(rows, name):.2f}")
    print(f"\nthe nearest bf16 weights are {represented:.2e} away")
    made, axes = paper.figure(2)
    middle = rates[len(rates) // 2]
    colours = dict(zip(PRECISIONS, [paper.BLACK, *paper.COLOURS], strict=False))
    for how in PRECISIONS:
        steps = sorted({int(r["step"]) for r in rows if r["rate"] == middle})
        of = [
            paper.mean_error(paper.values(rows, "distance", rounding=how, rate=middle, step=s))[0]
            for s in steps
        ]
        style = {"color": colours[how], "label": how, "lw": 1.5}
        if how == "split16":
            style["ls"] = "--"
        axes[0, 0].loglog(steps, of, **style)
        found = [paper.mean_error(ends(rows, how, rate)) for rate in rates]
        axes[0, 1].errorbar(
            [float(r) for r in rates], [m for m, _ in found], [e for _, e in found], marker="o",
            ms=4, **style,
        )  # fmt: skip
    for name, dashes in zip(EPSILON, ("--", ":", "-."), strict=True):
        label = f"Theorem 1, eps = $2^{{{name[2:]}}}$"
        style = {"color": paper.GREY, "ls": dashes, "label": label}
        axes[0, 0].axhline(limits[name, middle], **style)
        axes[0, 1].plot([float(r) for r in rates], [limits[name, r] for r in rates], **style)
    for place in axes[0]:
        place.axhline(represented, color=paper.GREY, lw=0.7, label="nearest bf16 weights")
        place.set_ylabel("|bf16 weights - w*|")
        place.set_ylim(1e-8)
    axes[0, 0].set(xlabel="step", title=f"rate {float(middle):g}")
    axes[0, 1].set(xlabel="rate", title="after the last step", xscale="log", yscale="log")
    axes[0, 1].set_ylim(1e-8, 10)
    axes[0, 0].legend(fontsize=10, loc="lower left")
    paper.save(made, image)


def nearest(rows: list[Row]) -> float:
    """How far from w* its rounding to bf16 is, the mean over the runs."""
    truth = problem(len(paper.names(rows, "run")))[0]
    return float((truth.bfloat16().double() - truth).norm(dim=1).mean())


def least(rows: list[Row], eps: str) -> float:
    """The smallest ratio of a distance to the bound of its run, over all runs and steps."""
    truth, begin = problem(len(paper.names(rows, "run")))
    start = (begin - truth).norm(dim=1)
    found = []
    for row in rows:
        if row["rounding"] == "nearest":
            run = int(row["run"])
            bound = floor(EPSILON[eps], float(row["rate"]), truth[run : run + 1])
            found.append(float(row["distance"]) / min(bound, float(start[run])))
    return min(found)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--turns", type=paper.whole(1), default=80, help="steps * rate (80)")
    parser.add_argument("--runs", type=paper.whole(2), default=12, help="w* and batches (12)")
    parser.add_argument("--rates", type=paper.whole(1), default=4, help="2^-1, 2^-3, ... (4)")
    given = parser.parse_args(arguments)
    if given.small:
        given.turns, given.rates, given.runs = 16, 2, 4
    paper.main("zamirai_floor", given, measure, report)


if __name__ == "__main__":
    main()
