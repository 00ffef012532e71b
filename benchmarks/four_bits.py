"""Find out why `4bit` ends below float32 masters: each thing that it does to a moment, alone.

    python benchmarks/four_bits.py              # what is missing of 8 seeds
    python benchmarks/four_bits.py --report     # table of what there is

AdamW in float32, weights and gradients too, on a task of `quality.py`. A variant changes what is
kept of a moment between steps, and nothing else. u is the power of two in (sqrt(v), 2 sqrt(v)]:

    cut          |m| is at most 3 u, the code's largest number
    m at random  m / u is one of the code's numbers, rounded stochastically; above 3 it is kept
    m to nearest the same, rounded to nearest
    m noise      normal noise with the variance of that rounding
    v at random  v is rounded stochastically to 2 bits of the significand
    all          cut, m at random, v at random: `4bit` but for its bf16 weights

`--scale 4` begins with matrices that are 4 times as large as the task's. "m at random, 1 to 300"
changes moments in these steps only.

A row of the results is one training, as in `quality.py`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import quality
import quality_report as report
import torch
from harness import environment, machine, table
from quality_tasks import STEPS, TASKS
from strategy_variants import TRUTH, Variant, find
from torch import Tensor

CODE = torch.tensor([0, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 1, 3])
# Vectors keep bf16 moments under `4bit`, so they are left alone here.
Kept = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


def unit(v: Tensor) -> Tensor:
    """Return the power of two in (sqrt(v), 2 sqrt(v)]."""
    exponent = torch.frexp(v).exponent - 1
    return torch.ldexp(torch.ones_like(v), exponent.div(2, rounding_mode="floor") + 1)


def neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the code's numbers on both sides of numbers from 0 to 3."""
    above = torch.bucketize(x, CODE, right=True).clamp(max=len(CODE) - 1)
    return CODE[above - 1], CODE[above]


def cut(m: Tensor, v: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bound m."""
    most = 3 * unit(v)
    return m.clamp(-most, most), v


def _m(m: Tensor, v: Tensor, number: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    u = unit(v)
    x = m.abs() / u
    found = torch.where(x < 3, number(x, *neighbours(x)), x)
    return torch.where(v > 0, found * u * m.sign(), m)


def m_at_random(m: Tensor, v: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Round m to a neighbour, so that the mean is m."""
    word = torch.rand(m.shape, generator=draw)
    return _m(m, v, lambda x, a, b: torch.where(word * (b - a) < x - a, b, a)), v


def m_to_nearest(m: Tensor, v: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Round m to the nearer neighbour."""
    return _m(m, v, lambda x, a, b: torch.where(b - x < x - a, b, a)), v


def m_noise(m: Tensor, v: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Add what rounding at random adds on average of its square."""
    normal = torch.randn(m.shape, generator=draw)
    return _m(m, v, lambda x, a, b: x + normal * ((x - a) * (b - x)).clamp(min=0).sqrt()), v


def v_at_random(m: Tensor, v: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Round v to a neighbour, so that the mean is v."""
    distance = torch.ldexp(torch.ones_like(v), torch.frexp(v).exponent - 3)
    word = torch.rand(v.shape, generator=draw)
    return m, torch.where(v > 0, (v / distance + word).floor() * distance, v)


# The moments are relative to v as it is kept: it comes first.
CHANGES: dict[str, tuple[Kept, ...]] = {
    "float32": (),
    "all": (v_at_random, cut, m_at_random),
    "cut": (cut,),
    "m at random": (m_at_random,),
    "m to nearest": (m_to_nearest,),
    "m noise": (m_noise,),
    "v at random": (v_at_random,),
}


class Changed(torch.optim.Optimizer):
    """AdamW whose kept moments are changed after each step of a range."""

    def __init__(
        self, groups: Any, lr: float, beta2: float, seed: int, changes: Iterable[Kept], when: range
    ) -> None:
        super().__init__(groups, {"lr": lr})
        self.beta2, self.changes, self.when, self.count = beta2, tuple(changes), when, 0
        self.draw = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update weights by exact moments, then keep the changed ones."""
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                m = state["m"].lerp(p.grad, 0.1)
                v = state["v"].lerp(p.grad.square(), 1 - self.beta2)
                root = (v / (1 - self.beta2**self.count)).sqrt_().add_(1e-8)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(m, root, value=-group["lr"] / (1 - 0.9**self.count))
                if p.dim() > 1 and self.count in self.when:
                    for change in self.changes:
                        m, v = change(m, v, self.draw)
                state["m"], state["v"] = m, v


def variants(names: Iterable[str]) -> list[Variant]:
    """Return the variants of these names.

    Args:
        names: of `CHANGES`, with the first and last step of the changes behind a name ("all, 1 to
            500") or not, or what `strategy_variants.find` takes.
    """
    found = []
    for name in names:
        plain, _, steps = name.partition(", ")
        if plain not in CHANGES:
            found += list(find([name], quality.CPU))
            continue
        first, last = map(int, steps.split(" to ")) if steps else (1, STEPS)

        def make(
            groups: Any, lr: float, beta2: float, seed: int,
            changes: Any = CHANGES[plain], when: range = range(first, last + 1),
        ) -> Any:  # fmt: skip
            return Changed(groups, lr, beta2, seed, changes, when)

        found.append(Variant(name, "float32", make, weights=torch.float32))
    return found


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [TRUTH, "4bit", *CHANGES]
    parser.add_argument("--variants", nargs="+", default=names, metavar="NAME")
    parser.add_argument("--task", choices=list(TASKS), default="text")
    parser.add_argument("--lr", type=float, default=4e-3, help="master's best for text")
    parser.add_argument("--scale", type=float, default=1.0, help="of the matrices at the start")
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--seeds", type=int, default=8, help="how many, a multiple of --stack")
    parser.add_argument("--stack", type=int, default=8, help="seeds trained at once")
    parser.add_argument("--steps", type=int, default=STEPS, help="updates")
    results = Path(__file__).parent / "results" / f"four_bits-{machine(quality.CPU)}.jsonl"
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--report", action="store_true", help="only report what there is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = quality.task(arguments.task, arguments.steps, arguments.lr, arguments.scale)
    where = environment(quality.CPU)
    size = arguments.stack
    stacks = [range(s, s + size) for s in range(0, arguments.seeds, size)]
    chosen = [] if arguments.report else variants(arguments.variants)
    for seeds, variant in itertools.product(stacks, chosen):
        done = {tuple(str(row[k]) for k in quality.KEY) for row in quality.read(arguments.results)}
        key = (task.name, str(arguments.steps), str(size), variant.name, str(arguments.beta2))
        if not all((*key, str(seed)) in done for seed in seeds):
            rows = quality.train(variant, task, seeds, arguments.beta2)
            quality.append(arguments.results, [{**row, **where} for row in rows])
            mean = sum(row["val_loss"] for row in rows) / len(rows)
            print(*key, seeds, f"{mean:.4f}", rows[0]["cpu_seconds"], flush=True)
    found = report.differences(quality.read(arguments.results))
    lines = [
        {"task": panel, "variant": name, "loss - master": report.told(list(values.values()))}
        for (name, panel), values in sorted(found.items(), key=lambda item: item[0][1])
        if name != TRUTH
    ]
    print(table(lines, list(lines[0])) if lines else "nothing to report yet")


if __name__ == "__main__":
    main()
