"""Learn sums by GRPO at rates of 1e-5 and 1e-6: the share of float32's reward of each precision.

    python benchmarks/grpo.py                 # what is missing of five seeds
    python benchmarks/grpo.py --report        # tables and plot of what there is

A transformer of 100,224 parameters answers `ab+cd=` with three digits. It is trained by `master`
until the mean probability of the right answer is 0.45, and rounded to bf16. Then 300 updates of
GRPO (Shao et al. 2024, arXiv:2402.03300): 16 sums with 8 sampled answers each, reward 1 for the
right answer, advantages within the group, one update a batch, no KL term, a constant rate, no
weight decay, the gradient's norm clipped to 1. Answers are sampled by the served words; all
precisions draw with the same uniform numbers. Results are measured without sampling, on all 10,000
sums: the mean probability of the right answer, and the KL divergence from the start in nats an
answer, for the right digits before each digit. See `paired.py` for what all rows have.
"""

# The models are imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import paired
import paired_report as report
from pretraining import model, options
from pretraining.model import GPT
from strategy_variants import TRUTH, find, set_rate
from torch.optim import Optimizer

PRECISIONS = [
    *(TRUTH, "split16_sr", "split8_sr", "split16_8bit"),
    *("plus", "bf16_sr", "8bit", "plain"),
]
RATES = [1e-5, 1e-6]
FULL = ["--layers", "2", "--width", "64", "--heads", "4", "--context", "8"]
QUICK = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "8"]
# Tokens: the ten digits, then these two.
PLUS, EQUALS, VOCABULARY = 10, 11, 12
DIGITS = 3


def sums() -> Tensor:
    """Return all 10,000 sums, as rows of 9 tokens."""
    a, b = torch.meshgrid(torch.arange(100), torch.arange(100), indexing="ij")
    a, b, c = a.flatten(), b.flatten(), (a + b).flatten()
    sign = torch.full_like(a, PLUS)
    end = torch.full_like(a, EQUALS)
    columns = [a // 10, a % 10, sign, b // 10, b % 10, end, c // 100, c // 10 % 10, c % 10]
    return torch.stack(columns, 1)


def log_probabilities(gpt: GPT, tokens: Tensor) -> Tensor:
    """Return those of each token in the place of each digit of the answer, [R, 3, 12]."""
    return model.logits(gpt, tokens[:, :-1])[:, -DIGITS:].log_softmax(-1)


def of_answers(log_p: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of the digits that stand there, [R, 3]."""
    return log_p.gather(-1, tokens[:, -DIGITS:, None])[..., 0]


@torch.no_grad()
def sample(gpt: GPT, prompts: Tensor, uniform: Tensor) -> Tensor:
    """Return prompts [R, 6] with sampled answers: the first token whose sum is above a number."""
    for k in range(DIGITS):
        p = model.logits(gpt, prompts)[:, -1].double().softmax(-1)
        token = (p.cumsum(-1) <= uniform[:, k, None]).sum(-1).clamp(max=VOCABULARY - 1)
        prompts = torch.cat((prompts, token[:, None]), 1)
    return prompts


class Arithmetic:
    """GRPO on sums of two numbers of two digits."""

    name = "grpo"

    def __init__(self, arguments: argparse.Namespace) -> None:
        quick = arguments.quick
        self.chosen = options.parse(QUICK if quick else FULL)
        self.updates, self.every = (4, 2) if quick else (300, 100)
        self.prompts, self.samples = (4, 4) if quick else (16, 8)
        self.target = 0.1 if quick else 0.45
        self.out = arguments.out
        self.sums = sums()[::2500] if quick else sums()
        self.fixed = {
            "parameters": str(model.parameters(self.chosen, VOCABULARY)),
            "updates": str(self.updates),
        }

    def start(self, seed: int) -> GPT:
        """Return the model after supervised training."""
        gpt = model.build(self.chosen, VOCABULARY, seed, paired.CPU)
        about = (self.fixed, self.target, seed)
        return paired.cached(
            self.out, f"{self.name}-{seed}", gpt, lambda: self._supervise(gpt, seed), *about
        )

    def _supervise(self, gpt: GPT, seed: int) -> None:
        (master,) = find([TRUTH], paired.CPU)
        optimizer = master.make([{"params": list(gpt.parameters())}], 1e-3, paired.BETA2, seed)
        for step in range(20_000):
            if step % 20 == 0 and self.right(gpt) >= self.target:
                return
            picked = np.random.default_rng([seed, step, 0]).integers(len(self.sums), size=128)
            tokens = self.sums[torch.from_numpy(picked)]
            optimizer.zero_grad()
            (-of_answers(log_probabilities(gpt, tokens), tokens).mean()).backward()
            nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
            optimizer.step()
        raise RuntimeError(f"seed {seed}: the mean probability stays below {self.target}")

    def train(self, gpt: GPT, optimizer: Optimizer, rate: float, seed: int) -> paired.Row:
        """Make all updates; return the probabilities on the way."""
        curve = [self.right(gpt)]
        set_rate(optimizer, rate)
        for update in range(1, self.updates + 1):
            optimizer.zero_grad()
            self._loss(gpt, np.random.default_rng([seed, update, 1])).backward()
            nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
            optimizer.step()
            if update % self.every == 0:
                curve.append(self.right(gpt))
        return {"every": self.every, "curve": " ".join(f"{p:.6f}" for p in curve)}

    def _loss(self, gpt: GPT, generator: np.random.Generator) -> Tensor:
        """Return the loss of one batch, whose answers are sampled here."""
        picked = torch.from_numpy(generator.integers(len(self.sums), size=self.prompts))
        right = self.sums[picked].repeat_interleave(self.samples, 0)
        uniform = torch.from_numpy(generator.random((len(right), DIGITS)))
        tokens = sample(gpt, right[:, :-DIGITS], uniform)
        reward = (tokens == right).all(1).float().view(self.prompts, self.samples)
        centred = reward - reward.mean(1, keepdim=True)
        # A group of equal rewards has no advantages.
        advantage = centred / (reward.std(1, correction=0, keepdim=True) + 1e-6)
        log_p = of_answers(log_probabilities(gpt, tokens), tokens).mean(1)
        return -(advantage.flatten() * log_p).mean()

    def right(self, gpt: GPT) -> float:
        """Return the mean probability of the right answer."""
        return float(self._answers(gpt)[0].mean())

    @torch.no_grad()
    def _answers(self, gpt: GPT) -> tuple[Tensor, Tensor]:
        """Return each sum's probability of the right answer, and all log-probabilities."""
        parts = [log_probabilities(gpt, part) for part in self.sums.split(1000)]
        # Rounded log-probabilities may have a sum of probabilities above 1, and a KL below 0.
        log_p = torch.cat(parts).double().log_softmax(-1)
        return of_answers(log_p, self.sums).sum(1).exp(), log_p

    def measure(self, gpt: GPT, start: GPT) -> paired.Row:
        """Return the mean probability of the right answer, and the distance from the start."""
        right, log_p = self._answers(gpt)
        _, before = self._answers(start)
        divergence = (log_p.exp() * (log_p - before)).sum((1, 2)).mean()
        return {"right": float(right.mean()), "kl": float(divergence)}


def main(argv: list[str] | None = None) -> None:
    """Run what is missing, then report."""
    parser = paired.parser(__doc__.splitlines()[0], Arithmetic.name, PRECISIONS, RATES, seeds=5)
    arguments = parser.parse_args(argv)
    if not arguments.report:
        paired.run(Arithmetic(arguments), arguments)
    report.rewards(arguments)


if __name__ == "__main__":
    main()
