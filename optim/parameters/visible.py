"""What a model computes with, the visible part of a parameter, written for a while."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.optim.parameters import expansions
from mcf.optim.storage.base import Storage
from mcf.optim.storage.pair import PAIR
from mcf.optim.storage.single import SINGLE
from mcf.optim.storage.values import Value


def kept(p: Tensor) -> Storage:
    """How a parameter itself keeps a value."""
    return PAIR if expansions.is_expansion(p) else SINGLE


@torch.no_grad()
def copied(p: Tensor) -> list[Tensor]:
    """Copies of the components of what is here of a parameter."""
    return [t.clone() for t in expansions.components(p.detach())]


@torch.no_grad()
def write(p: Tensor, value: Value) -> None:
    """Write a value, rounded to a parameter's format, into what is here of it."""
    kept(p).keep(value, list(expansions.components(p.detach())))
    expansions.stepped(p)


@torch.no_grad()
def restore(p: Tensor, before: Sequence[Tensor]) -> None:
    """Write the components of before into what is here of a parameter."""
    for t, old in zip(expansions.components(p.detach()), before, strict=True):
        t.copy_(old)
    expansions.stepped(p)
