"""Collage's Tables 3 and 4 and Figure 3 in miniature: a BERT in two phases, a RoBERTa, fine-tuned.

    python examples/papers/collage_bert.py              # ten minutes on one thread
    python examples/papers/collage_bert.py --layers 4 --width 128 --steps 10000 --texts code

Encoders (`collage_encoder.py`) on bytes of real texts (`collage_texts.py`) under the paper's
options A to D, float32 states without masters, and, for BERT, Kahan's summation; A, B, C and Kahan
in bf16 arithmetic as there. For each seed all begin alike and see the same batches. BERT: `--steps`
updates on short sequences, then a fifth as many on ones four times as long, beta2 = .999. RoBERTa:
one phase, beta2 = .98. Then each is fine-tuned on two tasks with labels (`Labelled` of
`collage_texts.py`), from the bf16 weights that it ended with and with a new optimizer of its
option. Started again, the script goes on behind the trainings that are there.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from parts import collage_training as training
from parts import paper
from parts.collage_encoder import Encoder, batch, draw, losses, run
from parts.collage_texts import corpus, labelled
from parts.paper import Row
from pretraining.data import Corpus
from torch import nn
from torch.nn import functional as F

MODELS = {"BERT": 0.999, "RoBERTa": 0.98}
OPTIONS = {
    "BERT": ("D without masters", "Kahan", "B", "C", "A", "D"),
    "RoBERTa": ("D without masters", "B", "C", "A", "D"),
}
TASKS = ("package", "words")
RATE, FINE_RATE, SIZE = 4e-3, 1e-3, 16
POINTS = 30
CURVES = ("loss", *training.METRICS)


def train(named: Row, given: argparse.Namespace, text: Corpus) -> list[Row]:
    """One training of both phases and its fine-tunings."""
    bert, seed = named["model"] == "BERT", named["seed"]
    beta2 = MODELS[named["model"]]
    model = draw(Encoder(given.layers, given.width, given.heads, 4 * given.length), seed)
    optimizer = training.make(model, named["option"], beta2)
    rows: list[Row] = []
    for phase in (1, 2) if bert else (1,):
        length = given.length * 4 ** (phase - 1)
        steps = given.steps if phase == 1 else max(1, given.steps // 5)

        def loss(step: int, phase: int = phase, length: int = length) -> tuple[Any, Any]:
            masked, other = losses(
                # As many tokens in both phases.
                model,
                batch(text.train, [seed, phase, step], SIZE // phase**2, length, bert),
            )
            return masked, masked + other

        rate = RATE if phase == 1 else RATE / 2
        found = list(training.fit(model, optimizer, steps, rate, 0.0, loss))
        last = [f["loss"] for f in found[-max(1, steps // 10) :]]
        rows.append(row(f"train {phase}", steps, sum(last) / len(last)))
        rows.append(row(f"phase {phase}", steps, held_out(model, text, length, bert)))
        if bert and phase == 1:
            rows += curves(found)
    for task in TASKS:
        accuracy = fine_tuned(model, task, named["option"], beta2, seed, given)
        rows.append(row(task, given.fine_steps, accuracy))
    return rows


def row(what: str, at: int, value: float) -> Row:
    """A row of the results, without the columns that name the training."""
    return {"what": what, "at": at, "value": f"{value:.6g}"}


def curves(found: list[dict[str, float]]) -> list[Row]:
    """Means of equal parts of a training."""
    ends = [len(found) * (k + 1) // POINTS for k in range(POINTS)]
    rows = []
    for begin, end in itertools.pairwise([0, *ends]):
        for what in CURVES if end > begin else ():
            mean = sum(f[what] for f in found[begin:end]) / (end - begin)
            rows.append(row(f"curve {what}", end, mean))
    return rows


@torch.no_grad()
def held_out(model: Encoder, text: Corpus, length: int, bert: bool) -> float:
    """Loss of masked tokens of what is held out; the same for all seeds and options."""
    parts = [batch(text.val, [k], 128, length, bert, spread=True) for k in range(2)]
    return sum(float(losses(model, part)[0]) for part in parts) / len(parts)


def fine_tuned(
    trained: Encoder, name: str, option: str, beta2: float, seed: int, given: argparse.Namespace
) -> float:
    """Accuracy on what is held out of a task, after a fine-tuning of a copy."""
    task = labelled(name, given.files)
    model = Encoder(given.layers, given.width, given.heads, 4 * given.length, task.classes)
    weights = {k: w for k, w in trained.state_dict().items() if not k.startswith("classify")}
    draw(model, seed).load_state_dict(weights, strict=False)
    # Not trained by this loss, and so not in the optimizer.
    for part in (model.predict, model.norm_predict):
        part.requires_grad_(False)
    model.bias.requires_grad_(False)
    length = given.length

    def loss(step: int) -> tuple[Any, Any]:
        inputs, labels = task.batch([seed, step], SIZE, length)
        found = F.cross_entropy(
            run(model, torch.from_numpy(inputs), None)[1], torch.from_numpy(labels)
        )
        return found, found

    used = nn.ModuleList(
        m for m in model.children() if m not in (model.predict, model.norm_predict)
    )
    optimizer = training.make(used, option, beta2, decay=0.01)
    for _ in training.fit(used, optimizer, given.fine_steps, FINE_RATE, 0.0, loss):
        pass
    inputs, labels = task.batch([0], given.judged, length, held_out=True)
    with torch.no_grad():
        parts = torch.from_numpy(inputs).split(128)
        guess = torch.cat([run(model, part, None)[1].argmax(1) for part in parts])
    return float((guess == torch.from_numpy(labels)).double().mean())


def report(rows: list[Row], image: Path, given: argparse.Namespace) -> None:
    """Tables and figure."""
    rows = training.at_scale(rows, layers=given.layers, width=given.width, steps=given.steps)
    for text in paper.names(rows, "text"):
        own = [r for r in rows if r["text"] == text]
        columns = {
            "BERT, phase 1": ("BERT", "phase 1", ".4f"),
            "BERT, phase 2": ("BERT", "phase 2", ".4f"),
            "RoBERTa": ("RoBERTa", "phase 1", ".4f"),
            **{f"{m}, {task}": (m, task, ".1%") for m in MODELS for task in TASKS},
        }  # fmt: skip
        # Only those that there are.
        cells = {
            name: {o: training.cell(own, o, form, model=model, what=what) for o in training.OPTIONS}
            for name, (model, what, form) in columns.items()
        }
        lines = []
        for option in training.OPTIONS:
            line = {"option": option, **{n: c[option] for n, c in cells.items() if c["D"]}}
            if any(list(line.values())[1:]):
                lines.append(line)
        print(f"{text}:\n\n{paper.table(lines, list(lines[0]))}\n")
    curve(rows, image)


def curve(rows: list[Row], image: Path) -> None:
    """Figure 3: lost additions, loss, effective descent quality over the steps of phase 1."""
    texts = paper.names(rows, "text")
    made, axes = paper.figure(3, rows=len(texts))
    for places, text in zip(axes, texts, strict=True):
        for option in OPTIONS["BERT"]:
            colour = training.COLOURS[option]
            dashes = "--" if option in ("Kahan", "D without masters") else "-"
            found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
            for r in rows:
                of = (r["model"], r["text"], r["option"])
                if of == ("BERT", text, option) and r["what"].startswith("curve"):
                    found[r["what"].removeprefix("curve ")][int(r["at"])].append(float(r["value"]))
            means = {w: {k: sum(x) / len(x) for k, x in of.items()} for w, of in found.items()}
            if not means:
                continue
            steps = sorted(means["loss"])
            for what, style in (("lost_p", "-"), ("lost_v", ":")):
                places[0].plot(steps, [100 * means[what][k] for k in steps], style, color=colour)
            places[1].plot(steps, [means["loss"][k] for k in steps], dashes, color=colour)
            places[2].plot(
                steps, [means["edq"][k] for k in steps], dashes, color=colour, label=option
            )
        places[0].set(title=f"{text}: lost additions, %", xlabel="update")
        places[0].text(0.97, 0.28, "line: weight\ndots: second moment", ha="right",
                       transform=places[0].transAxes, fontsize=10)  # fmt: skip
        places[1].set(title="loss of masked tokens", xlabel="update")
        places[2].set(title="effective descent quality", xlabel="update")
        places[2].legend(fontsize=10)
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--texts", nargs="+", choices=["code", "reference"], default=["code"])
    parser.add_argument("--seeds", type=paper.whole(1), default=3)
    parser.add_argument("--steps", type=paper.whole(1), default=400, help="of the first phase")
    parser.add_argument("--layers", type=paper.whole(1), default=2)
    parser.add_argument("--width", type=paper.whole(2), default=48, help="in four heads")
    given = parser.parse_args(arguments)
    given.heads, given.length, given.fine_steps, given.judged, given.files = 4, 64, 80, 1024, 99
    most = 4_000_000
    if given.small:
        given.seeds, given.steps, given.layers, given.width, given.length = 1, 4, 1, 8, 16
        given.fine_steps, given.judged, given.files, most = 2, 64, 1, 200_000
    runs = [
        {"model": model, "text": text, "layers": given.layers, "width": given.width,
         "steps": given.steps, "seed": seed, "option": option}
        for seed in range(given.seeds) for text in given.texts for model in given.models
        for option in reversed(OPTIONS[model])
    ]  # fmt: skip
    texts = {} if given.report else {name: corpus(name, most) for name in given.texts}
    paper.resume(
        "collage_bert", given, runs, lambda r: train(r, given, texts[r["text"]]),
        lambda rows, image: report(rows, image, given),
    )  # fmt: skip


if __name__ == "__main__":
    main()
