"""Select elements by rank or extreme, with first components deciding for most elements.

First components that are more than two floats apart decide, since trailing components add at most
half an ulp to each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from mcf.expansions.tensor import Components

# Smaller rows are sorted entirely.
MANY = 1 << 15
# Sample size, and the distance in ranks of the bounds from the wanted element within the sample:
# four standard deviations of the rank of the median.
SAMPLE, MARGIN = 1 << 14, 256

# Returns the indices that sort some elements, ascending and stable.
Order = Callable[[Components], Tensor]


def decided(x: Tensor) -> bool:
    """Return whether first components can decide: one nonempty row of float32 or float64."""
    return x.dtype in (torch.float32, torch.float64) and x.ndim == 1 and x.numel() > 0


@functools.cache
def _limit(towards: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((), towards, dtype=dtype, device=device)


def away(x: Tensor, towards: float) -> Tensor:
    """Return the second next float after x in a direction."""
    limit = _limit(towards, x.dtype, x.device)
    return torch.nextafter(torch.nextafter(x, limit), limit)


def extremes(x: Tensor, largest: bool) -> Tensor:
    """Return the indices of possible extremes by first components; of all NaN if there are any."""
    best = torch.amax if largest else torch.amin
    whole = x.numel() // BLOCK * BLOCK
    if not whole:
        return _reaching(x, best(x, 0), largest)
    # One pass finds the extreme of each block, which excludes most blocks.
    tops, rest = best(x[:whole].view(-1, BLOCK), 1), x[whole:]
    top = best(tops, 0)
    if rest.numel():
        top = (torch.maximum if largest else torch.minimum)(top, best(rest, 0))
    blocks = _reaching(tops, top, largest)
    if blocks.numel() > tops.numel() // 8:
        return _reaching(x, top, largest)
    some = (blocks[:, None] * BLOCK + torch.arange(BLOCK, device=x.device)).view(-1)
    some = torch.cat([some, torch.arange(whole, x.numel(), device=x.device)])
    return some[_reaching(x[some], top, largest)]


# Block size of `extremes`.
BLOCK = 1 << 10


def _reaching(x: Tensor, top: Tensor, largest: bool) -> Tensor:
    """Return the indices of elements within two floats of `top`; of all NaN if `top` is NaN."""
    edge = away(top, -torch.inf if largest else torch.inf)
    hit = x >= edge if largest else x <= edge
    # All comparisons with NaN are False.
    found = hit.nonzero().squeeze(1)
    return found if found.numel() else x.isnan().nonzero().squeeze(1)


def ranked(x: Components, k: int, order: Order) -> Tensor | None:
    """Return the index of the k-th smallest (from 0) of one row; None if it must be sorted.

    A sample bounds the element (Floyd and Rivest 1975, doi:10.1145/360680.360691), and `order`
    sorts the few percent of elements between the bounds. The result is that of a stable sort.
    """
    first = x[0]
    count = first.numel()
    step = count // SAMPLE
    if count < MANY:
        return None
    sample = first[::step].sort().values
    at = k // step
    lowest, highest = max(0, at - MARGIN), min(sample.numel() - 1, at + MARGIN)
    ends = torch.stack([sample[lowest], sample[highest]])
    if not bool(ends.isfinite().all()):
        return None
    low, high = away(ends[0], -torch.inf), away(ends[1], torch.inf)
    if lowest == 0:
        low = torch.full_like(low, -torch.inf)
    below = int((first < low).sum())
    middle = ((first >= low) & (first <= high)).nonzero().squeeze(1)
    if not below <= k < below + middle.numel():
        return None
    parts = tuple(c[middle] for c in x)
    place = order(parts)[k - below]
    found = parts[0][place]
    # An element between a bound and its widened edge may not have the wanted rank.
    inside = (found <= ends[1]) & ((found >= ends[0]) | bool(lowest == 0))
    return middle[place] if bool(inside) else None
