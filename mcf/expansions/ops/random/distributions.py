"""Sample other distributions from uniform and normal numbers with all components random."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import fixed
from mcf.expansions.conversion import promote, reformat
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.elementary.constants import constant, in_format
from mcf.expansions.ops.random.draws import normal, uniform
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.promotion import result_format
from mcf.expansions.tensor import MCFTensor, broadcast
from mcf.kernels.formats import format_of

aten = torch.ops.aten


def _inside(x: MCFTensor, generator: torch.Generator | None) -> MCFTensor:
    """Sample uniformly in (0, 1); zero becomes half the smallest positive sample."""
    drawn: Any = uniform(x, generator)
    fmt = format_of(x.dtype)
    least = 2.0 ** max(-x.terms * fmt.p - 1, fmt.emin - fmt.p + 1)
    positive: Any = where(drawn == 0, least, drawn)
    return positive  # type: ignore[no-any-return]


@implements(aten.exponential_.default)
def exponential_(x: MCFTensor, lambd: float = 1, *, generator: Any = None) -> MCFTensor:
    """Fill x with -log(u) / lambd for uniform u in (0, 1)."""
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    x.copy_(-_inside(x, generator).log() / lambd)
    return x


@implements(aten.geometric_.default)
def geometric_(x: MCFTensor, p: float, *, generator: Any = None) -> MCFTensor:
    """Fill x with ceil(log(u) / log(1 - p)), the number of trials up to the first success."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    u: Any = _inside(x, generator)
    rate: Any = in_format(1 - Fraction(p), x).log()
    x.copy_((u.log() / rate).ceil())
    return x


@implements(aten.cauchy_.default)
def cauchy_(x: MCFTensor, median: float = 0, sigma: float = 1, *, generator: Any = None) -> Any:
    """Fill x with median + sigma tan(pi (u - 1/2)) for uniform u."""
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    u: Any = _inside(x, generator)
    x.copy_(((u - 0.5) * constant(fixed.pi(), x)).tan() * sigma + median)
    return x


@implements(aten.log_normal_.default)
def log_normal_(x: MCFTensor, mean: float = 1, std: float = 2, *, generator: Any = None) -> Any:
    """Fill x with exp(mean + std z) for normal z."""
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    z: Any = normal(x, generator)
    x.copy_((z * std + mean).exp())
    return x


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
