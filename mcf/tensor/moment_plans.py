"""Variances, standard deviations, 2-norms and dot products of few numbers by plan.

They are the kernels of `mcf.reductions` on rows of float64 components, one after the other in room
that the plan keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import product_fold, sum_fold
from mcf.kernels.formats import FP64
from mcf.kernels.operators import DIV, SQRT, SUB, kernel, settle_kernel
from mcf.reductions.rows import Rows
from mcf.tensor.copies import Copies
from mcf.tensor.launches import SMALL
from mcf.tensor.recorded import watched
from mcf.tensor.sums import Parts
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64 = torch.float64
_MOST = 1024
_plans: dict[tuple[Any, ...], MomentPlan | None] = {}
# Powers of two up to this are factors that lose nothing and leave no result out of range.
_RANGE = 1000


def moment(
    name: str, x: Any, dim: Any = None, keepdim: bool = False, correction: float = 0, y: Any = None
) -> MCFTensor | None:
    """A moment over dimensions, or None where there is no plan for it.

    Args:
        name: "var", "std", "norm" or "dot".
        x: the tensor.
        dim: over which; None or none for all of them.
        keepdim: whether they stay with the size 1.
        correction: of a variance.
        y: the other vector of a dot product.
    """
    if watched() or type(x) is not MCFTensor:
        return None
    given = [x] if y is None else [x, y]
    if type(given[-1]) is not MCFTensor:
        return None
    parts: list[Components] = []
    key: tuple[Any, ...] = (name, keepdim, correction, registry.get_executor())
    key += (tuple(dim) if isinstance(dim, list | tuple) else dim,)
    for each in given:
        own = each.__dict__
        first, terms = own["_c0"], own["_terms"]
        if first.dtype is not _FLOAT64 or type(first) is not Tensor:
            return None
        if y is not None and not first.is_contiguous():
            return None
        parts.append(COMPONENTS[terms](own))
        key += (terms, first.shape, first.device)
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = MomentPlan.of(name, parts, dim, keepdim, correction)
    return None if plan is None else plan.run(parts)


class MomentPlan:
    """The launches of a moment of rows."""

    def __init__(
        self, name: str, like: Tensor, terms: int, rows: Rows, size: Any, folds: Any, degrees: float
    ) -> None:
        """A plan of prepared folds, of sums and of products."""
        self._name, self._terms, self._length = name, terms, rows.length
        self._sums, self._products = folds
        order = (*rows.kept, *rows.dims)
        self._moved = order != tuple(range(like.ndim))
        self._copies = Copies(terms, like.shape, order)
        self._rows = like.numel() // rows.length
        one = torch.empty(size, dtype=_FLOAT64, device="cpu")
        self._likes, self._size, self._device = [one] * terms, size, one.device
        self._settle = _row(settle_kernel(terms), one)
        number = frozenset("y" if self._rows > 1 else "")
        self._divide = _row(kernel(DIV, FP64, terms, 1, uniform=number), one)
        self._root = _row(kernel(SQRT, FP64, terms), one)
        # A mean of one row is one number; several are spread over theirs.
        mean = frozenset("y" if self._length > 1 and self._rows == 1 else "")
        all_of = torch.empty(like.shape, dtype=_FLOAT64, device="cpu")
        self._minus = _row(kernel(SUB, FP64, terms, terms, uniform=mean), all_of)
        numbers = torch.tensor([self._length, degrees], dtype=_FLOAT64, device="cpu")
        self._numbers, self._places = numbers, [numbers.data_ptr(), numbers.data_ptr() + 8]
        self._free: list[_Room] = []

    @classmethod
    def of(
        cls, name: str, parts: list[Components], dim: Any, keepdim: bool, correction: float
    ) -> MomentPlan | None:
        """The plan for tensors of one kind, or None if only the operators can take them."""
        like, terms = parts[0][0], len(parts[0])
        count = like.numel()
        if like.device.type != "cpu" or not 0 < count <= SMALL or terms < 2:
            return None
        if any(len(c) != terms or c[0].shape != like.shape for c in parts):
            return None
        if name == "dot" and like.ndim != 1:
            return None
        try:
            rows = Rows.of(like.shape, dim)
        except (IndexError, RuntimeError):
            return None
        shape = count // rows.length, rows.length
        specs = sum_fold(FP64, terms, terms), product_fold(FP64, terms, terms, terms)
        folds = [registry.prepare_fold(spec, *shape, like.device) for spec in specs]
        if None in folds or any(spec.state != terms for spec in specs):
            return None
        degrees = max(0.0, rows.length - correction)
        if 0 < degrees < 1:
            # A root beyond the range is not only multiplied by a power of two.
            return None
        return cls(name, like, terms, rows, torch.Size(rows.result_shape(keepdim)), folds, degrees)

    def run(self, parts: list[Components]) -> MCFTensor | None:
        """The moment of components of the kind; None for what is scaled otherwise."""
        # A call's room is one that no other call has at the time.
        try:
            room = self._free.pop()
        except IndexError:
            room = _Room(self._terms, self._rows, self._length)
        out = [*map(_empty_like, self._likes)]
        done = self._write(room, parts, out)
        self._free.append(room)
        return fresh(out, self._size, _FLOAT64, self._device) if done else None

    def bound(self, parts: list[Components], out: Sequence[Tensor]) -> Parts:
        """What writes the moment of operands that stay where they are."""
        return [(self._counting, (_Room(self._terms, self._rows, self._length), parts, out))], None

    def _counting(self, *arguments: Any) -> tuple[bool]:
        """As a launch that counts what is of no use."""
        return (not self._write(*arguments),)

    def _write(self, room: _Room, parts: list[Components], out: Sequence[Tensor]) -> bool:
        """Write the moment of components; False for what is scaled otherwise."""
        if self._moved or not parts[0][0].is_contiguous():
            copies = self._copies.taken(parts[0])
            done = self._of_rows(room, parts, copies[1], out)
            self._copies.freed(copies)
            return done
        return self._of_rows(room, parts, [*map(_address, parts[0])], out)

    def _of_rows(
        self, room: _Room, parts: list[Components], x: list[int], out: Sequence[Tensor]
    ) -> bool:
        """The same of components that lie in rows at some addresses."""
        places = [*map(_address, out)]
        if self._name == "dot":
            self._products([*x, *map(_address, parts[1])], room.partial[0])
            self._settle(places + room.partial)
            return True
        if self._name == "var":
            self._variance(room, x, places)
            return True
        if self._length * self._rows <= _LISTED and all(map(_is_moderate, parts[0])):
            self._rooted(room, x, places)
            return True
        # Rows are scaled each on its own.
        exponent = _exponent(parts[0][0]) if self._rows == 1 else None
        if exponent is None:
            return False
        # As std and norm have it: the largest is brought below 1, and the root goes back.
        down, up = 2.0**-exponent, 2.0**exponent
        for scaled, c in zip(room.scaled, parts[0], strict=True):
            torch.mul(c.reshape(-1), down, out=scaled)
        self._rooted(room, room.scaled_places, places)
        for c in out:
            c.mul_(up)
        return True

    def _rooted(self, room: _Room, x: list[int], out: list[int]) -> None:
        """Write the root of a variance or of a sum of squares to some addresses."""
        if self._name == "std":
            self._variance(room, x, room.other)
        else:
            self._products(x + x, room.partial[0])
            self._settle(room.other + room.partial)
        self._root(out + room.other)

    def _variance(self, room: _Room, x: list[int], out: list[int]) -> None:
        """Write the variance of components at some addresses to others."""
        length, degrees = self._places
        self._sums(x, room.partial[0])
        self._settle(room.whole + room.partial)
        self._divide([*room.other, *room.whole, length])
        if self._rows > 1:
            np.copyto(room.spread, room.means)
            self._minus(room.gap + x + room.spread_places)
        else:
            self._minus(room.gap + x + room.other)
        self._products(room.gap + room.gap, room.partial[0])
        self._settle(room.whole + room.partial)
        self._divide([*out, *room.whole, degrees])


class _Room:
    """Memory for what a moment takes on the way, and the addresses in it."""

    def __init__(self, terms: int, rows: int, length: int) -> None:
        """For rows of so many numbers."""
        # What is made in inference mode could not be written to outside.
        with torch.inference_mode(False):
            few = torch.empty(3, terms, rows, dtype=_FLOAT64, device="cpu")
            many = torch.empty(2, terms, rows * length, dtype=_FLOAT64, device="cpu")
        self._kept = few, many
        self.partial, self.whole, self.other = ([*map(_address, row)] for row in few)
        self.gap = [*map(_address, many[0])]
        self.scaled = list(many[1])
        self.scaled_places = [*map(_address, self.scaled)]
        # Means, and room for each as often as its row has numbers: that of scaled ones, of which
        # there are none then.
        self.means = few[2].numpy()[:, :, None]
        self.spread = many[1].numpy().reshape(terms, rows, length)
        self.spread_places = self.scaled_places


# Up to so many numbers are looked at one by one.
_LISTED = 16
# Numbers between these are not scaled: no product of two of them, of their differences or of what
# scaling makes of them underflows, so a power of two would change no bit.
_LEAST, _LARGEST = 2.0**-120, 2.0**60


def _is_moderate(x: Tensor) -> bool:
    return all(v == 0 or _LEAST <= abs(v) <= _LARGEST for v in x.reshape(-1).tolist())


def _exponent(x: Tensor) -> int | None:
    """As `mcf.reductions.folds.row_exponents`; None out of the range of powers of two."""
    largest = abs(x.item()) if x.numel() == 1 else x.abs().amax().item()
    if not math.isfinite(largest):
        return None
    exponent = math.frexp(largest)[1]
    return exponent if -_RANGE <= exponent <= _RANGE else None


def _row(spec: Elementwise, like: Tensor) -> Callable[[list[int]], Any]:
    """A kernel on tensors of one size, as a function of their addresses."""
    launch = registry.prepare(spec, [[like] * len(spec.fields)])
    assert launch is not None
    return launch.row(np.ones((1, len(spec.scalars))))
