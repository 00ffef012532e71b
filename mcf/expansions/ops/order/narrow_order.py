"""Keys of narrow expansions of any number of components: float64 in the order of the values."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.expansions.tensor import Components, MCFTensor
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.narrow_keys import limit, narrow_keys


def keys(x: MCFTensor) -> Components | None:
    """Float64 numbers whose lexicographic order is that of the values, as few as decide.

    None of components of float64, or off the host. They depend on the value alone: of what rounds
    to infinity in x's format they are infinity and 0.
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
    """The same with infinity and 0 for canonical keys of values from a limit on."""
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
