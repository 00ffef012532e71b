"""softmax, log_softmax and logsumexp of few elements by plan.

They are the kernels and loops of `mcf.elementary.softmax` on rows of components, one after the
other in room that the plan keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.format import computing_in
from mcf.elementary.softmax import ENTERED, LESS, LOG_TOTAL, QUOTIENT, SHIFTED, SUM
from mcf.elementary.steps import Step, kernel_on
from mcf.elementary.working import working_terms
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, FP32, FP64, Format
from mcf.kernels.register_choice import get_registers, registers_for
from mcf.kernels.row_tasks import RowTask
from mcf.tensor.launches import SMALL
from mcf.tensor.recorded import watched
from mcf.tensor.sums import Parts
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_Call = Callable[[list[int]], Any]

# Elements of a result, which is allocated in the likeness of another.
_FEW = 64
_MOST = 1024
# Many rows shorter than this are added up side by side, which loops over rows do not.
_SHORT, _SHORT_ELEMENTS = 32, 2048
_plans: dict[tuple[Any, ...], SoftmaxPlan | None] = {}


def along(name: str, x: MCFTensor, dim: int | None, keepdim: bool = True) -> MCFTensor | None:
    """A function along a dimension of few elements, or None where there is no plan for it.

    Args:
        name: "softmax", "log_softmax" or "logsumexp".
        x: the tensor.
        dim: the dimension; None for all elements as one row.
        keepdim: whether a dimension that goes stays with the size 1.
    """
    if watched():
        return None
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    if type(first) is not Tensor:
        return None
    kind = (name, terms, first.dtype, first.shape, dim, keepdim, first.device)
    key = (*kind, registry.get_executor(), get_registers())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = SoftmaxPlan.of(name, first, terms, dim, keepdim)
    return None if plan is None else plan.run(COMPONENTS[terms](own))


class SoftmaxPlan:
    """The launches of a function of rows of components of float64 or float32."""

    def __init__(
        self,
        name: str,
        like: Tensor,
        terms: int,
        shape: tuple[int, int],
        dim: int | None,
        size: torch.Size,
    ) -> None:
        """A plan for so many rows of so many elements along a dimension.

        Args:
            name: of the function.
            like: a component.
            terms: how many there are.
            shape: rows and their length.
            dim: what has to be moved to the end; None if it is there.
            size: of the result.
        """
        fmt = FORMATS[like.dtype]
        n = self._working = working_terms(fmt, terms)
        self._terms, self._shape, self._dim, self._size = terms, shape, dim, size
        self._dtype, self._device = like.dtype, like.device
        few = torch.empty(shape[0], dtype=torch.float64, device="cpu")
        many = torch.empty(shape, dtype=torch.float64, device="cpu")
        self._tables: list[Tensor] = []

        def step(of: Step, count: int, given: tuple[int, ...], on: Tensor = many) -> _Call:
            return self._launch(of, fmt, count, given, on)

        self._entered = step(ENTERED, terms, (terms,)) if fmt is not FP64 else None
        self._largest = self._loop("largest", terms, terms)
        self._shifted = step(SHIFTED, n, (terms, terms))
        self._rest = self._loop("rest", n)
        # Of rows of one element what is each row's is each element's.
        alone = shape[1] == 1
        self._tops = None if alone else self._loop("spread", terms)
        self._log = name != "softmax"
        self._sums = name == "logsumexp"
        self._spread: _Call | None = None
        if not alone and not self._sums:
            self._spread = self._loop("spread", n + 1 if self._log else n)
        if name == "softmax":
            self._last = step(QUOTIENT, terms, (n, 1, n, 1))
        else:
            self._total = step(LOG_TOTAL, n, (n,), few)
            if self._sums:
                self._last = step(SUM, terms, (terms, n, 1), few)
            else:
                self._last = step(LESS, terms, (terms, terms, n, 1))
        out = few if self._sums else many
        moved = self._size if dim is None or self._sums else self._moved_size(dim)
        self._out = moved
        self._like = torch.empty(moved, dtype=like.dtype, device="cpu")
        self._few = out.numel() <= _FEW
        self._free: list[_Room] = []

    def _moved_size(self, dim: int) -> torch.Size:
        size = [*self._size]
        return torch.Size([*size[:dim], *size[dim + 1 :], size[dim]])

    def _loop(self, name: str, terms: int, moved: int = 0) -> _Call:
        call = registry.prepare_rows(RowTask(name, terms, moved), self._shape, self._device)
        assert call is not None
        return call

    def _launch(
        self, step: Step, fmt: Format, count: int, given: tuple[int, ...], on: Tensor
    ) -> _Call:
        """A step on tensors of one size, as a function of their addresses."""
        with computing_in(FP64):
            spec, tables = kernel_on(step, fmt, count, given, self._device)
        launch = registry.prepare(spec, [[on] * len(spec.fields)])
        assert launch is not None
        call = launch.row(np.ones((1, 0)))
        self._tables += tables
        behind = [t.data_ptr() for t in tables]
        return (lambda addresses: call(addresses + behind)) if behind else call

    @classmethod
    def of(
        cls, name: str, like: Tensor, terms: int, dim: int | None, keepdim: bool
    ) -> SoftmaxPlan | None:
        """The plan for tensors of one kind, or None if only the operator can take them."""
        total, size = like.numel(), [*like.shape]
        if like.device.type != "cpu" or not 0 < total <= SMALL or like.ndim == 0:
            return None
        fmt = FORMATS.get(like.dtype)
        if fmt not in (FP64, FP32) or registers_for(fmt, like.device) is not FP64:
            return None
        if dim is None:
            length, left = total, [1] * like.ndim if keepdim else []
            moved = None
        else:
            if not -like.ndim <= dim < like.ndim:
                return None
            dim %= like.ndim
            length = size[dim]
            left = [*size[:dim], *([1] if keepdim else []), *size[dim + 1 :]]
            moved = None if math.prod(size[dim + 1 :]) == 1 else dim
        if length < _SHORT and total > max(length, _SHORT_ELEMENTS):
            return None
        shape = (total // length, length)
        if registry.prepare_rows(RowTask("rest", terms), shape, like.device) is None:
            return None
        result = torch.Size(left if name == "logsumexp" else size)
        return cls(name, like, terms, shape, moved, result)

    def run(self, x: Components) -> MCFTensor:
        """The function of components of the kind."""
        # A call's room is one that no other call has at the time.
        try:
            room = self._free.pop()
        except IndexError:
            room = _Room(self._terms, self._working, *self._shape)
        if self._dim is not None:
            x = tuple([c.movedim(self._dim, -1).contiguous() for c in x])
        elif not x[0].is_contiguous():
            x = tuple([c.contiguous() for c in x])
        if self._few:
            out = [_empty_like(self._like) for _ in x]
        else:
            out = [torch.empty(self._out, dtype=self._dtype, device=self._device) for _ in x]
        self._write([*map(_address, out)], [*map(_address, x)], room)
        self._free.append(room)
        if self._dim is not None and not self._sums:
            out = [c.movedim(-1, self._dim).contiguous() for c in out]
        return fresh(out, self._size, self._dtype, self._device)

    def bound(self, x: Components, out: Sequence[Tensor]) -> Parts | None:
        """What writes to results of operands that stay where they are.

        None where they would have to be copied.
        """
        if self._dim is not None or not x[0].is_contiguous():
            return None
        room = _Room(self._terms, self._working, *self._shape)
        return [(self._write, ([*map(_address, out)], [*map(_address, x)], room))], None

    def _write(self, out: list[int], x: list[int], room: _Room) -> None:
        if self._entered is not None:
            self._entered(room.x + x)
            x = room.x
        n, top, tops, rest = self._working, x, x, room.rest
        # A row of one element has that for its largest number and 0 for the rest of its sum.
        if self._tops is not None:
            top, tops = room.top, room.tops
            self._largest(room.index + top + x + x)
            self._tops(tops + top)
        self._shifted(room.shifted + x + tops)
        if self._tops is not None:
            self._rest(rest + room.index + room.shifted[n + 1 :])
        if self._log:
            rest = room.total
            self._total(rest + room.rest)
            if self._sums:
                self._last(out + top + rest)
                return
        if self._spread is not None:
            spread = room.spread[: len(rest)]
            self._spread(spread + rest)
            rest = spread
        if self._log:
            self._last(out + x + tops + rest)
        else:
            self._last(out + room.shifted[: n + 1] + rest + tops[:1])


class _Room:
    """Memory for what a function of rows takes on the way, and the addresses in it."""

    def __init__(self, terms: int, working: int, rows: int, length: int) -> None:
        """For so many rows of a length."""
        # What is made in inference mode could not be written to outside.
        with torch.inference_mode(False):
            few = torch.zeros(terms + 2 * working + 2, rows, dtype=torch.float64, device="cpu")
            many = torch.empty(
                2 * terms + 3 * working + 2, rows, length, dtype=torch.float64, device="cpu"
            )
        self._kept = few, many
        places = iter([*map(_address, few)])
        self.index, self.top, self.rest, self.total = (
            [next(places) for _ in range(k)] for k in (1, terms, working, working + 1)
        )
        places = iter([*map(_address, many)])
        self.x, self.tops, self.shifted, self.spread = (
            [next(places) for _ in range(k)] for k in (terms, terms, 2 * working + 1, working + 1)
        )
