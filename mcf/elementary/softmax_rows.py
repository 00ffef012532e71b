"""Rows of expansions, of which each has a largest number, and a sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary.tables import Components
from mcf.kernels import operations as ex
from mcf.kernels import registry
from mcf.kernels.row_tasks import RowTask

# Rows shorter than this are added up side by side, element by element.
_SHORT = 32


class Rows(NamedTuple):
    """How rows lie in memory.

    Args:
        axis: along which they are in two dimensions: 1 where an executor may have loops over them,
            else 0, which lets kernels of elements add up all rows at once.
    """

    axis: int

    @classmethod
    def of(cls, shape: torch.Size, dim: int, dtype: torch.dtype | None) -> Rows:
        """For rows along a dimension of a shape, computed in components of a dtype."""
        long = shape[dim] >= _SHORT or shape[dim] == shape.numel()
        return cls(int(long and dtype is torch.float64))

    def flat(self, x: Tensor, dim: int) -> Tensor:
        """A tensor in two dimensions, contiguous."""
        count = x.shape[dim]
        if self.axis:
            return x.movedim(dim, -1).reshape(-1, count).contiguous()
        return x.movedim(dim, 0).reshape(count, -1).contiguous()

    def shaped(self, x: Tensor, shape: Sequence[int], dim: int) -> Tensor:
        """What `flat` made of a tensor of a shape, as that tensor, contiguous."""
        size = [*shape]
        length = size.pop(dim)
        moved = [*size, length] if self.axis else [length, *size]
        return x.reshape(moved).movedim(-self.axis, dim).contiguous()

    def largest(self, x: Components) -> tuple[Tensor, Components]:
        """Index of the largest number of each row, the first of those, and the number.

        NaN is the largest; then its index is any. Normalised expansions are in the order of their
        leading components, among equals of the next, and so on.
        """
        rows, count = self._shape(x)
        found = self._alone(x) if x[0].device.type == "cpu" else None
        if found is not None:
            return found
        if self.axis:
            index = torch.empty(rows, dtype=torch.int64, device=x[0].device)
            top = tuple(c.new_empty(rows) for c in x)
            task = RowTask("largest", len(x), len(x))
            if registry.rows(task, (rows, count), [index, *top, *x, *x]):
                return index, top
        among = torch.ones_like(x[0], dtype=torch.bool)
        for c in x:
            candidates = torch.where(among, c, -math.inf)
            largest = candidates.amax(self.axis, keepdim=True)
            if c is x[0]:
                nan = largest.isnan()
            among = among & (candidates == largest)
        index = among.to(torch.int8).argmax(self.axis, keepdim=True)
        first, *others = (c.gather(self.axis, index).view(rows) for c in x)
        return index.view(rows), (torch.where(nan.view(rows), math.nan, first), *others)

    def _alone(self, x: Components) -> tuple[Tensor, Components] | None:
        """The same where leading components alone say which it is."""
        first, index = x[0].max(self.axis, keepdim=True)
        # One of each row where there are so many in all, since without NaN each has one.
        if int((x[0] == first).count_nonzero()) != len(index.view(-1)) or bool(first.isnan().any()):
            return None
        return index.view(-1), tuple(c.gather(self.axis, index).view(-1) for c in x)

    def spread(self, x: Components, like: Tensor) -> Components:
        """Numbers of the rows at each of their elements."""
        return tuple(c.unsqueeze(self.axis).expand(like.shape).contiguous() for c in x)

    def rest(self, x: Components, index: Tensor) -> Components:
        """Sums of all numbers but one of each row, in pairs; x is changed."""
        rows, count = self._shape(x)
        if self.axis:
            sums = tuple(c.new_empty(rows) for c in x)
            if registry.rows(RowTask("rest", len(x)), (rows, count), [*sums, index, *x]):
                return sums
        for c in x:
            c.scatter_(self.axis, index.unsqueeze(self.axis), 0.0)
        return _total(x if self.axis == 0 else tuple(c.mT.contiguous() for c in x))

    def _shape(self, x: Components) -> tuple[int, int]:
        """Rows and their length."""
        return x[0].shape[1 - self.axis], x[0].shape[self.axis]


def _total(x: Components) -> Components:
    """Sum over dimension 0, in pairs."""
    while x[0].shape[0] > 1:
        n = x[0].shape[0]
        half = n // 2
        total = ex.add(tuple(c[:half] for c in x), tuple(c[half : 2 * half] for c in x))
        if n % 2:
            total = tuple(torch.cat([c, last[-1:]]) for c, last in zip(total, x, strict=True))
        x = total
    return tuple(c[0] for c in x)
