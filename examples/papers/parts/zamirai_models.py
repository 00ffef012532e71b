"""Three small models whose roundings can be chosen: convolutional, recurrent, embedding-heavy.

A model is a stack of S models of the same shape, its weights a list of tensors [S, ...] that share
nothing, so that one step of an optimizer is a step of each. They compute in float32 and round where
`Rounding` says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pretraining import data, options
from torch import Tensor
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: bool, backward: bool) -> Tensor:  # type: ignore[override]
        ctx.backward = backward
        return to_bf16(x) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return (to_bf16(g) if ctx.backward else g), None, None


def to_bf16(x: Tensor) -> Tensor:
    """Round to nearest bf16, kept in float32."""
    return x.bfloat16().float()


@dataclasses.dataclass(frozen=True)
class Rounding:
    """What is rounded to bf16: outputs of operations and the weights they take, and gradients."""

    forward: bool = False
    backward: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """`x`, rounded in the forward pass; its gradient, rounded in the backward pass."""
        return _Round.apply(x, self.forward, self.backward) if any(vars(self).values()) else x


Forward = Callable[[list[Tensor], Tensor, Rounding], Tensor]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model and its data.

    Args:
        name: in the results.
        shapes: of the weights of one model, with the standard deviation of their first values.
        forward: (weights, inputs [S, B, ...], rounding) -> logits [S, B, K].
        batch: (S, step) -> inputs and classes; of step 0 what is held out.
        adam: whether AdamW trains it, else SGD with momentum.
        lr: the highest rate.
    """

    name: str
    shapes: list[tuple[tuple[int, ...], float]]
    forward: Forward
    batch: Callable[[int, int], Batch]
    adam: bool
    lr: float

    def weights(self, count: int) -> list[Tensor]:
        """A stack of seeded weights that bf16 holds."""
        draw = torch.Generator().manual_seed(0)
        return [to_bf16(torch.randn(count, *shape, generator=draw) * std)
                for shape, std in self.shapes]  # fmt: skip

    def losses(self, weights: list[Tensor], batch: Batch, rounding: Rounding) -> Tensor:
        """Cross entropy of each model of the stack; shape [S]."""
        used = [rounding(w.float()) for w in weights]
        logits = self.forward(used, batch[0], rounding)
        loss = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), reduction="none")
        return loss.view(len(logits), -1).mean(1)


def _generator(key: int, step: int) -> np.random.Generator:
    return np.random.default_rng([key, step])


def _convolve(weights: list[Tensor], x: Tensor, q: Rounding) -> Tensor:
    first, second, last = weights
    count, rows = x.shape[:2]
    # The models of the stack are groups of channels.
    x = x.transpose(0, 1).flatten(1, 2)
    for w, stride in ((first, 1), (second, 2)):
        x = F.conv2d(x, w.flatten(0, 1), None, stride, 1, 1, count)
        x = q(F.relu(q(x)))
    x = q(x.view(rows, count, -1, *x.shape[2:]).mean((3, 4))).transpose(0, 1)
    return q(x @ last.mT)


def convolutional(rows: int = 16, classes: int = 8) -> Model:
    """Two convolutions and a linear layer tell noisy patterns of 8 x 8 apart."""
    patterns = _generator(1, 0).integers(-4, 5, (classes, 1, 8, 8))

    def batch(count: int, step: int) -> Batch:
        draw = _generator(2, step)
        shape = (count, rows if step else 256)
        kind = draw.integers(0, classes, shape)
        x = patterns[kind] + draw.integers(-12, 13, (*shape, 1, 8, 8))
        return torch.from_numpy(x).float() / 8, torch.from_numpy(kind)

    shapes = [((8, 1, 3, 3), 1 / 3), ((16, 8, 3, 3), 8.5**-1), ((classes, 16), 0.25)]
    return Model("convolutional", shapes, _convolve, batch, False, 0.1)


def _recur(weights: list[Tensor], x: Tensor, q: Rounding) -> Tensor:
    embedding, inputs, hidden, head = weights
    count, size = hidden.shape[0], hidden.shape[2]
    state = torch.zeros(count, x.shape[1], size)
    offset = torch.arange(count)[:, None, None] * embedding.shape[1]
    # All inputs' shares of the gates at once [S, B, T, 3 H].
    shares = q(F.embedding(x + offset, embedding.flatten(0, 1)).flatten(1, 2) @ inputs.mT)
    for share in shares.view(*x.shape, -1).unbind(2):
        given, inner = share.split([2 * size, size], -1), q(state @ hidden.mT)
        first, last = inner.split([2 * size, size], -1)
        reset, update = q(torch.sigmoid(given[0] + first)).chunk(2, -1)
        new = q(torch.tanh(given[1] + reset * last))
        state = q(new + update * (state - new))
    return q(state @ head.mT)


def recurrent(rows: int = 16, length: int = 8, width: int = 24, tokens: int = 128) -> Model:
    """A gated recurrent unit reads bytes of the standard library and tells the next one."""
    corpus = data.load(options.parse(["--max-bytes", "1000000", "--beta2", "0.5"]))

    def batch(count: int, step: int) -> Batch:
        if step:
            size = count * rows
            found = data.batch(corpus.train, seed=0, step=step, size=size, length=length + 1)
        else:
            found = data.evenly_spaced(corpus.val, count=256, length=length + 1)
            found = np.concatenate([found] * count)
        windows = torch.from_numpy(np.minimum(found, tokens - 1)).view(count, -1, length + 1)
        return windows[..., :-1], windows[..., -1]

    gates, scale = 3 * width, width**-0.5
    recurrence = [((gates, width), scale), ((tokens, width), scale)]
    shapes = [((tokens, 16), 0.5), ((gates, 16), 0.25), *recurrence]
    return Model("recurrent", shapes, _recur, batch, True, 1e-2)


def _look_up(weights: list[Tensor], x: Tensor, q: Rounding) -> Tensor:
    tables, first, last = weights
    count, places, length = tables.shape[:3]
    offset = torch.arange(count * places).view(count, 1, places) * length
    found = q(F.embedding(x + offset, tables.flatten(0, 2)))
    # Products of all pairs, as in a recommender.
    pairs = q(found @ found.mT).flatten(2)
    hidden = q(F.relu(q(torch.cat([found.flatten(2), pairs], 2) @ first.mT)))
    return q(hidden @ last.mT)


def embedding(rows: int = 64, places: int = 6, length: int = 64, width: int = 8) -> Model:
    """Six tables of 64 rows, products of pairs and two layers tell whether a click comes."""
    truth = _generator(3, 0).integers(-4, 5, (places, length, 4))

    def batch(count: int, step: int) -> Batch:
        draw = _generator(4, step)
        shape = (count, rows if step else 1024)
        # Some rows are asked for more often, as in such data.
        x = draw.integers(0, length, (2, *shape, places)).min(0)
        of = truth[np.arange(places), x]
        # A weight for each row, and products of pairs of places.
        score = 8 * of[..., 0].sum(-1)
        score += (of[..., : places // 2, 1:] * of[..., places // 2 :, 1:]).sum((-1, -2))
        click = score + draw.integers(-30, 31, shape) > 0
        return torch.from_numpy(x), torch.from_numpy(click.astype(np.int64))

    inputs = places * width + places * places
    shapes = [((places, length, width), 0.3), ((16, inputs), inputs**-0.5), ((2, 16), 0.25)]
    return Model("embedding-heavy", shapes, _look_up, batch, True, 1e-2)
