"""Compute float64 sort keys of narrow expansions with any number of components."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.expansions.tensor import Components, MCFTensor
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.ordering import limit, narrow_keys


def keys(x: MCFTensor) -> Components | None:
    """Return float64 keys whose lexicographic order is that of the values, as few as needed.

    Return None for float64 components and for devices other than the CPU. Keys depend on the value
    only; a value that rounds to infinity in x's format has the keys infinity and 0.
    """
    fmt, first = FORMATS[x.dtype], x.components[0]
    if fmt == FP64 or first.device.type != "cpu":
        return None
    found = narrow_keys(x.components)
    if found is None:
        found = [*_bounded(convert(x.components, torch.float64, x.terms), limit(fmt))]
        while len(found) > 1 and not bool(found[-1].any()):
            found.pop()
    return tuple(found)


def _bounded(keys: Components, limit: float) -> Components:
    """Replace canonical keys of values of at least `limit` in size by infinity and 0."""
    first, second, *_ = keys
    size = first.abs()
    if not bool((size >= limit).any()):
        return keys
    beyond = (size > limit) | ((size == limit) & (second * first.sign() >= 0))
    infinite: Tensor = first.sign() * torch.inf
    return (
        torch.where(beyond, infinite, first),
        *(torch.where(beyond, 0.0, k) for k in keys[1:]),
    )
