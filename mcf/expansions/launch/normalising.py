"""Normalise any floats to the expansion of their sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.convert.few import visible
from mcf.convert.rounding import convert
from mcf.expansions.dispatch.recorded import watched
from mcf.kernels import operations


def normalised(components: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the components with elements renormalised that are not yet expansions."""
    count = len(components)
    result = _total(components, count)
    overflow = ~result[0].isfinite()
    for c in components:
        overflow &= c.isfinite()
    if not visible(components[0]) or overflow.any():
        # A partial sum may overflow where the total does not: add sixteenths, and the remainders
        # of dividing subnormal numbers.
        sixteenths = [c / 16 for c in components]
        left = [c - 16 * s for c, s in zip(components, sixteenths, strict=True)]
        smaller = _total([*(16 * t for t in _total(sixteenths, count)), *left], count)
        result = [torch.where(overflow, a, r) for a, r in zip(smaller, result, strict=True)]
    # An infinity above another component is no expansion, though their sum equals the infinity.
    already = components[0].isfinite()
    for above, below in itertools.pairwise(components):
        already &= operations.two_sum(above, below)[0] == above
    return [torch.where(already, c, r) for c, r in zip(components, result, strict=True)]


def are_expansions(components: Sequence[Tensor]) -> bool:
    """Return whether unrecorded tensors are known to be normalised and of one format."""
    first = components[0]
    if first.dtype not in (torch.float32, torch.float64):
        return False
    for c in components:
        if not visible(c) or not c.is_contiguous() or c.layout is not torch.strided:
            return False
        if c.shape != first.shape or c.dtype is not first.dtype:
            return False
        if c.requires_grad and torch.is_grad_enabled():
            return False
    if watched():
        return False
    if first.dtype is torch.float64 and first.numel() == 1:
        # Python adds in float64.
        values = [c.item() for c in components]
        return math.isfinite(values[0]) and all(a + b == a for a, b in itertools.pairwise(values))
    if not first.isfinite().all():
        return False
    return all(torch.equal(a + b, a) for a, b in itertools.pairwise(components))


def _total(floats: Sequence[Tensor], terms: int) -> Sequence[Tensor]:
    """Return the renormalised sum of floats."""
    return convert(operations.renormalize(floats, terms), floats[0].dtype, terms)
