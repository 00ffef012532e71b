"""The declaration of running sums and products of expansions, which executors make loops of.

The order is part of the definition. A block is 2**j elements that begin at a multiple of 2**j; it
is the combination of its halves, as a tree. What runs up to element m, counted from 1, is what runs
up to m - 2**j combined with the block of 2**j elements that ends at m, where 2**j is the largest
power of two that divides m; the block itself where that is all. So each is of at most 2 log2(count)
combinations, and each block is combined once (Brent and Kung 1982, doi:10.1109/TC.1982.1675982).
"""

from __future__ import annotations

import dataclasses
import functools

from mcf.kernels.algorithms import ieee
from mcf.kernels.bind import Algorithm

_FAMILIES = {"cumsum": ieee.ADD, "cumprod": ieee.MUL}


@dataclasses.dataclass(frozen=True)
class Scan:
    """Running sums or products of rows of float64 expansions.

    Args:
        name: "cumsum" or "cumprod".
        terms: components.
    """

    name: str
    terms: int

    @property
    def combine(self) -> Algorithm:
        """Two expansions into one."""
        return _FAMILIES[self.name][self.terms]


@functools.cache
def scan(name: str, terms: int) -> Scan:
    """The scan of a name."""
    return Scan(name, terms)
