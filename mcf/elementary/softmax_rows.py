"""Maxima and sums of rows of expansions."""

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

# Shorter rows are added side by side, element by element.
_SHORT = 32


class Rows(NamedTuple):
    """The layout of rows in two dimensions.

    Args:
        axis: the dimension of a row's elements: 1 if an executor may have loops over rows, else 0,
            so
            that elementwise kernels add all rows at once.
    """

    axis: int

    @classmethod
    def of(cls, shape: torch.Size, dim: int, dtype: torch.dtype | None) -> Rows:
        """Return the layout of rows along a dimension of a shape, for a working dtype."""
        long = shape[dim] >= _SHORT or shape[dim] == shape.numel()
        return cls(int(long and dtype is torch.float64))

    def flat(self, x: Tensor, dim: int) -> Tensor:
        """Return a tensor in two dimensions, contiguous."""
        count = x.shape[dim]
        if self.axis:
            return x.movedim(dim, -1).reshape(-1, count).contiguous()
        return x.movedim(dim, 0).reshape(count, -1).contiguous()

    def shaped(self, x: Tensor, shape: Sequence[int], dim: int) -> Tensor:
        """Undo `flat` for a tensor of this shape; the result is contiguous."""
        size = [*shape]
        length = size.pop(dim)
        moved = [*size, length] if self.axis else [length, *size]
        return x.reshape(moved).movedim(-self.axis, dim).contiguous()

    def largest(self, x: Components) -> tuple[Tensor, Components]:
        """Return the index of each row's largest number (the first if equal), and the number.

        NaN is the largest; then the index is arbitrary. Normalised expansions are ordered by their
        leading components, then the next, and so on.
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
        """Return the largest numbers if leading components decide; None otherwise."""
        first, index = x[0].max(self.axis, keepdim=True)
        # Without NaN every row has a maximum, so this count means exactly one per row.
        if int((x[0] == first).count_nonzero()) != len(index.view(-1)) or bool(first.isnan().any()):
            return None
        return index.view(-1), tuple(c.gather(self.axis, index).view(-1) for c in x)

    def spread(self, x: Components, like: Tensor) -> Components:
        """Broadcast numbers of rows to their elements."""
        return tuple(c.unsqueeze(self.axis).expand(like.shape).contiguous() for c in x)

    def rest(self, x: Components, index: Tensor) -> Components:
        """Return sums of all numbers except one of each row, in pairs; x is changed."""
        rows, count = self._shape(x)
        if self.axis:
            sums = tuple(c.new_empty(rows) for c in x)
            if registry.rows(RowTask("rest", len(x)), (rows, count), [*sums, index, *x]):
                return sums
        for c in x:
            c.scatter_(self.axis, index.unsqueeze(self.axis), 0.0)
        return _total(x if self.axis == 0 else tuple(c.mT.contiguous() for c in x))

    def _shape(self, x: Components) -> tuple[int, int]:
        """Return the number of rows and their length."""
        return x[0].shape[1 - self.axis], x[0].shape[self.axis]


def _total(x: Components) -> Components:
    """Return the sum over dimension 0, in pairs."""
    while x[0].shape[0] > 1:
        n = x[0].shape[0]
        half = n // 2
        total = ex.add(tuple(c[:half] for c in x), tuple(c[half : 2 * half] for c in x))
        if n % 2:
            total = tuple(torch.cat([c, last[-1:]]) for c, last in zip(total, x, strict=True))
        x = total
    return tuple(c[0] for c in x)
