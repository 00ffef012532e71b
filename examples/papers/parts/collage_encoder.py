"""BERT and RoBERTa in small: a post-norm encoder, masked tokens, next sentences, a classifier.

As published (Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692) but for size,
dropout, of which there is none, and where positions begin (`draw`). Both mask 15 % of the tokens:
eight of ten are replaced by MASK, one by a random token, one is kept. BERT's masks are *static*, a
function of the window alone, and its input is two segments, the second of which follows the first
in the text or not; RoBERTa's masks are *dynamic*, drawn anew at each step, its input is one stretch
of text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from pretraining.data import Part
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from parts.collage_texts import BYTES, CLS, MASK, SEP, TOKENS

MASKED = 0.15


@dataclass(frozen=True)
class Batch:
    """What a step sees.

    Attributes:
        inputs: tokens, [B, T].
        masked: where one is asked for, [B, T].
        targets: the tokens there, in order.
        follows: whether the second segment follows the first, [B]; none for RoBERTa.
    """

    inputs: Tensor
    masked: Tensor
    targets: Tensor
    follows: Tensor | None


class Block(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x)); shapes [B, T, W] -> [B, T, W]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_attention = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.norm_mlp = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm_attention(x + self.project(mixed))
        return self.norm_mlp(x + self.contract(F.gelu(self.expand(x))))


class Encoder(nn.Module):
    """Embeddings, blocks, the head of masked tokens, that of the first token.

    Args:
        layers, width, heads: of the blocks.
        length: the longest input.
        classes: what the head of the first token tells apart.
    """

    def __init__(self, layers: int, width: int, heads: int, length: int, classes: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.positions = nn.Embedding(length, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.predict = nn.Linear(width, width)
        self.norm_predict = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(TOKENS))
        self.pool = nn.Linear(width, width)
        self.classify = nn.Linear(width, classes)

    def forward(self, inputs: Tensor, masked: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Logits of the masked tokens [M, V], none where nothing is masked, and classes [B, C]."""
        # Tokens behind the first SEP are of the second segment.
        ends = (inputs == SEP).long()
        segment = (ends.cumsum(1) - ends).clamp(max=1)
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]] + self.segments(segment)
        x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        classes = self.classify(torch.tanh(self.pool(x[:, 0])))
        if masked is None:
            return None, classes
        found = self.norm_predict(F.gelu(self.predict(x[masked])))
        return F.linear(found, self.tokens.weight, self.bias), classes


def draw(model: Encoder, seed: int) -> Encoder:
    """Give the encoder first weights, and return it in bf16: matrices by the seed, norms 1, else 0.

    Matrices have the gain of those of BERT-base, .02 sqrt(768 / width). Positions begin as
    sinusoids, or an encoder this small reads no neighbours for its first thousands of updates.
    """
    generator = torch.Generator().manual_seed(seed)
    length, width = model.positions.weight.shape
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0.0, 0.02 * math.sqrt(768 / width), generator=generator)
            else:
                weight.fill_(float("norm" in name and name.endswith("weight")))
        angles = torch.arange(length)[:, None] * 1e4 ** (-torch.arange(0, width, 2) / width)
        model.positions.weight.copy_(0.3 * torch.cat([angles.sin(), angles.cos()], 1))
    return model.bfloat16()


def run(model: Encoder, inputs: Tensor, masked: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """The model with weights upcast once, so that each gradient comes back as bf16 by one cast."""
    upcast = {name: weight.float() for name, weight in model.named_parameters()}
    found: tuple[Tensor | None, Tensor] = functional_call(model, upcast, (inputs, masked))
    return found


def losses(model: Encoder, batch: Batch) -> tuple[Tensor, Tensor]:
    """Cross entropies of masked tokens and, 0 for RoBERTa, of whether a segment follows."""
    logits, classes = run(model, batch.inputs, batch.masked)
    assert logits is not None
    masked = F.cross_entropy(logits, batch.targets)
    if batch.follows is None:
        return masked, masked.new_zeros(())
    return masked, F.cross_entropy(classes, batch.follows)


def batch(
    part: Part, key: list[int], size: int, length: int, bert: bool, spread: bool = False
) -> Batch:
    """Windows at multiples of their length, drawn by a key or evenly spread, and masked."""
    text = part.sources[0]
    generator = np.random.default_rng(key)
    inner = length - 3 if bert else length - 2
    count = (len(text) - inner) // inner
    if spread:
        picks = np.unique(np.linspace(0, count - 1, size).astype(np.int64))
    else:
        picks = generator.integers(count, size=size)
    starts, size = picks * inner, len(picks)
    first = inner // 2 if bert else inner
    inputs = np.full((size, length), SEP)
    inputs[:, 0] = CLS
    inputs[:, 1 : first + 1] = text[starts[:, None] + np.arange(first)]
    chance = generator.random((2, size, length))
    follows = np.zeros(size, np.int64)
    if bert:
        second = starts + first
        for row, start in enumerate(starts):
            own = np.random.default_rng([int(start), length])
            chance[:, row] = own.random((2, length))
            follows[row] = own.integers(2)
            if not follows[row]:
                second[row] = own.integers(len(text) - inner)
        inputs[:, first + 2 : -1] = text[second[:, None] + np.arange(inner - first)]
    masked = (chance[0] < MASKED) & (inputs < BYTES)
    targets = inputs[masked]
    # What is left of a number in [.9, 1) after its first digit is as uniform.
    others = (chance[1] * 10 % 1 * BYTES).astype(np.int64)
    inputs = np.where(masked & (chance[1] < 0.8), MASK, inputs)
    inputs = np.where(masked & (chance[1] >= 0.9), others, inputs)
    return Batch(
        torch.from_numpy(inputs), torch.from_numpy(masked), torch.from_numpy(targets),
        torch.from_numpy(follows) if bert else None,
    )  # fmt: skip
