"""Sums of floats whose magnitudes are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mcf.elementary.tables import TERMS, Components
from mcf.elementary.working import head, two_prod, two_sum


class Sums:
    """A sum with one float per component, each collecting the errors of the previous one.

    The errors of the last float are lost, so four components use an additional float.

    Args:
        first: the first number.
        terms: components wanted.
        spare: whether to use an additional float in any case.
    """

    def __init__(self, first: Tensor, terms: int, *, spare: bool = False) -> None:
        self._terms, more = terms, spare or terms == TERMS
        self._places: list[Tensor | None] = [first, *[None] * (terms - 1 + more)]

    def add(self, x: Tensor, place: int) -> None:
        """Add a number to the float at an index, its rounding error to the next, and so on."""
        last = len(self._places) - 1
        for k in range(place, last + 1):
            old = self._places[k]
            if old is None:
                self._places[k] = x
                return
            if k == last:
                self._places[k] = old + x
            else:
                self._places[k], x = two_sum(old, x)

    def add_product(self, x: Components, y: Components) -> None:
        """Add the product of two expansions of at most half of the sum's magnitude.

        The errors of products in the last place, and everything below it, are lost.
        """
        last = len(self._places) - 1
        low = None
        for order in range(last + 1):
            for j in range(order + 1):
                if order < last:
                    p, e = two_prod(x[j], y[order - j])
                    self.add(p, order)
                    self.add(e, order + 1)
                else:
                    p = x[j] * y[order - j]
                    low = p if low is None else low + p
        assert low is not None
        self.add(low, last)

    def total(self) -> Components:
        """Return the sum as an expansion."""
        found = [p for p in self._places if p is not None]
        for order in (reversed(range(len(found) - 1)), range(1, len(found) - 1)):
            for k in order:
                found[k], found[k + 1] = two_sum(found[k], found[k + 1])
        if len(found) > self._terms:
            found[-2:] = [found[-2] + found[-1]]
        return head(tuple(found), self._terms)


def beside(z: Components, node: Tensor, terms: int) -> Components:
    """Return z - node for floats z >= 0, largest first, near the node or below half of it.

    The error is at most 4 u^terms of the difference: z[0] - node is exact, or z[0] is no larger
    than it.
    """
    return gathered(z[0], [(0, (-node,)), (1, z[1:terms])], terms)


def gathered(
    first: Tensor, groups: Sequence[tuple[int, Components]], terms: int, *, spare: bool = False
) -> Components:
    """Return the sum of a number and groups of floats, each starting at its place."""
    sums = Sums(first, terms, spare=spare)
    for place, floats in groups:
        for k, x in enumerate(floats, place):
            sums.add(x, k)
    return sums.total()
