"""Implement in-place sampling, `rand_like` and its kin, and dropout.

Other distributions are computed from uniform and normal numbers with all components random.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from mcf.elementary import fixed
from mcf.expansions import random
from mcf.expansions.conversion import promote, reformat
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.arithmetic.constants import constant, in_format
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.promotion import result_format
from mcf.expansions.tensor import MCFTensor, broadcast, wrap
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


def _fills(func: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a distribution whose numbers, drawn like x, are written to x."""

    def register(drawn: Callable[..., Any]) -> Callable[..., Any]:
        return implements(func)(lambda x, *args, **named: x.copy_(drawn(x, *args, **named)))

    return register


@_fills(aten.uniform_.default)
def uniform_(x: MCFTensor, start: float = 0, to: float = 1, *, generator: Any = None) -> Any:
    """Fill x with uniform numbers in [start, to)."""
    return uniform(x, generator) * (to - start) + start


@_fills(aten.normal_.default)
def normal_(x: MCFTensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> Any:
    """Fill x with normal numbers."""
    return normal(x, generator) * std + mean


def _like(draw: Callable[..., MCFTensor]) -> Callable[..., MCFTensor]:
    return lambda x, *, dtype=None, device=None, **_: draw(x, dtype=dtype, device=device)


implements(aten.rand_like.default)(_like(random.rand_like))
implements(aten.randn_like.default)(_like(random.randn_like))


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
def bernoulli_(x: MCFTensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """Fill x with 1 with probability p, else 0."""
    first, *lower = x.components
    first.bernoulli_(p, generator=generator)
    for c in lower:
        c.zero_()
    return x


def _dropped(x: Any, p: float) -> tuple[Any, Tensor]:
    """Return x with random elements zeroed and the others divided by the exact 1 - p; the mask."""
    mask = torch.rand(x.shape, device=x.device) >= p
    return torch.where(mask, x / (1 - Fraction(p)) if p < 1 else x, 0), mask


@implements(aten.native_dropout.default)
def native_dropout(x: Any, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return `dropout`, and the mask of elements that are not zeroed."""
    if train is False or p == 0:
        return x.clone(), torch.ones(x.shape, dtype=torch.bool, device=x.device)
    return _dropped(x, p)


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
    out, _ = _dropped(input, p)
    return input.copy_(out) if inplace else out


def _inside(x: MCFTensor, generator: torch.Generator | None) -> MCFTensor:
    """Sample uniformly in (0, 1); zero becomes half the smallest positive sample."""
    drawn: Any = uniform(x, generator)
    fmt = format_of(x.dtype)
    least = 2.0 ** max(-x.terms * fmt.p - 1, fmt.emin - fmt.p + 1)
    positive: Any = where(drawn == 0, least, drawn)
    return positive  # type: ignore[no-any-return]


@_fills(aten.exponential_.default)
def exponential_(x: MCFTensor, lambd: float = 1, *, generator: Any = None) -> Any:
    """Fill x with -log(u) / lambd for uniform u in (0, 1)."""
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return -_inside(x, generator).log() / lambd


@_fills(aten.geometric_.default)
def geometric_(x: MCFTensor, p: float, *, generator: Any = None) -> Any:
    """Fill x with ceil(log(u) / log(1 - p)), the number of trials up to the first success."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    u: Any = _inside(x, generator)
    rate: Any = in_format(1 - Fraction(p), x).log()
    return (u.log() / rate).ceil()


@_fills(aten.cauchy_.default)
def cauchy_(x: MCFTensor, median: float = 0, sigma: float = 1, *, generator: Any = None) -> Any:
    """Fill x with median + sigma tan(pi (u - 1/2)) for uniform u."""
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    u: Any = _inside(x, generator)
    return ((u - 0.5) * constant(fixed.pi(), x)).tan() * sigma + median


@_fills(aten.log_normal_.default)
def log_normal_(x: MCFTensor, mean: float = 1, std: float = 2, *, generator: Any = None) -> Any:
    """Fill x with exp(mean + std z) for normal z."""
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    z: Any = normal(x, generator)
    return (z * std + mean).exp()


@implements(aten.bernoulli.default)
def bernoulli(x: Any, *, generator: Any = None) -> Any:
    """Return 1 with probability x, else 0, by comparing x with a uniform number of its format."""
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise RuntimeError("bernoulli expects all elements of the input to be in [0, 1]")
    u: Any = uniform(x, generator)
    return where(u < x, torch.ones_like(x), torch.zeros_like(x))


@implements(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def drawn_normal(mean: Any, std: Any = 1, *, generator: Any = None) -> Any:
    """Return mean + std z for normal z."""
    given = [t for t in (mean, std) if isinstance(t, Tensor)]
    if isinstance(std, Tensor) and not bool((std >= 0).all()):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    dtype, terms = result_format(*given)
    first: Any = broadcast(*given)[0]
    like: Any = reformat(promote(first), dtype, terms)
    z: Any = normal(like, generator)
    return z * std + mean
