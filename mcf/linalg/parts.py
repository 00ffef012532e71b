"""Parts of matrices of expansions: apply one index, view or selection to every component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.components import Components as Components
from mcf.kernels.components import padded as padded

ALL = slice(None)


def each(function: Callable[[Tensor], Tensor], x: Components) -> Components:
    """Apply `function` to every component; only for exact views, copies and selections."""
    return tuple(function(c) for c in x)


def part(x: Components, *index: Any) -> Components:
    """Return the view x[..., *index]."""
    place = (..., *index)
    return each(lambda c: c[place], x)


def matrices(x: Components, index: Tensor) -> Components:
    """Return copies of the matrices with the given indices of the first dimension."""
    return each(lambda c: c[index], x)


def assign(x: Components, index: tuple[Any, ...], values: Components) -> None:
    """Write x[..., *index] = values."""
    place = (..., *index)
    for c, v in zip(x, values, strict=True):
        c[place] = v


def where(condition: Tensor, x: Components, y: Components) -> Components:
    """Return `x` where the condition holds, `y` elsewhere."""
    return tuple(torch.where(condition, a, b) for a, b in zip(x, y, strict=True))


def transpose(x: Components) -> Components:
    """Return the view with the last two dimensions exchanged."""
    return each(lambda c: c.mT, x)


def like(x: Components, leading: Tensor) -> Components:
    """Return a plain tensor as an expansion: the leading components, padded with zeros."""
    return (leading, *(torch.zeros_like(leading) for _ in x[1:]))


def one_like(x: Components) -> Components:
    """Return ones of the shape of x."""
    return like(x, torch.ones_like(x[0]))


def identity(x: Components, size: int) -> Components:
    """Return identity matrices for the batch of x."""
    eye = torch.eye(size, dtype=x[0].dtype, device=x[0].device)
    return like(x, eye.expand(*x[0].shape[:-2], size, size).contiguous())
