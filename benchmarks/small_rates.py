"""Fine-tune a GPT at rates from 1e-5 to 2e-7: the share of float32's gain that each precision has.

    python benchmarks/small_rates.py                 # what is missing of three seeds
    python benchmarks/small_rates.py --report        # tables and plot of what there is

A GPT of `make pretrain`'s shape (829,696 parameters) is trained 1500 steps by `master` on the
sources of Python's standard library and rounded to bf16; the file of that start is kept in runs/.
Then 600 steps of 4 windows of 64 bytes on Python's language reference, which each Python has in
`pydoc_data/topics.py` and which is left out of the first text: 30 steps of warm-up, then a constant
rate, no weight decay, the gradient's norm clipped to 1. Four chapters are held out and evaluated
whole. Both texts belong to the Python that runs the study, so that any commit can repeat it; rows
have its version and a digest of the text. See `paired.py` for what all rows have.
"""

# The models are imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import argparse
import sys
from functools import cached_property
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import paired
import paired_report as report
from pretraining import data, model, options, sources
from pretraining.model import GPT
from strategies import fit, groups, mean_loss, rate
from strategy_variants import TRUTH, find
from torch.optim import Optimizer

PRECISIONS = [TRUTH, paired.REPLICATE, "split16_sr", "split8_sr", "split16_8bit", "plus", "bf16_sr",
              "8bit", "plain"]  # fmt: skip
RATES = [1e-5, 3e-6, 1e-6, 2e-7]
# No other topic has more than a line in twenty of theirs.
HELD_OUT = ("strings", "import", "calls", "objects")
FULL = ["--steps", "1500"]
QUICK = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch-size", "2",
         "--steps", "4", "--eval-windows", "8"]  # fmt: skip


class FineTuning:
    """From the standard library's sources to the language reference."""

    name = "small_rates"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.chosen = options.parse([*(QUICK if arguments.quick else FULL), "--beta2", "0.999"])
        self.quick = arguments.quick
        self.steps, self.warmup = (4, 2) if self.quick else (600, 30)
        self.out = arguments.out
        texts = {name: text.encode() for name, text in sorted(topics.items())}
        held_out = [texts.pop(name) for name in HELD_OUT]
        self.text = _part(list(texts.values()))
        self.new = self._whole(_part(held_out))
        if self.quick:
            self.new = self.new[:8]
        self.fixed = {
            "parameters": str(model.parameters(self.chosen, 256)),
            "steps": str(self.steps),
            "text": paired.digest(*held_out, *texts.values()),
        }

    @cached_property
    def library(self) -> data.Corpus:
        """The sources of the standard library, without those that hold the other text."""
        files = [str(p) for p in sources.standard_library() if "pydoc_data" not in p.parts]
        some = [*QUICK, "--data", *files[:20]] if self.quick else [*FULL, "--data", *files]
        return data.load(options.parse(some))

    def _whole(self, part: data.Part) -> npt.NDArray[np.int64]:
        """Return a part as windows that follow each other."""
        context = self.chosen.context
        starts = np.arange(0, part.tokens - context, context)
        return part.gather(starts, context + 1)

    def start(self, seed: int) -> GPT:
        """Return the pretrained model."""
        gpt = model.build(self.chosen, 256, seed, paired.CPU)
        (master,) = find([TRUTH], paired.CPU)
        made = master.make(groups(gpt, self.chosen.weight_decay), 0.0, paired.BETA2, seed)
        steps = range(1, self.chosen.steps + 1)
        rates = (rate(step, self.chosen, 1e-3) for step in steps)
        return paired.cached(
            self.out, f"{self.name}-{seed}", gpt,
            lambda: list(fit(gpt, made, self.library.train, rates, self.chosen, seed)),
            self.fixed, self.library.digest, self.chosen.steps, seed,
        )  # fmt: skip

    def train(self, gpt: GPT, optimizer: Optimizer, rate: float, seed: int) -> paired.Row:
        """Fine-tune in place."""
        rates = (rate * min(1.0, step / self.warmup) for step in range(1, self.steps + 1))
        for _ in fit(gpt, optimizer, self.text, rates, self.chosen, seed):
            pass
        return {}

    def measure(self, gpt: GPT, start: GPT) -> paired.Row:
        """Return the losses on the new text and on the old one."""
        length, count = self.chosen.context + 1, self.chosen.eval_windows
        old = data.evenly_spaced(self.library.val, count=count, length=length)
        return {"loss": mean_loss(gpt, self.new), "old_loss": mean_loss(gpt, old)}


def _part(texts: list[bytes]) -> data.Part:
    return data.Part((), (np.frombuffer(b"\0".join(texts), dtype=np.uint8),))


def main(argv: list[str] | None = None) -> None:
    """Run what is missing, then report."""
    parser = paired.parser(__doc__.splitlines()[0], FineTuning.name, PRECISIONS, RATES, seeds=3)
    arguments = parser.parse_args(argv)
    if not arguments.report:
        paired.run(FineTuning(arguments), arguments)
    report.fine_tuning(arguments)


if __name__ == "__main__":
    main()
