"""Random numbers in place and in the likeness of an expansion tensor."""

from __future__ import annotations

from typing import Any

import torch

from mcf.kernels.formats import format_of
from mcf.tensor import random
from mcf.tensor.dispatch.registry import implements
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


def _uniform(x: MCFTensor, generator: torch.Generator | None) -> MCFTensor:
    fmt = format_of(x.dtype)
    return wrap(random.uniform_components(tuple(x.shape), fmt, x.terms, x.device, generator))


def _normal(x: MCFTensor, generator: torch.Generator | None) -> MCFTensor:
    fmt = format_of(x.dtype)
    return wrap(random.normal_components(tuple(x.shape), fmt, x.terms, x.device, generator))


@implements(aten.uniform_.default)
def uniform_(x: MCFTensor, start: float = 0, to: float = 1, *, generator: Any = None) -> MCFTensor:
    """Uniform in [start, to)."""
    x.copy_(_uniform(x, generator) * (to - start) + start)
    return x


@implements(aten.normal_.default)
def normal_(x: MCFTensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> MCFTensor:
    """Normal."""
    x.copy_(_normal(x, generator) * std + mean)
    return x


@implements(aten.rand_like.default)
def rand_like(x: MCFTensor, **kwargs: Any) -> MCFTensor:
    """Uniform in [0, 1)."""
    return _uniform(x, None)


@implements(aten.randn_like.default)
def randn_like(x: MCFTensor, **kwargs: Any) -> MCFTensor:
    """Standard normal."""
    return _normal(x, None)


@implements(aten.bernoulli_.float)
def bernoulli_(x: MCFTensor, p: float = 0.5, *, generator: Any = None) -> MCFTensor:
    """1 with probability p, else 0."""
    first, *lower = x.components
    first.bernoulli_(p, generator=generator)
    for c in lower:
        c.zero_()
    return x
