"""Parts of matrices of expansions: the same index, view or choice on every component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.components import Components as Components
from mcf.kernels.components import padded as padded

ALL = slice(None)


def each(function: Callable[[Tensor], Tensor], x: Components) -> Components:
    """`function` of every component; for views, copies and choices, which are exact."""
    return tuple(function(c) for c in x)


def part(x: Components, *index: Any) -> Components:
    """The view x[..., *index]."""
    place = (..., *index)
    return each(lambda c: c[place], x)


def matrices(x: Components, index: Tensor) -> Components:
    """Copies of those with the given indices of the first dimension."""
    return each(lambda c: c[index], x)


def assign(x: Components, index: tuple[Any, ...], values: Components) -> None:
    """Write x[..., *index] = values."""
    place = (..., *index)
    for c, v in zip(x, values, strict=True):
        c[place] = v


def where(condition: Tensor, x: Components, y: Components) -> Components:
    """`x` where the condition holds, `y` elsewhere."""
    return tuple(torch.where(condition, a, b) for a, b in zip(x, y, strict=True))


def transpose(x: Components) -> Components:
    """The view with the last two dimensions exchanged."""
    return each(lambda c: c.mT, x)


def like(x: Components, leading: Tensor) -> Components:
    """The expansions that a plain tensor is: the leading components, and zeros."""
    return (leading, *(torch.zeros_like(leading) for _ in x[1:]))


def one_like(x: Components) -> Components:
    """Ones of the shape of x."""
    return like(x, torch.ones_like(x[0]))


def identity(x: Components, size: int) -> Components:
    """Identity matrices for the batch of x."""
    eye = torch.eye(size, dtype=x[0].dtype, device=x[0].device)
    return like(x, eye.expand(*x[0].shape[:-2], size, size).contiguous())
