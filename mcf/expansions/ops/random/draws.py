"""Implement in-place sampling, `rand_like` and its kin, and dropout."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.expansions import random
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.formats import format_of

aten = torch.ops.aten


def uniform(x: MCFTensor, generator: torch.Generator | None) -> MCFTensor:
    """Sample uniformly in [0, 1), with the shape and format of x."""
    fmt = format_of(x.dtype)
    return wrap(random.uniform_components(tuple(x.shape), fmt, x.terms, x.device, generator))


def normal(x: MCFTensor, generator: torch.Generator | None) -> MCFTensor:
    """Sample the standard normal distribution, with the shape and format of x."""
    fmt = format_of(x.dtype)
    return wrap(random.normal_components(tuple(x.shape), fmt, x.terms, x.device, generator))


@implements(aten.uniform_.default)
def uniform_(x: MCFTensor, start: float = 0, to: float = 1, *, generator: Any = None) -> MCFTensor:
    """Fill x with uniform numbers in [start, to)."""
    x.copy_(uniform(x, generator) * (to - start) + start)
    return x


@implements(aten.normal_.default)
def normal_(x: MCFTensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> MCFTensor:
    """Fill x with normal numbers."""
    x.copy_(normal(x, generator) * std + mean)
    return x


@implements(torch.rrelu, F.rrelu)
def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
    generator: Any = None,
) -> Any:
    """Return x if positive, else x times a slope: random in training, else (lower + upper) / 2."""
    low, high = Fraction(lower), Fraction(upper)
    if low > high:
        raise RuntimeError(f"rrelu: lower must be at most upper, got {lower} and {upper}")
    slope: Any = (low + high) / 2
    if training:
        drawn: Any = uniform(input.detach(), generator)
        slope = drawn * (high - low) + low
    out = torch.where(input > 0, input, input * slope)
    return input.copy_(out) if inplace else out


@implements(torch.rrelu_)
def rrelu_(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply `rrelu` in place."""
    return input.copy_(rrelu(input, *args, **kwargs))


@implements(aten.rand_like.default)
def rand_like(x: MCFTensor, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> MCFTensor:
    """Return uniform numbers in [0, 1), with the shape and format of x."""
    return random.rand_like(x, dtype=dtype, device=device)


@implements(aten.randn_like.default)
def randn_like(x: MCFTensor, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> MCFTensor:
    """Return standard normal numbers, with the shape and format of x."""
    return random.randn_like(x, dtype=dtype, device=device)


@implements(torch.randint_like)
def randint_like(input: Any, low: Any, high: Any = None, **kwargs: Any) -> Any:
    """Return integers in [low, high), low = 0 by default, as PyTorch's generator gives for int64.

    Raises:
        ValueError: if the format cannot hold low or high.
    """
    low, high = (0, low) if high is None else (low, high)
    dtype, device = kwargs.pop("dtype", None) or input.dtype, kwargs.pop("device", input.device)
    bits = input.terms * format_of(dtype).p
    if max(abs(int(low)), abs(int(high))) > 2**bits:
        raise ValueError(
            f"randint_like: {input.terms} components of {dtype} hold whole numbers up to 2**{bits},"
            f" got low={low}, high={high}"
        )
    generator = kwargs.pop("generator", None)
    numbers = torch.randint(int(low), int(high), input.shape, device=device, generator=generator)
    return tensor(numbers, input.terms, dtype, device)


@implements(aten.bernoulli_.float)
def bernoulli_(x: MCFTensor, p: float = 0.5, *, generator: Any = None) -> MCFTensor:
    """Fill x with 1 with probability p, else 0."""
    first, *lower = x.components
    first.bernoulli_(p, generator=generator)
    for c in lower:
        c.zero_()
    return x


@implements(aten.native_dropout.default)
def native_dropout(x: Any, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return x with random elements zeroed and the others divided by 1 - p, and the mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones(x.shape, dtype=torch.bool, device=x.device)
    mask = torch.rand(x.shape, device=x.device) >= p
    return where(mask, x / (1 - Fraction(p)) if p < 1 else x, 0), mask


@implements(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the gradient times the scale, or times 0 where the mask is False, as in PyTorch."""
    return where(mask, grad * scale, grad * 0)


@implements(F.dropout, torch.dropout)
def dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: Any = None
) -> Any:
    """Zero elements with probability p and divide the others by the exact 1 - p."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not (training if train is None else train) or p == 0:
        return input
    kept = torch.rand(input.shape, device=input.device) >= p
    out = torch.where(kept, input / (1 - Fraction(p)) if p < 1 else input, 0)
    return input.copy_(out) if inplace else out
