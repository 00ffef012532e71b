"""A model whose gradients are small whole numbers, exact in every order in which they are summed.

Between its layers stands `Told`, which replaces what passes through it, forward and backward, by
whole numbers that depend on the step and on the place in the batch alone. So each gradient is a sum
of products of such numbers, whatever the weights are, and every engine, split and reduction gives
the same one: the optimizer's bits must then be those of one plain process.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from tests.optim.helpers import random

# Samples and places in a sequence, which 1 to 4 processes divide evenly; the inner dimension, which
# they divide too; and others that they do not, the last of which leaves the fourth with nothing.
SAMPLES, LENGTH, INNER, WIDTH, OUT, TOKENS = 12, 12, 12, 7, 5, 11


@dataclasses.dataclass(frozen=True)
class Place:
    """Which part of a step's numbers is here.

    Args:
        step: of training.
        samples: the first of those that are here, and the end.
        rows: process and number of processes among which sequences are cut, where they are.
        columns: the same for the inner dimension.
        factor: what gradients are multiplied by, as an engine will divide them, or a GradScaler.
    """

    step: int = 0
    samples: tuple[int, int] = (0, SAMPLES)
    rows: tuple[int, int] = (0, 1)
    columns: tuple[int, int] = (0, 1)
    factor: float = 1.0


# Where this process is; set before each pass.
HERE = Place()


def signs(shape: tuple[int, ...], seed: int) -> Tensor:
    """Seeded ±1; the same everywhere."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=made) * 2 - 1


class _Replace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, out: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.saved_tensors[0].clone(), None, None


class Told(nn.Module):
    """Puts whole numbers in place of activations, ±1, and of their gradients, ±1."""

    def __init__(self, seed: int, width: int) -> None:
        super().__init__()
        self.seed, self.width = seed, width

    def forward(self, h: Tensor) -> Tensor:
        return _Replace.apply(h, self.cut(0, h), self.cut(1, h) * HERE.factor)

    def cut(self, k: int, h: Tensor) -> Tensor:
        shape = (SAMPLES, LENGTH, self.width)
        full = signs(shape, 1000 * HERE.step + 10 * self.seed + k)[slice(*HERE.samples)]
        for dim, (rank, size) in ((1, HERE.rows), (2, HERE.columns)):
            if h.shape[dim] != full.shape[dim]:
                full = full.chunk(size, dim)[rank]
        assert full.shape == h.shape
        return full.to(h.dtype)


class Block(nn.Module):
    """The two layers of an MLP, the first cut by its rows, the second by its columns."""

    def __init__(self) -> None:
        super().__init__()
        # Of ±1 it is exact without an eps.
        self.norm = nn.RMSNorm(WIDTH, eps=0.0)
        self.normed = Told(4, WIDTH)
        self.up = nn.Linear(WIDTH, INNER)
        self.middle = Told(2, INNER)
        self.down = nn.Linear(INNER, WIDTH)
        self.out = Told(3, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return self.out(self.down(self.middle(self.up(self.normed(self.norm(h))))))


class Model(nn.Module):
    """Embedding, a block, a head; a number of its own, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.first = Told(1, WIDTH)
        self.block = Block()
        self.head = nn.Linear(WIDTH, OUT, bias=False)
        self.scale = nn.Parameter(torch.empty(1))
        self.unused = nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.block(self.first(self.embedding(tokens)))
        return self.head(h) + self.scale


def start(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The first value of a parameter; bf16 numbers, also for float32 ones."""
    seed = sum(ord(c) * (k + 1) for k, c in enumerate(name)) % 1009
    return random(shape, torch.bfloat16, seed).to(dtype)


def made(dtype: torch.dtype = torch.bfloat16) -> Model:
    """The model with the same first values everywhere."""
    model = Model().to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(start(name, tuple(p.shape), dtype))
    return model


def loss_of(model: nn.Module) -> Tensor:
    """The loss of the samples that are here, without the factor."""
    tokens = torch.arange(SAMPLES * LENGTH).view(SAMPLES, LENGTH) * 7 % TOKENS
    out = model(tokens[slice(*HERE.samples)])
    weights = signs((SAMPLES, LENGTH, OUT), 1000 * HERE.step + 9)[slice(*HERE.samples)]
    return (out * weights.to(out.dtype)).sum()
