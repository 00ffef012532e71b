"""Cached launches of softmax, log_softmax and logsumexp of small tensors.

A plan runs the kernels and loops of `mcf.elementary.softmax` on rows of components, with a
workspace of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.format import computing_in
from mcf.elementary.fused import Step as Formula
from mcf.elementary.fused import step_kernel_on
from mcf.elementary.softmax import ENTERED, LESS, LOG_TOTAL, QUOTIENT, SHIFTED, SUM
from mcf.elementary.working import working_terms
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.launch.launches import SMALL
from mcf.expansions.launch.sum_launches import Parts
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, FP32, FP64, Format
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.kernels.register_choice import get_registers, registers_for
from mcf.kernels.row_tasks import RowTask

_address = Tensor.data_ptr


class Places(NamedTuple):
    """Addresses of intermediate results: four of each row, then four of each element."""

    number: list[int]
    top: list[int]
    rest: list[int]
    total: list[int]
    x: list[int]
    tops: list[int]
    shifted: list[int]
    spread: list[int]


def counts(terms: int, working: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of components of the intermediate results, per row and per element."""
    return (1, terms, working, working + 1), (terms, terms, 2 * working + 1, working + 1)


class Room:
    """A workspace for the intermediate results, and its addresses."""

    def __init__(self, terms: int, working: int, rows: int, length: int) -> None:
        """Allocate the workspace for `rows` rows of `length` elements."""
        each_row, each = counts(terms, working)
        # A tensor created in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            few = torch.zeros(sum(each_row), rows, dtype=torch.float64, device="cpu")
            many = torch.empty(sum(each), rows, length, dtype=torch.float64, device="cpu")
        self._kept = few, many
        places = iter([*map(_address, few), *map(_address, many)])
        self.places = Places(*([next(places) for _ in range(k)] for k in (*each_row, *each)))


_empty_like, _address = torch.empty_like, Tensor.data_ptr

# Results up to this number of elements are allocated by `empty_like` of a cached tensor.
_FEW = 64
_MOST = 1024
# Up to this number of elements all steps are one native call.
_NATIVE = 1024
# More elements than this in shorter rows: operators add such rows side by side, loops do not.
_SHORT, _SHORT_ELEMENTS = 32, 2048
_plans: dict[tuple[Any, ...], SoftmaxPlan | None] = {}


