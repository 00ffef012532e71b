"""What the scripts of Collage's tables share: the paper's options, a training, a table's cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from mcf.optim import AdamW
from parts import paper
from parts.paper import Row

OPTIONS = {"A": "plain", "B": "light", "C": "plus", "D without masters": "fp32_states",
           "D": "master", "Kahan": "kahan"}  # fmt: skip
# Those compute in bf16, as the paper's optimizer does; option D in float32.
STRICT = ("A", "B", "C", "Kahan")
COLOURS = {
    "A": paper.COLOURS[0], "B": paper.COLOURS[2], "C": paper.COLOURS[1], "D": paper.BLACK,
    "D without masters": paper.COLOURS[5], "Kahan": paper.COLOURS[3],
}  # fmt: skip
METRICS = {"edq": "edq", "edq_ratio": "edq_ratio", "lost_p": "lost_param",
           "lost_v": "lost_exp_avg_sq"}  # fmt: skip


def make(model: nn.Module, option: str, beta2: float, decay: float = 0.1) -> AdamW:
    """The optimizer of an option; vectors do not decay."""
    weights = list(model.parameters())
    return AdamW(
        [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": decay},
         {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}],
        betas=(0.9, beta2), precision=OPTIONS[option], track_metrics=True,
        compute_dtype=torch.bfloat16 if option in STRICT else torch.float32,
    )  # fmt: skip


def fit(
    model: nn.Module, optimizer: AdamW, steps: int, lr: float, final: float,
    loss: Callable[[int], tuple[Tensor, Tensor]],
) -> Iterator[dict[str, float]]:  # fmt: skip
    """Make updates; yield of each its loss, and what it lost.

    Args:
        model: is changed.
        optimizer: of its weights.
        steps: updates; the rate rises for a tenth of them, then falls as a half cosine.
        lr: the highest rate.
        final: the last rate's share of it.
        loss: of a step, from 1: what is told, what is minimized.
    """
    for step in range(1, steps + 1):
        done = step / steps
        fallen = final + (1 - final) * (1 + math.cos(math.pi * (done - 0.1) / 0.9)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * min(10 * done, fallen)
        optimizer.zero_grad()
        told, minimized = loss(step)
        minimized.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found = optimizer.metrics()
        yield {"loss": float(told.detach()), **{k: found[name] for k, name in METRICS.items()}}


def at_scale(rows: Sequence[Row], **scale: object) -> list[Row]:
    """The rows of trainings of that size."""
    found = [r for r in rows if all(r[k] == str(v) for k, v in scale.items())]
    if not found:
        raise SystemExit(f"no results with {', '.join(f'{k} {v}' for k, v in scale.items())}")
    return found


def gaps(rows: Sequence[Row], option: str, **of: object) -> list[float]:
    """Values of an option less those of D with the same seed, where both are there."""
    both = [
        {r["seed"]: float(r["value"]) for r in rows
         if r["option"] == o and all(r[k] == str(v) for k, v in of.items())}
        for o in (option, "D")
    ]  # fmt: skip
    return [x - both[1][seed] for seed, x in both[0].items() if seed in both[1]]


def cell(rows: Sequence[Row], option: str, form: str = ".4f", **of: object) -> str:
    """D's mean of a cell of the table, or an option's mean difference from it; standard errors."""
    if option == "D":
        found = paper.values(rows, "value", option="D", **of)
    else:
        found, form = gaps(rows, option, **of), f"+{form}"
    return paper.spread(found, form) if found else ""
