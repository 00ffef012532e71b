"""Operands of several shapes as copies of one shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mcf.tensor.tensor import Components


def expanded(
    groups: Sequence[Components], size: torch.Size, numbers: bool = False
) -> list[Components]:
    """Operands as contiguous tensors of a shape; single numbers as they are, unless it is said."""
    return [
        g
        if g[0].shape == size or not (g[0].ndim or numbers)
        else tuple(c.expand(size).contiguous() for c in g)
        for g in groups
    ]


def of_one_shape(
    groups: Sequence[Components], most: int, numbers: bool = False
) -> list[Components] | None:
    """Operands of several shapes as copies of one; None where they have one.

    And where it has more elements than `most`, or there is none. Numbers beside others are operands
    of several shapes if it is said.
    """
    shapes = [g[0].shape for g in groups]
    longest = max(shapes, key=len)
    if all(s == longest or not (s or (numbers and longest.numel() != 1)) for s in shapes):
        return None
    try:
        size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    return expanded(groups, size, numbers) if size.numel() <= most else None
