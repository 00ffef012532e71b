"""The visible part of a parameter, which the model computes with, written temporarily."""

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
    """Return the storage of a parameter's own tensor."""
    return PAIR if expansions.is_expansion(p) else SINGLE


@torch.no_grad()
def copied(p: Tensor) -> list[Tensor]:
    """Return copies of the components of a parameter's local part."""
    return [t.clone() for t in expansions.components(p.detach())]


@torch.no_grad()
def write(p: Tensor, value: Value) -> None:
    """Write a value, rounded to a parameter's format, into the parameter's local part."""
    kept(p).keep(value, list(expansions.components(p.detach())))
    expansions.stepped(p)


@torch.no_grad()
def restore(p: Tensor, before: Sequence[Tensor]) -> None:
    """Write saved components into a parameter's local part."""
    for t, old in zip(expansions.components(p.detach()), before, strict=True):
        t.copy_(old)
    expansions.stepped(p)
