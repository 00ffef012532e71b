"""Sums of few elements by plan: a fold, what its partial sums settle to, and a quotient for means.

They are the kernels of `mcf.reductions.sums`, prepared once for operands of a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import Fold, sum_fold
from mcf.kernels.formats import FP64
from mcf.kernels.operators import DIV, kernel, settle_kernel
from mcf.reductions.rows import Rows
from mcf.tensor.copies import Copies
from mcf.tensor.launches import SMALL
from mcf.tensor.plans import watched
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr

# Elements of a result, which is allocated in the likeness of another.
_FEW = 64
_MOST = 1024
_plans: dict[tuple[Any, ...], SumPlan | None] = {}

_FLOAT64 = torch.float64
# Launches and their arguments, one after the other, and what they need to live as long.
Parts = tuple[list[tuple[Any, tuple[Any, ...]]], Any]


def summed(x: MCFTensor, dim: Any, keepdim: bool, *, mean: bool = False) -> MCFTensor | None:
    """The sum or the mean over dimensions, or None where there is no plan for it."""
    if watched():
        return None
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    if type(first) is not Tensor or (first.numel() > SMALL and not first.is_contiguous()):
        return None
    over = tuple(dim) if isinstance(dim, list | tuple) else dim
    kind = (terms, first.dtype, first.shape, first.device, over, keepdim, mean)
    key = (*kind, registry.get_executor())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = SumPlan.of(COMPONENTS[terms](own), over, keepdim, mean)
    return None if plan is None else plan.run(COMPONENTS[terms](own))


class SumPlan:
    """The launches of a sum over dimensions of components of float64."""

    def __init__(self, rows: Rows, terms: int, keepdim: bool, mean: bool, fold: Any) -> None:
        """A plan of a prepared fold."""
        self._fold, self._terms = fold, terms
        order = (*rows.kept, *rows.dims)
        self._moved = order != tuple(range(len(order)))
        self._copies = Copies(terms, rows.shape, order)
        self._size = torch.Size(rows.result_shape(keepdim))
        self._count = self._size.numel()
        spec = _fold(terms)
        self._state = spec.state
        like = torch.empty(self._size, dtype=_FLOAT64, device="cpu")
        self._likes, self._device = [like] * terms, like.device
        self._free: list[tuple[Any, list[int], list[int], list[int]]] = []
        self._settle = _row(settle_kernel(spec.state), like)
        self._quotient: Any = None
        if mean:
            # One number is as contiguous as its operand's result: the operator's kernels.
            uniform = frozenset("y" if self._count > 1 else "")
            self._length = torch.tensor(rows.length, dtype=_FLOAT64, device="cpu")
            self._number = self._length.data_ptr()
            divided = kernel(DIV, FP64, spec.state, 1, uniform=uniform)
            self._quotient = _row(divided, like)

    @classmethod
    def of(cls, x: Components, dim: Any, keepdim: bool, mean: bool) -> SumPlan | None:
        """The plan for operands of one kind, or None if only the operators can take them."""
        first, terms = x[0], len(x)
        if first.dtype is not _FLOAT64 or first.device.type != "cpu" or first.numel() == 0:
            return None
        rows = Rows.of(first.shape, dim)
        order = (*rows.kept, *rows.dims)
        if order != tuple(range(first.ndim)) and first.numel() > SMALL:
            return None
        count = first.numel() // rows.length
        if count > _FEW:
            return None
        fold = registry.prepare_fold(_fold(terms), count, rows.length, first.device)
        return None if fold is None else cls(rows, terms, keepdim, mean, fold)

    def _room(self) -> tuple[Any, list[int], list[int], list[int]]:
        """Room for partial sums, what they settle to and what nobody asks for: the addresses."""
        room = torch.empty(3 * self._state, self._count, dtype=_FLOAT64, device="cpu")
        places = [room.data_ptr() + 8 * self._count * k for k in range(3 * self._state)]
        partial, whole, rest = (places[k * self._state : (k + 1) * self._state] for k in range(3))
        return room, partial, whole, rest[self._terms :]

    def run(self, x: Components) -> MCFTensor:
        """The sum or the mean of operands of the kind."""
        # A call's room is one that no other call has at the time.
        try:
            found = self._free.pop()
        except IndexError:
            found = self._room()
        out = [*map(_empty_like, self._likes)]
        if self._moved or not x[0].is_contiguous():
            copies = self._copies.taken(x)
            self._write([*map(_address, out)], copies[1], found)
            self._copies.freed(copies)
        else:
            self._write([*map(_address, out)], [*map(_address, x)], found)
        self._free.append(found)
        return fresh(out, self._size, _FLOAT64, self._device)

    def _write(self, out: list[int], x: list[int], room: Any) -> None:
        _, partial, whole, rest = room
        self._fold(x, partial[0])
        if self._quotient is None:
            self._settle([*out, *rest, *partial])
        else:
            self._settle(whole + partial)
            self._quotient([*out, *rest, *whole, self._number])

    def bound(self, x: Components, out: Sequence[Tensor]) -> Parts:
        """The launches for operands and results that stay where they are."""
        room, places = self._room(), [*map(_address, out)]
        _, partial, whole, rest = room
        if self._moved or not x[0].is_contiguous():
            return [(self._moving, (x, places, room))], room
        folded = self._fold, ([*map(_address, x)], partial[0])
        if self._quotient is None:
            return [folded, (self._settle, ([*places, *rest, *partial],))], room
        quotient = self._quotient, ([*places, *rest, *whole, self._number],)
        return [folded, (self._settle, (whole + partial,)), quotient], room

    def _moving(self, x: Components, places: list[int], room: Any) -> None:
        copies = self._copies.taken(x)
        self._write(places, copies[1], room)
        self._copies.freed(copies)


def _fold(terms: int) -> Fold:
    return sum_fold(FP64, terms, terms)


def _row(spec: Elementwise, like: Tensor) -> Any:
    """A kernel on tensors of one size, as a function of their addresses."""
    launch = registry.prepare(spec, [[like] * len(spec.fields)])
    assert launch is not None
    return launch.row(np.ones((1, len(spec.scalars))))
