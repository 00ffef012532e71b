"""Sorting rows of canonical expansions: an index for each place, stable, NaN the largest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms.order import PRECEDES
from mcf.kernels.bind import Algorithm


def precedes(terms: int) -> Algorithm:
    """Whether an expansion comes before another, ascending."""
    found: Algorithm = PRECEDES[terms]
    return found


def sorted_rows(
    keys: Sequence[Tensor],
    descending: bool,
    x: Sequence[Tensor] = (),
    out: Sequence[Tensor] = (),
) -> Tensor | None:
    """Indices that sort each row, where the executor has a loop for it.

    Args:
        keys: canonical components [rows, count] of any format.
        descending: from the largest to the smallest; equal ones stay in their order.
        x: float64 components of the same shape, contiguous.
        out: where they go in that order; overlaps nothing.

    Returns:
        int64 [rows, count], or None, and nothing is done.
    """
    if not keys[0].numel():
        return None
    given = [k.to(torch.float64).contiguous() for k in keys]
    return registry.on(keys[0].device).sort(given, descending, x, out)
