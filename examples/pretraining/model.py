"""A small GPT whose weights are bf16 and whose forward pass upcasts them where that is faster."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretraining.options import Options


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; shapes [B, T, W] -> [B, T, W]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        b, t, w = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(b, t, w))
        return x + self.contract(F.gelu(self.expand(self.norm_mlp(x)), approximate="tanh"))


class GPT(nn.Module):
    """Token and position embedding, blocks, norm, and the token embedding again as the head."""

    def __init__(
        self, vocab_size: int, *, layers: int, width: int, heads: int, context: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the next token for inputs [B, T]."""
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def parameters(options: Options, vocab_size: int) -> int:
    """Return how many parameters `build` would make, without making any."""
    width = options.width
    blocks = options.layers * (12 * width * width + 4 * width)
    return width * (vocab_size + options.context) + blocks + 2 * width


def build(options: Options, vocab_size: int, seed: int, device: torch.device) -> GPT:
    """Return a bf16 model: weights drawn in float32 by `seed` on the CPU, then rounded.

    Drawing on the CPU gives the same weights on every device; drawing in float32 and rounding
    once gives every strategy the same start. The scale is GPT-2's: standard deviation 0.02, and
    0.02 / sqrt(2 layers) for the two projections that add to the residual stream.
    """
    model = GPT(
        vocab_size,
        layers=options.layers,
        width=options.width,
        heads=options.heads,
        context=options.context,
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                continue
            residual = name.endswith(("project.weight", "contract.weight"))
            std = 0.02 / math.sqrt(2 * options.layers) if residual else 0.02
            weight.normal_(0.0, std, generator=generator)
    return model.to(device=device, dtype=torch.bfloat16)


def logits(model: GPT, inputs: Tensor) -> Tensor:
    """Return the logits [B, T, V] of the next token for inputs [B, T].

    On a CPU each bf16 weight is upcast to float32, once, so that its gradient comes back through
    one cast as bf16; native bf16 matrix products would be some 50 times slower there.
    """
    if inputs.device.type != "cpu":
        return model(inputs)  # type: ignore[no-any-return]
    upcast = {name: weight.float() for name, weight in model.named_parameters()}
    return torch.func.functional_call(model, upcast, (inputs,))  # type: ignore[no-any-return]


def loss(model: GPT, windows: Tensor) -> Tensor:
    """Return the mean cross entropy of windows [B, T + 1], in nats per token, as float32."""
    found = logits(model, windows[:, :-1])
    return F.cross_entropy(found.flatten(0, 1).float(), windows[:, 1:].flatten())
