"""What `quality.py` trains: small models, a stack of seeds at once, on data made here.

"text": a transformer on bytes of the standard library's sources. "pieces": a network of two hidden
layers learns a piecewise linear function of integers, with noise. "gpt": as "text", with the model
of `make pretrain`; one training of it takes as long as 50 of the others.

A stack is S models of seeds s..s+S-1, independent of each other: their matrices are the rows of one
parameter [S, P], their vectors those of one of S * V elements, so that a step of the optimizer is
that of a larger model, and a forward pass S small ones under `torch.vmap`. Every P is a multiple of
256, so that blocks of other projects' states hold one model's elements; ours have no blocks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pretraining import data, model, options
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# Bytes above 126 are few in sources; they are one token.
TOKENS = 128


@dataclasses.dataclass(frozen=True)
class Task:
    """A model, its data and its loss.

    Args:
        name: in the results.
        chosen: steps, learning rate, warmup, decay.
        build: the model of a seed, with weights that bf16 holds.
        batch: the tensors of (seed, step); of step 0 what is held out, the same for all seeds.
        loss: mean loss of (outputs, batch).
        told: what is reported for a mean of held-out losses, in nats.
    """

    name: str
    chosen: options.Options
    build: Callable[[int], nn.Module]
    batch: Callable[[int, int], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    told: Callable[[float], float]


def _text(steps: int) -> Task:
    return _bytes(
        "text", ["--layers", "1", "--width", "32", "--heads", "2", "--context", "16",
                 "--batch-size", "8", "--lr", "1.5e-3"], steps, TOKENS
    )  # fmt: skip


def _gpt(steps: int) -> Task:
    """Return the model, batches and rate of `make pretrain`; nothing is clipped."""
    return _bytes("gpt", [], steps, 256)


def _bytes(name: str, arguments: list[str], steps: int, tokens: int) -> Task:
    """Return a transformer on bytes of the standard library's sources."""
    chosen = options.parse(
        [*arguments, "--steps", str(steps), "--max-bytes", "4000000", "--eval-windows", "256",
         "--beta2", "0.5"]
    )  # fmt: skip
    corpus = data.load(chosen)
    length = chosen.context + 1
    held_out = data.evenly_spaced(corpus.val, count=chosen.eval_windows, length=length)

    def batch(seed: int, step: int) -> tuple[Tensor, ...]:
        windows = held_out if step == 0 else data.batch(
            corpus.train, seed=seed, step=step, size=chosen.batch_size, length=length
        )  # fmt: skip
        windows = torch.from_numpy(np.minimum(windows, tokens - 1))
        return windows[:, :-1], windows[:, 1:]

    return Task(
        name,
        chosen,
        lambda seed: model.build(chosen, tokens, seed, torch.device("cpu")).float(),
        batch,
        lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten()),
        float,
    )


def _pieces(steps: int) -> Task:
    """y = B max(A x, 0) + noise, all of them integers below 2^24 and so exact, over 2^k."""
    chosen = options.parse(["--steps", str(steps), "--lr", "4e-3", "--beta2", "0.5"])
    inputs, hidden, outputs, rows = 32, 64, 8, 64
    draw = np.random.default_rng(13)
    a, b = (
        draw.integers(-4, 5, shape).astype(np.float32)
        for shape in ((inputs, hidden), (hidden, outputs))
    )

    def build(seed: int) -> nn.Module:
        net = nn.Sequential(
            nn.Linear(inputs, hidden), nn.GELU(approximate="tanh"),
            nn.Linear(hidden, hidden), nn.GELU(approximate="tanh"),
            nn.Linear(hidden, outputs),
        )  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for w in net.parameters():
                if w.dim() == 2:
                    w.normal_(0, w.shape[1] ** -0.5, generator=generator)
                else:
                    w.zero_()
        return net.bfloat16().float()

    def made(key: list[int], rows: int) -> tuple[Tensor, ...]:
        generator = np.random.default_rng(key)
        x = generator.integers(-8, 9, (rows, inputs)).astype(np.float32)
        y = np.maximum(x @ a, 0) @ b + generator.integers(-256, 257, (rows, outputs))
        return tuple(torch.from_numpy(part).float() * 2.0**-k for part, k in ((x, 3), (y, 9)))

    # No seed is as large.
    held_out = made([2**32], 2048)

    def batch(seed: int, step: int) -> tuple[Tensor, ...]:
        return made([seed, step], rows) if step else held_out

    # Half the logarithm of a mean square is a Gaussian's loss in nats, but for a constant.
    return Task("pieces", chosen, build, batch, F.mse_loss, lambda mean: math.log(mean) / 2)


class Stack:
    """Models of several seeds as two parameters.

    Args:
        task: what they learn.
        seeds: one for each model.
        dtype: of the parameters; the models compute in float32.
    """

    def __init__(self, task: Task, seeds: range, dtype: torch.dtype) -> None:
        built = [dict(task.build(seed).named_parameters()) for seed in seeds]
        self.task, self.seeds, self._model = task, seeds, task.build(0)
        self._names = {
            kind: [name for name, w in built[0].items() if (w.dim() >= 2) == kind]
            for kind in (True, False)
        }
        self._shapes = {name: w.shape for name, w in built[0].items()}
        rows = {
            kind: torch.stack([torch.cat([one[n].detach().flatten() for n in names])
                               for one in built]).to(dtype)
            for kind, names in self._names.items()
        }  # fmt: skip
        self.matrices, self.vectors = nn.Parameter(rows[True]), nn.Parameter(rows[False].flatten())
        self._losses = vmap(self._one)

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Matrices decay, vectors do not."""
        return [
            {"params": [self.matrices], "weight_decay": decay},
            {"params": [self.vectors], "weight_decay": 0.0},
        ]

    def losses(self, step: int) -> Tensor:
        """The loss of each model on its batch of a step, or on what is held out; shape [S]."""
        batches = [self.task.batch(seed, step) for seed in self.seeds]
        stacked = [torch.stack(parts) for parts in zip(*batches, strict=True)]
        weights: dict[str, Tensor] = {}
        for kind, stored in ((True, self.matrices), (False, self.vectors)):
            names = self._names[kind]
            parts = stored.float().view(len(self.seeds), -1)
            sizes = [self._shapes[name].numel() for name in names]
            for name, part in zip(names, parts.split(sizes, 1), strict=True):
                weights[name] = part.view(-1, *self._shapes[name])
        # The fused kernels of attention have no rule for vmap.
        with sdpa_kernel(SDPBackend.MATH):
            losses: Tensor = self._losses(weights, *stacked)
        return losses

    def _one(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(functional_call(self._model, weights, (x,)), y)


# Each makes its task for a number of updates.
TASKS = {"text": _text, "pieces": _pieces, "gpt": _gpt}
STEPS = 1500
