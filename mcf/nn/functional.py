"""Layer norm, softmax and attention on expansion tensors, differentiable in their arithmetic.

Every function takes `MCFTensor`s; plain tensors beside them are promoted. torch.nn.functional's
`layer_norm`, `linear`, `embedding`, `softmax`, `cross_entropy` on an `MCFTensor` are these too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.expansions import MCFTensor
from mcf.expansions.conversion import promote, reformat
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.constants import mean_square
from mcf.expansions.ops.forms.inside_transforms import example, formatted, implements_inside
from mcf.expansions.promotion import result_format

__all__ = ["attention", "layer_norm", "linear", "rms_norm", "softmax", "weighted_attention"]


@implements(torch.nn.functional.layer_norm, torch.layer_norm)
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions.

    Args:
        input: [..., *normalized_shape].
        normalized_shape: the sizes of the last dimensions, over which mean and variance are taken.
        weight: [*normalized_shape] or None for 1.
        bias: [*normalized_shape] or None for 0.
        eps: an exact number, added to the variance (that of n, not n - 1 elements).
        cudnn_enable: ignored; `torch.layer_norm` has it.
    """
    return _normalised(True, input, normalized_shape, weight, bias, eps)


@implements(torch.nn.functional.rms_norm, torch.rms_norm)
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimensions.

    Args:
        input: [..., *normalized_shape].
        normalized_shape: the sizes of the last dimensions, over which the mean is taken.
        weight: [*normalized_shape] or None for 1.
        eps: an exact number; None for `torch.finfo` of the dtype that torch computes in, which is
            float32 for 16-bit components.
    """
    return _normalised(False, input, normalized_shape, weight, None, eps)


def _normalised(
    centred: bool,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
) -> Tensor:
    dims = _last_dimensions(input, normalized_shape)
    (x,) = _alike((input,), (weight, bias))
    if eps is None:
        eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    x = roomy(x)
    found = mean_square(x - x.mean(dims, keepdim=True) if centred else x, dims, eps)
    out = found.x * found.total.rsqrt()
    if weight is not None:
        out = out * weight
    result: Tensor = fitted(out if bias is None else out + bias, input, weight, bias)
    return result


def _last_dimensions(input: Tensor, normalized_shape: Sequence[int]) -> list[int]:
    shape = tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"normalized_shape is {list(shape)}, the input's last dimensions are "
            f"{list(input.shape[-len(shape) :])}"
        )
    return list(range(-len(shape), 0))


def softmax(input: Tensor, dim: int) -> Tensor:
    """Return exp(x) over its sum along a dimension."""
    return torch.softmax(promote(input), dim)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b.

    Args:
        input: [..., in].
        weight: [out, in].
        bias: [out] or None.
    """
    out = torch.matmul(promote(input), promote(weight).transpose(-2, -1))
    return out if bias is None else out + bias


@implements_inside("scaled_dot_product_attention")
@implements(torch.nn.functional.scaled_dot_product_attention)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(Q K^T scale + mask) V.

    Args:
        query: [..., L, E].
        key: [..., S, E].
        value: [..., S, V].
        attn_mask: bool (True takes part) or numbers to add, broadcast to [..., L, S].
        dropout_p: probability of dropping a weight.
        is_causal: row i sees the columns up to i.
        scale: 1 / sqrt(E) by default, with all digits of the expansion.
        enable_gqa: key and value may have fewer heads (dimension -3) than the query, a divisor of
            its number: each serves that many consecutive heads of the query.

    Raises:
        ValueError: for both attn_mask and is_causal; for heads that do not divide the query's.
    """
    if enable_gqa:
        key, value = _heads_of(query, key), _heads_of(query, value)
    return weighted_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]


def _heads_of(query: Tensor, x: Tensor) -> Tensor:
    """Repeat each head of a key or a value to match the query's heads."""
    if min(query.dim(), x.dim()) < 3:
        raise ValueError(
            "attention: enable_gqa needs heads, [..., H, L, E], got shapes "
            f"{list(query.shape)} and {list(x.shape)}"
        )
    wanted, heads = query.shape[-3], x.shape[-3]
    if heads == 0 or wanted % heads:
        raise ValueError(
            "attention: enable_gqa needs as many heads of key and value as divide those of the "
            f"query, got {heads} for {wanted}"
        )
    times = wanted // heads
    shape = (*x.shape[:-2], times, *x.shape[-2:])
    return x.unsqueeze(-3).expand(shape).flatten(-4, -3)


def weighted_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention, and its weights after dropout, [..., L, S]."""
    if attn_mask is not None and is_causal:
        raise ValueError("attention: give attn_mask or is_causal, not both")
    # Inside a transform of torch.func operands look like plain tensors.
    like = example(query, key, value, attn_mask)
    q, k, v = (roomy(formatted(x, like)) for x in (query, key, value))
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores = scores / _root(q.shape[-1], roomy(like)) if scale is None else scores * scale
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    return fitted(torch.matmul(weights, v), like), fitted(weights, like)


def _alike(tensors: Sequence[Tensor], others: Sequence[Tensor | None]) -> list[MCFTensor]:
    """Convert tensors to the result format of all arguments, so that none is rounded."""
    floats = [t for t in (*tensors, *others) if t is not None and t.is_floating_point()]
    dtype, terms = result_format(*floats)
    return [reformat(t, dtype, terms) for t in tensors]


def _root(n: int, like: MCFTensor) -> Tensor | int:
    """Return sqrt(n), as an integer if it is one."""
    whole = math.isqrt(n)
    if whole * whole == n:
        return whole
    return tensor(n, like.terms, like.dtype, like.device).sqrt()
