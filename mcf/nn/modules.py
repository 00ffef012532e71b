"""Modules whose parameters are expansions.

Their values have terms * p bits. With bfloat16 components and 2 terms an update of 2^-16 of a
weight is not lost, whereas a bfloat16 weight loses updates below 2^-9. Any optimizer of
`torch.optim` trains them (`foreach` is off for tensor subclasses): its in-place operations, and its
states, which are created like the parameters, use expansion arithmetic. The optimizers of
`mcf.optim` train two components of bfloat16 or float16 in one fused pass, where the second
component is the low word of the strategies `light` and `plus`.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from typing_extensions import Unpack

from mcf.expansions.creation import FormatOptions, ones, spelled_out, zeros
from mcf.expansions.random import rand, randn
from mcf.nn import functional


class MCFLinear(nn.Module):
    """y = x W^T + b with expansions W [out, in] and b [out].

    Args:
        in_features: size of the input's last dimension.
        out_features: size of the output's.
        bias: whether there is a b.
        options: `terms`, `dtype` and `device`, as `mcf.full`.
    """

    @spelled_out(FormatOptions, terms=2)
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        **options: Unpack[FormatOptions],
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        shape = (out_features, in_features)
        w = rand(shape, **options)
        self.weight = nn.Parameter((w * 2 - 1) * bound)
        self.bias = None
        if bias:
            b = rand(out_features, **options)
            self.bias = nn.Parameter((b * 2 - 1) * bound)

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., in] to [..., out]; a plain input is promoted."""
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class MCFEmbedding(nn.Module):
    """Rows of a table of expansions [num_embeddings, embedding_dim].

    Args:
        num_embeddings: number of rows.
        embedding_dim: their size.
        padding_idx: a row that stays 0 and gets no gradient.
        options: `terms`, `dtype` and `device`, as `mcf.full`.
    """

    @spelled_out(FormatOptions, terms=2)
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        **options: Unpack[FormatOptions],
    ) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        table = randn(num_embeddings, embedding_dim, **options)
        if padding_idx is not None:
            table[padding_idx] = 0
        self.weight = nn.Parameter(table)

    def forward(self, input: Tensor) -> Tensor:
        """Map integers [...] to [..., embedding_dim]."""
        return nn.functional.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class MCFLayerNorm(nn.Module):
    """Layer norm with expansions as weight and bias.

    Args:
        normalized_shape: the sizes of the last dimensions.
        eps: added to the variance.
        options: `terms`, `dtype` and `device`, as `mcf.full`.
    """

    @spelled_out(FormatOptions, terms=2)
    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        **options: Unpack[FormatOptions],
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape, self.eps = tuple(shape), eps
        self.weight = nn.Parameter(ones(self.normalized_shape, **options))
        self.bias = nn.Parameter(zeros(self.normalized_shape, **options))

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [..., *normalized_shape]; the shape stays."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