def along(name: str, x: MCFTensor, dim: int | None, keepdim: bool = True) -> MCFTensor | None:
    """Return a function along a dimension, or None where no plan supports it.

    Args:
        name: "softmax", "log_softmax" or "logsumexp".
        x: the tensor.
        dim: the dimension; None for all elements as one row.
        keepdim: whether a reduced dimension remains with size 1.
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


class _Kernel(NamedTuple):
    """A launch, and the addresses of the tables that follow its operands."""

    launch: Any
    behind: Sequence[int] = ()


# Launches or records a kernel on operand addresses.
_Make = Callable[[_Kernel, list[int]], Any]


def _launched(kernel: _Kernel, addresses: list[int]) -> None:
    kernel.launch([*addresses, *kernel.behind])


class SoftmaxPlan:
    """The launches of a function of rows of float64 or float32 components."""

    def __init__(
        self,
        name: str,
        like: Tensor,
        terms: int,
        shape: tuple[int, int],
        dim: int | None,
        size: torch.Size,
    ) -> None:
        """Create a plan.

        Args:
            name: name of the function.
            like: a component.
            terms: number of components.
            shape: number and length of rows.
            dim: dimension to move to the end, or None if it is the last.
            size: size of the result.
        """
        fmt = FORMATS[like.dtype]
        n = self._working = working_terms(fmt, terms)
        self._terms, self._shape, self._dim, self._size = terms, shape, dim, size
        self._dtype, self._device = like.dtype, like.device
        few = torch.empty(shape[0], dtype=torch.float64, device="cpu")
        many = torch.empty(shape, dtype=torch.float64, device="cpu")
        self._tables: list[Tensor] = []

        def step(of: Formula, count: int, given: tuple[int, ...], on: Tensor = many) -> _Kernel:
            return self._launch(of, fmt, count, given, on)

        self._entered = step(ENTERED, terms, (terms,)) if fmt is not FP64 else None
        self._largest = self._loop("largest", terms, terms)
        self._shifted = step(SHIFTED, n, (terms, terms))
        self._rest = self._loop("rest", n)
        # In rows of one element, results per row are results per element.
        alone = shape[1] == 1
        self._tops = None if alone else self._loop("spread", terms)
        self._log = name != "softmax"
        self._sums = name == "logsumexp"
        self._spread: _Kernel | None = None
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
        self._free: list[Room] = []
        self._result = torch.empty(self._size, dtype=like.dtype, device="cpu")
        # Rows of one element read workspace that must be zero, which programs do not provide.
        self._program = None if alone or many.numel() > _NATIVE else self._native(like.shape)

    def _moved_size(self, dim: int) -> torch.Size:
        size = [*self._size]
        return torch.Size([*size[:dim], *size[dim + 1 :], size[dim]])

    def _loop(self, name: str, terms: int, moved: int = 0) -> _Kernel:
        call = registry.prepare_rows(RowTask(name, terms, moved), self._shape, self._device)
        assert call is not None
        return _Kernel(call)

    def _launch(
        self, step: Formula, fmt: Format, count: int, given: tuple[int, ...], on: Tensor
    ) -> _Kernel:
        """Return the kernel of a step on tensors of one size."""
        with computing_in(FP64):
            spec, tables = step_kernel_on(step, fmt, count, given, self._device)
        launch = registry.prepare(spec, [[on] * len(spec.fields)])
        assert launch is not None
        self._tables += tables
        return _Kernel(launch.row(np.ones((1, 0))), [t.data_ptr() for t in tables])

    @classmethod
    def of(
        cls, name: str, like: Tensor, terms: int, dim: int | None, keepdim: bool
    ) -> SoftmaxPlan | None:
        """Create the plan for a signature, or return None if only the operator supports it."""
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

    def _native(self, size: torch.Size) -> Program | None:
        """Return all steps as a program of the addresses of operands and results."""
        n, (rows, length), item = self._terms, self._shape, self._dtype.itemsize
        steps: list[Step] = []
        workspaces: list[int] = []
        fixed: list[int] = []
        made: list[tuple[_Kernel, list[int]]] = []

        def workspace(count: int, elements: int, each: int = 8) -> list[int]:
            workspaces.extend([each * elements] * count)
            return [*range(2 * n + len(workspaces) - count, 2 * n + len(workspaces))]

        x, out = [*range(n)], [*range(n, 2 * n)]
        given, results = x, out
        if self._dim is not None:
            number = np.arange(rows * length)
            x = workspace(n, rows * length, item)
            index = np.moveaxis(number.reshape(size), self._dim, -1)
            steps.append(Move(given, x, rows * length, index, item))
            if not self._sums:
                results = workspace(n, rows * length, item)
        few, many = counts(n, self._working)
        places = Places(
            *(workspace(k, rows) for k in few), *(workspace(k, rows * length) for k in many)
        )
        self._write(results, x, places, lambda kernel, at: made.append((kernel, at)))
        for kernel, at in made:
            start = 2 * n + len(workspaces) + len(fixed)
            fixed += kernel.behind
            steps.append(Launch(kernel.launch, [*at, *range(start, start + len(kernel.behind))]))
        if self._dim is not None and results is not out:
            index = np.moveaxis(number.reshape(self._out), -1, self._dim)
            steps.append(Move(results, out, rows * length, index, item))
        return Program.of(steps, 2 * n, workspaces, fixed, self._tables)

    def run(self, x: Components) -> MCFTensor:
        """Compute the function of components of the signature."""
        if self._program is not None:
            if not x[0].is_contiguous():
                x = tuple([c.contiguous() for c in x])
            out = [_empty_like(self._result) for _ in x]
            self._program([*map(_address, x), *map(_address, out)])
            return fresh(out, self._size, self._dtype, self._device)
        # Concurrent calls must not share a workspace.
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = Room(self._terms, self._working, *self._shape)
        if self._dim is not None:
            x = tuple([c.movedim(self._dim, -1).contiguous() for c in x])
        elif not x[0].is_contiguous():
            x = tuple([c.contiguous() for c in x])
        if self._few:
            out = [_empty_like(self._like) for _ in x]
        else:
            out = [torch.empty(self._out, dtype=self._dtype, device=self._device) for _ in x]
        self._write([*map(_address, out)], [*map(_address, x)], workspace.places, _launched)
        self._free.append(workspace)
        if self._dim is not None and not self._sums:
            out = [c.movedim(-1, self._dim).contiguous() for c in out]
        return fresh(out, self._size, self._dtype, self._device)

    def bound(self, x: Components, out: Sequence[Tensor]) -> Parts | None:
        """Return the launches for operands and results at fixed addresses.

        Returns None where operands or results would have to be copied.
        """
        if not x[0].is_contiguous():
            return None
        given, written = [*map(_address, x)], [*map(_address, out)]
        if self._program is not None:
            return [(self._program, ([*given, *written],))], None
        if self._dim is not None:
            return None
        workspace = Room(self._terms, self._working, *self._shape)
        return [(self._write, (written, given, workspace.places, _launched))], workspace

    def _write(self, out: list[int], x: list[int], workspace: Places, make: _Make) -> None:
        """Launch or record all steps, by `make`, on operands and results at addresses."""
        if self._entered is not None:
            make(self._entered, workspace.x + x)
            x = workspace.x
        n, top, tops, rest = self._working, x, x, workspace.rest
        # The largest element of a row of one is that element; the rest of its sum is 0.
        if self._tops is not None:
            top, tops = workspace.top, workspace.tops
            make(self._largest, workspace.number + top + x + x)
            make(self._tops, tops + top)
        make(self._shifted, workspace.shifted + x + tops)
        if self._tops is not None:
            make(self._rest, rest + workspace.number + workspace.shifted[n + 1 :])
        if self._log:
            rest = workspace.total
            make(self._total, rest + workspace.rest)
            if self._sums:
                make(self._last, out + top + rest)
                return
        if self._spread is not None:
            spread = workspace.spread[: len(rest)]
            make(self._spread, spread + rest)
            rest = spread
        if self._log:
            make(self._last, out + x + tops + rest)
        else:
            make(self._last, out + workspace.shifted[: n + 1] + rest + tops[:1])
