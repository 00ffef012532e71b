"""Collage's Table 7: the speed of a training's step, measured on this CPU, and what bytes allow.

    python examples/papers/collage_speed.py             # a minute on one thread
    python examples/papers/collage_speed.py --width 512 --layers 8 --tokens 256 2048 --rounds 50

A decoder in the shape of GPT takes steps under the paper's options A to D in turn; of each are
kept the least processor times of forward and backward pass, and of the optimizer, which a busy
machine disturbs least. Then the paper's models on its GPUs, *estimated*: multiplications at half
of an A100's rate, and every byte of an optimizer's step moved once at its memory's.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import collage_memory as memory
import torch
from parts import paper
from parts.collage_texts import BYTES
from parts.paper import Row
from pretraining import decoder
from pretraining.dry_run import state_bytes
from pretraining.shapes import Shape, gpt

from mcf.optim import AdamW

OPTIONS = memory.OPTIONS
# NVIDIA's data sheet of the A100 40GB: bf16 products and sums a second, bytes a second.
RATE, BANDWIDTH, USED, DEVICES = 312e12, 1.555e12, 0.5, 8
MODELS = {k: shape for k, shape in memory.MODELS.items() if k != "GPT 125M"}
# Table 7: times the speed of D.
PAPER = {
    "A": (1.78, 2.59, 3.82, 3.15),
    "B": (1.74, 2.57, 3.74, 3.14),
    "C": (1.67, 2.48, 3.57, 3.05),
    "D": (1, 1, 1, 1),
}


def measured(shape: Shape, tokens: int, rounds: int) -> list[Row]:
    """The least seconds of both parts of a step, all options taking turns."""
    windows = torch.arange(tokens + tokens // shape.context).view(-1, shape.context + 1) % BYTES
    made = {}
    for option, precision in OPTIONS.items():
        model = decoder.build(shape, BYTES, 0, torch.device("cpu"))
        made[option] = model, AdamW(model.parameters(), lr=1e-4, precision=precision)
    found: dict[tuple[str, str], list[float]] = {}
    # The first makes states and kernels.
    for each in range(rounds + 1):
        for option, (model, optimizer) in made.items():
            optimizer.zero_grad()
            times = [time.process_time()]
            decoder.loss(model, windows).backward()
            times.append(time.process_time())
            optimizer.step()
            times.append(time.process_time())
            for k, what in enumerate(("model", "optimizer")):
                if each:
                    found.setdefault((option, what), []).append(times[k + 1] - times[k])
    size = sum(w.numel() for w in made["A"][0].parameters())
    return [
        row("measured", f"{size} parameters, {tokens} tokens", option, what, min(seconds))
        for (option, what), seconds in found.items()
    ]


def estimated(case: str, shape: Shape) -> list[Row]:
    """Seconds of both parts for one sequence on the paper's GPUs, each with its share of all."""
    each = shape.parameters() / DEVICES
    rows = []
    for option, precision in OPTIONS.items():
        # Weight and states are read and written, the gradient is read.
        moved = 2 * (2 + state_bytes(precision)) + 2
        rows += [
            row("estimated", case, option, "model", 6 * each * shape.context / (USED * RATE)),
            row("estimated", case, option, "optimizer", moved * each / BANDWIDTH),
        ]
    return rows


def row(what: str, case: str, option: str, part: str, seconds: float) -> Row:
    """A row of the results."""
    return {
        "what": what, "case": case, "option": option, "part": part, "seconds": f"{seconds:.4g}",
    }  # fmt: skip


def measure(given: argparse.Namespace) -> list[Row]:
    """All rows."""
    shape = gpt(given.layers, given.width, 2, 64)
    rows = [x for tokens in given.tokens for x in measured(shape, tokens, given.rounds)]
    return rows + [x for case, shape in MODELS.items() for x in estimated(case, shape)]


def ratios(rows: list[Row], case: str, parts: tuple[str, ...]) -> dict[str, float]:
    """The speed of each option, D's being 1."""
    sums = {
        o: sum(sum(paper.values(rows, "seconds", case=case, option=o, part=p)) for p in parts)
        for o in OPTIONS
    }
    return {o: sums["D"] / x for o, x in sums.items()}


def report(rows: list[Row], image: Path) -> None:
    """Table and figure."""
    for what in ("measured", "estimated"):
        of = [r for r in rows if r["what"] == what]
        cases = paper.names(of, "case")
        lines = []
        for option in OPTIONS:
            line = {"option": option}
            for number, case in enumerate(cases):
                speed = ratios(of, case, ("model", "optimizer"))[option]
                alone = ratios(of, case, ("optimizer",))[option]
                told = f"{speed:.2f} ({alone:.2f})"
                line[case] = told if what == "measured" else f"{told}; {PAPER[option][number]:.2f}"
            lines.append(line)
        print(f"{what}, times the speed of D (optimizer alone)"
              f"{'; Table 7' if what == 'estimated' else ''}:\n\n"
              f"{paper.table(lines, list(lines[0]))}\n")  # fmt: skip
    made, axes = paper.figure(2)
    for place, what in zip(axes[0], ("measured", "estimated"), strict=True):
        of = [r for r in rows if r["what"] == what]
        cases = paper.names(of, "case")
        for k, option in enumerate(OPTIONS):
            colour = (paper.COLOURS[0], paper.COLOURS[2], paper.COLOURS[1], paper.BLACK)[k]
            for n, case in enumerate(cases):
                seconds = [
                    paper.values(of, "seconds", case=case, option=option, part=p)[0]
                    for p in ("model", "optimizer")
                ]
                at = n + 0.2 * (k - 1.5)
                place.bar(at, seconds[0] * 1e3, 0.17, color=paper.GREY)
                place.bar(at, seconds[1] * 1e3, 0.17, seconds[0] * 1e3, color=colour,
                          label=None if n else f"optimizer, {option}")  # fmt: skip
        place.set_xticks(
            range(len(cases)),
            [c.replace(", ", "\n").replace("OpenLLaMA ", "Llama\n") for c in cases],
        )
        place.set(title=f"a step, {what}", ylabel="ms (grey: model)")
    axes[0, 0].legend(fontsize=10)
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--layers", type=paper.whole(1), default=4)
    parser.add_argument("--width", type=paper.whole(2), default=256)
    parser.add_argument("--tokens", type=paper.whole(64), nargs="+", default=[64, 512])
    parser.add_argument("--rounds", type=paper.whole(1), default=10)
    given = parser.parse_args(arguments)
    if any(tokens % 64 for tokens in given.tokens):
        parser.error(f"argument --tokens: {given.tokens} are not all multiples of 64")
    if given.small:
        given.layers, given.width, given.tokens, given.rounds = 1, 16, [64], 2
    paper.main("collage_speed", given, measure, report)


if __name__ == "__main__":
    main()
