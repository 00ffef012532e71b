"""Decoders in the shape of GPT and Llama, whose weights are bf16, made a block at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretraining.shapes import Shape


class Linear(nn.Linear):
    """x W^T, with the bf16 weight upcast to what the activations are."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product; on a CPU it is of float32, in which it is some 50 times faster."""
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """w x / sqrt(mean(x^2) + 1e-5) in float32 (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised, in its dtype."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (wide * scale * self.weight.float()).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """torch's, in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised, in its dtype."""
        weight, bias = self.weight.float(), self.bias.float()
        return F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


@functools.lru_cache(8)
def rotation(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position x frequency, float32 [length, size / 2]."""
    frequency = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float().to(device), angle.sin().float().to(device)


def rotated(x: Tensor) -> Tensor:
    """Rotary embedding of [B, H, T, D] (Su et al. 2021, arXiv:2104.09864), in float32."""
    cos, sin = rotation(x.shape[-2], x.shape[-1], x.device)
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Causal attention with grouped queries.

    Heads are those that are here: tensor parallelism cuts the matrices by whole heads.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.size, self.rotary = shape.width, shape.width // shape.heads, shape.llama
        self.query = Linear(width, width)
        self.key = Linear(width, self.size * shape.groups)
        self.value = Linear(width, self.size * shape.groups)
        self.project = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the residual stream; shapes [B, T, W] -> [B, T, W]."""
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        if self.rotary:
            q, k = rotated(q), rotated(k)
        times = q.shape[1] // k.shape[1]
        if times > 1:
            k, v = (t.repeat_interleave(times, dim=1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202), or GELU between two matrices."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.expand = Linear(shape.width, shape.hidden)
        self.gate = Linear(shape.width, shape.hidden) if shape.llama else None
        self.contract = Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the residual stream; shapes [B, T, W] -> [B, T, W]."""
        inner = self.expand(x)
        if self.gate is None:
            return self.contract(F.gelu(inner, approximate="tanh"))
        return self.contract(F.silu(self.gate(x)) * inner)


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; shapes [B, T, W] -> [B, T, W]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        norm = RMSNorm if shape.llama else LayerNorm
        self.norm_attention = norm(shape.width)
        self.attention = Attention(shape)
        self.norm_mlp = norm(shape.width)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class Decoder(nn.Module):
    """Embedding, blocks, norm, head."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = None if shape.llama else nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = (RMSNorm if shape.llama else LayerNorm)(shape.width)
        self.head = Linear(shape.width, vocabulary) if shape.llama else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the next token for inputs [B, T].

        Activations are float32 on a CPU, else of the weights' dtype.
        """
        weight = self.tokens.weight.float() if inputs.device.type == "cpu" else self.tokens.weight
        x = F.embedding(inputs, weight)
        if self.positions is not None:
            x = x + self.positions.weight[: inputs.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return F.linear(x, weight) if self.head is None else self.head(x)


def build(
    shape: Shape,
    vocabulary: int,
    seed: int,
    device: torch.device,
    made: Callable[[nn.Module], object] = lambda module: None,
) -> Decoder:
    """Return a bf16 model whose weights depend on the seed and their names alone.

    It stands on the meta device first; each block, and then the rest, is given memory and weights
    and handed to `made`, which may cut it: no process ever holds more than a block beside its own
    part. Weights are drawn in float32 on the CPU and rounded once; the scale is GPT-2's, standard
    deviation 0.02, and 0.02 / sqrt(2 layers) where a layer adds to the residual stream.
    """
    with torch.device("meta"):
        model = Decoder(shape, vocabulary).to(torch.bfloat16)
    names = {id(p): name for name, p in model.named_parameters()}
    numbers = {name: k for k, name in enumerate(names.values())}
    for module in (*model.blocks, model):
        own = list(module.named_modules())
        for prefix, part in own:
            if module is model and prefix.startswith("blocks"):
                continue
            for name, p in list(part.named_parameters(recurse=False)):
                full = names[id(p)]
                weight = _weight(full, p.shape, seed, numbers[full], shape.layers)
                setattr(part, name, nn.Parameter(weight.to(device)))
        made(module)
    return model


def _weight(name: str, size: torch.Size, seed: int, number: int, layers: int) -> Tensor:
    if len(size) < 2:
        value = 0.0 if name.endswith("bias") else 1.0
        return torch.full(size, value, dtype=torch.bfloat16)
    std = 0.02
    if name.endswith(("project.weight", "contract.weight")):
        std /= math.sqrt(2 * layers)
    generator = torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**64)
    return torch.empty(size).normal_(0.0, std, generator=generator).to(torch.bfloat16)


def loss(model: Callable[[Tensor], Tensor], windows: Tensor) -> Tensor:
    """Return the mean cross entropy of windows [B, T + 1], in nats per token, as float32."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())
