"""Collage's Table 5 in miniature: GPT in two sizes and Llama at two beta2, on two real texts.

    python examples/papers/collage_gpt.py               # ten minutes on one thread
    python examples/papers/collage_gpt.py --layers 4 --width 128 --steps 10000

Decoders in the shape of GPT and Llama (`examples/pretraining/decoder.py`) on bytes of the texts of
`collage_texts.py`, under the paper's options A to D; A, B and C in bf16 arithmetic as there. For
each seed all options begin alike and see the same batches. GPT: one block less than `--layers` at
half of `--width`, and `--layers` at `--width`, beta2 = .95; Llama: `--layers` at `--width`, beta2 =
.95 and .99. Started again, the script goes on behind the trainings that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts import collage_training as training
from parts import paper
from parts.collage_texts import BYTES, corpus
from parts.paper import Row
from pretraining import data, decoder
from pretraining.data import Corpus, Part
from pretraining.shapes import Shape, gpt
from torch import Tensor

OPTIONS = ("A", "B", "C", "D")
CASES = {"GPT, half": 0.95, "GPT": 0.95, "Llama, .95": 0.95, "Llama, .99": 0.99}
RATE, SIZE, LENGTH = 1.5e-3, 8, 64
HELD_OUT = 512


def shape_of(case: str, layers: int, width: int, length: int) -> Shape:
    """The decoder of a column of the table."""
    if case == "GPT, half":
        layers, width = max(1, layers - 1), width // 2
    made = gpt(layers, width, 2, length)
    if case.startswith("Llama"):
        # Two thirds, so that three matrices are as many weights as two.
        return dataclasses.replace(made, llama=True, hidden=8 * width // 3)
    return made


def windows(part: Part, key: list[int] | None, length: int) -> Tensor:
    """A batch drawn by (seed, step), or, of no key, what is held out."""
    if key is None:
        found = data.evenly_spaced(part, count=HELD_OUT, length=length + 1)
    else:
        found = data.batch(part, seed=key[0], step=key[1], size=SIZE, length=length + 1)
    return torch.from_numpy(found.astype(np.int64))


def train(named: Row, given: argparse.Namespace, text: Corpus) -> list[Row]:
    """One training: losses of its last tenth and of what is held out, in nats a byte."""
    shape = shape_of(named["model"], given.layers, given.width, given.length)
    model = decoder.build(shape, BYTES, named["seed"], torch.device("cpu"))
    optimizer = training.make(model, named["option"], CASES[named["model"]])

    def loss(step: int) -> tuple[Any, Any]:
        found = decoder.loss(model, windows(text.train, [named["seed"], step], given.length))
        return found, found

    found = list(training.fit(model, optimizer, given.steps, RATE, 0.1, loss))
    last = found[-max(1, given.steps // 10) :]
    with torch.no_grad():
        parts = windows(text.val, None, given.length).split(128)
        held_out = sum(float(decoder.loss(model, x)) * len(x) for x in parts)
    values = {
        "train": sum(f["loss"] for f in last) / len(last),
        "held out": held_out / sum(map(len, parts)),
        **{name: sum(f[name] for f in last) / len(last) for name in training.METRICS},
        "parameters": sum(w.numel() for w in model.parameters()),
    }
    return [{"what": k, "value": f"{x:.7g}"} for k, x in values.items()]


def report(rows: list[Row], image: Path, given: argparse.Namespace) -> None:
    """Tables and figure."""
    rows = training.at_scale(rows, layers=given.layers, width=given.width, steps=given.steps)
    texts = paper.names(rows, "text")
    both = [
        (text, case) for text in texts for case in CASES
        if training.cell(rows, "D", text=text, model=case, what="held out")
    ]  # fmt: skip
    for what in ("train", "held out"):
        lines = []
        for option in OPTIONS:
            line = {"option": option}
            for text, case in both:
                of = {"model": case, "text": text, "what": what}
                line[f"{text}: {case}"] = training.cell(rows, option, **of)
            lines.append(line)
        print(f"loss, {what}:\n\n{paper.table(lines, list(lines[0]))}\n")
    made, axes = paper.figure(len(texts))
    for place, text in zip(axes[0], texts, strict=True):
        cases = [case for of, case in both if of == text]
        for k, option in enumerate(OPTIONS[:-1]):
            for n, case in enumerate(cases):
                found = training.gaps(rows, option, model=case, text=text, what="held out")
                if not found:
                    continue
                mean, error = paper.mean_error(found)
                place.errorbar(
                    n + 0.15 * (k - 1), mean, 2 * error, fmt="o", capsize=2,
                    color=training.COLOURS[option], label=None if n else option,
                )  # fmt: skip
        place.axhline(0, color=paper.GREY, lw=0.8)
        place.set_xlim(-0.5, len(cases) - 0.5)
        place.set_xticks(range(len(cases)), cases)
        place.set(title=f"{text}: held-out loss - D's", ylabel="nats a byte")
    axes[0, 0].legend(fontsize=10, loc="center")
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--texts", nargs="+", choices=["code", "reference"], default=["code", "reference"]
    )
    parser.add_argument("--seeds", type=paper.whole(1), default=3)
    parser.add_argument("--steps", type=paper.whole(1), default=300)
    parser.add_argument("--layers", type=paper.whole(1), default=2)
    parser.add_argument("--width", type=paper.whole(8), default=48, help="in two heads")
    given = parser.parse_args(arguments)
    given.length, most = LENGTH, 4_000_000
    if given.width % 8:
        parser.error(f"argument --width: {given.width} is not a multiple of 8")
    if given.small:
        given.seeds, given.steps, given.layers, given.width, given.length = 1, 3, 1, 16, 16
        most = 200_000
    runs = [
        {"model": model, "text": text, "layers": given.layers, "width": given.width,
         "steps": given.steps, "seed": seed, "option": option}
        for seed in range(given.seeds) for model in given.models for text in given.texts
        for option in reversed(OPTIONS)
    ]  # fmt: skip
    texts = {} if given.report else {name: corpus(name, most) for name in given.texts}
    paper.resume(
        "collage_gpt", given, runs, lambda r: train(r, given, texts[r["text"]]),
        lambda rows, image: report(rows, image, given),
    )  # fmt: skip


if __name__ == "__main__":
    main()
