"""Shapes of decoder-only transformers, GPT's and Llama's, by name; their numbers of parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder: blocks of attention and MLP between an embedding and a head, without biases.

    Attributes:
        llama: RMSNorm, rotary embedding, SwiGLU and a head of its own; else GPT's LayerNorm,
            learned positions, GELU and the embedding again as the head.
        layers: blocks.
        width: size of the residual stream.
        heads: of queries; divides the width.
        groups: heads of keys and values; divides the heads (Ainslie et al. 2023, arXiv:2305.13245).
        hidden: size inside the MLP.
        context: tokens that the model sees.
        vocabulary: tokens that it was published with; the data decides in a training.
    """

    llama: bool
    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    context: int
    vocabulary: int

    def block(self) -> int:
        """Parameters of a block."""
        keys_and_values = 2 * self.width * (self.width // self.heads) * self.groups
        attention = 2 * self.width * self.width + keys_and_values
        mlp = (3 if self.llama else 2) * self.width * self.hidden
        return attention + mlp + 2 * self.norm()

    def norm(self) -> int:
        """Parameters of a norm."""
        return self.width if self.llama else 2 * self.width

    def rest(self, vocabulary: int | None = None) -> int:
        """Parameters outside the blocks."""
        tokens = self.width * (self.vocabulary if vocabulary is None else vocabulary)
        return (2 * tokens if self.llama else tokens + self.width * self.context) + self.norm()

    def parameters(self, vocabulary: int | None = None) -> int:
        """All parameters, with another vocabulary where one is given."""
        return self.layers * self.block() + self.rest(vocabulary)


def gpt(layers: int, width: int, heads: int, context: int = 1024) -> Shape:
    """A shape as those of GPT-2 (Radford et al. 2019)."""
    return Shape(False, layers, width, heads, heads, 4 * width, context, 50257)


# Llama's: Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.
SHAPES: dict[str, Shape] = {
    "gpt-1m": gpt(4, 128, 4, 256),
    "gpt-124m": gpt(12, 768, 12),
    "gpt-355m": gpt(24, 1024, 16),
    "gpt-1.5b": gpt(48, 1600, 25),
    "llama-1m": Shape(True, 4, 128, 4, 2, 352, 256, 32000),
    "llama-30m": Shape(True, 8, 512, 8, 4, 1376, 1024, 32000),
    "llama-110m": Shape(True, 12, 768, 12, 4, 2048, 1024, 32000),
    "llama-1b": Shape(True, 16, 2048, 32, 8, 8192, 2048, 32000),
    "llama-7b": Shape(True, 32, 4096, 32, 32, 11008, 4096, 32000),
    "llama-70b": Shape(True, 80, 8192, 64, 8, 28672, 4096, 32000),
    "llama-405b": Shape(True, 126, 16384, 128, 8, 53248, 8192, 128256),
}
