"""Elements of a rank among many, by first components: few are left for the rest to decide.

Where the first components of two expansions are more than two numbers of their format apart, they
decide: what lies below them is at most half a place each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from mcf.expansions.tensor import Components

# Rows of fewer elements are sorted at once.
MANY = 1 << 15
# Of a sample of so many elements the ones that enclose a rank are so many apart from it: four
# standard deviations of the rank of a median in a random sample.
SAMPLE, MARGIN = 1 << 14, 256

# Indices of some elements in ascending order of values, stable.
Order = Callable[[Components], Tensor]


def decided(x: Tensor) -> bool:
    """Whether these are first components of one row, of a format that has neighbours here."""
    return x.dtype in (torch.float32, torch.float64) and x.ndim == 1 and x.numel() > 0


@functools.cache
def _limit(towards: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((), towards, dtype=dtype, device=device)


def away(x: Tensor, towards: float) -> Tensor:
    """The second number from x in a direction."""
    limit = _limit(towards, x.dtype, x.device)
    return torch.nextafter(torch.nextafter(x, limit), limit)


def extremes(x: Tensor, largest: bool) -> Tensor:
    """Indices of what may be the largest or smallest by the first components; of NaN if any is."""
    best = torch.amax if largest else torch.amin
    whole = x.numel() // BLOCK * BLOCK
    if not whole:
        return _reaching(x, best(x, 0), largest)
    # One reading for the best of each block, after which most blocks have nothing more to say.
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


# Elements of which the best is found at once.
BLOCK = 1 << 10


def _reaching(x: Tensor, top: Tensor, largest: bool) -> Tensor:
    """Indices of what is less than three numbers from the top; of NaN where that is one."""
    edge = away(top, -torch.inf if largest else torch.inf)
    hit = x >= edge if largest else x <= edge
    # All comparisons with NaN are false.
    found = hit.nonzero().squeeze(1)
    return found if found.numel() else x.isnan().nonzero().squeeze(1)


def ranked(x: Components, k: int, order: Order) -> Tensor | None:
    """The index of the k-th smallest, from 0, of one row; None where sorting all is the way.

    A sample encloses the rank (Floyd and Rivest 1975, doi:10.1145/360680.360691), and of the
    elements in between, a few hundredths, `order` finds it. It is the one that a stable sort would
    put there.
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
    # What is nearer to an edge may be beyond elements on its other side.
    inside = (found <= ends[1]) & ((found >= ends[0]) | bool(lowest == 0))
    return middle[place] if bool(inside) else None
