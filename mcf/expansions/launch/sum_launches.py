"""Cached launches of sums and means: a fold, finalized partial sums, and a quotient for means.

A plan runs the kernels of `mcf.reductions.sums`, prepared once per signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.expansions.launch.cached_launches import watched
from mcf.expansions.launch.launches import SMALL, in_float64, rounding, row_launch
from mcf.expansions.launch.offsets import elements, elements_in_order
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.fold import BLOCK, sum_fold
from mcf.kernels.formats import FORMATS, FP32, FP64, Format
from mcf.kernels.operators import DIV, kernel, settle_kernel
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.kernels.register_choice import get_registers
from mcf.reductions.rows import Rows

_empty_like, _address = torch.empty_like, Tensor.data_ptr

# Largest number of elements of a result.
_FEW = 64
_MOST = 1024
_plans: dict[tuple[Any, ...], SumPlan | None] = {}

# Launches with their arguments, and the objects that must live as long as they do.
Parts = tuple[list[tuple[Any, tuple[Any, ...]]], Any]


def summed(x: MCFTensor, dim: Any, keepdim: bool, *, mean: bool = False) -> MCFTensor | None:
    """Return the sum or the mean over dimensions, or None where no plan supports it."""
    if watched():
        return None
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    whole = first.is_contiguous()
    if type(first) is not Tensor or (first.numel() > SMALL and not whole):
        return None
    over = tuple(dim) if isinstance(dim, list | tuple) else dim
    kind = (terms, first.dtype, first.shape, first.device, over, keepdim, mean)
    key = (*kind, None if whole else first.stride(), registry.get_executor(), get_registers())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = SumPlan.of(COMPONENTS[terms](own), over, keepdim, mean)
    return None if plan is None else plan.run(COMPONENTS[terms](own))


def trace(x: MCFTensor) -> MCFTensor | None:
    """Return the sum of the diagonal of a matrix, or None where no plan supports it."""
    if watched():
        return None
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    if type(first) is not Tensor or first.numel() > SMALL:
        return None
    kind = (terms, first.dtype, first.shape, first.device, first.stride(), "trace")
    key = (*kind, registry.get_executor(), get_registers())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = None
        if in_float64(first) and first.numel():
            index = elements(first, np.arange(min(first.shape)) * (first.shape[1] + 1))
            fmt = FORMATS[first.dtype]
            plan = SumPlan.of_rows(fmt, terms, 1, index.size, torch.Size(()), False, index)
        _plans[key] = plan
    return None if plan is None else plan.run(COMPONENTS[terms](own))


class SumPlan:
    """The launches of a sum over dimensions of components, as a program.

    float32 components are added in float64 and rounded once.
    """

    def __init__(self, fmt: Format, terms: int, size: torch.Size, program: Program) -> None:
        """Create a plan of a program that takes the addresses of components and result."""
        like = torch.empty(size, dtype=fmt.dtype, device="cpu")
        self._likes, self._size, self._device = [like] * terms, size, like.device
        self._dtype = like.dtype
        self.program = program

    @classmethod
    def of(cls, x: Components, dim: Any, keepdim: bool, mean: bool) -> SumPlan | None:
        """Create the plan for a signature, or return None if only the operators support it."""
        first, terms = x[0], len(x)
        if not in_float64(first) or first.numel() == 0:
            return None
        rows = Rows.of(first.shape, dim)
        order = (*rows.kept, *rows.dims)
        if first.numel() > SMALL and order != tuple(range(first.ndim)):
            return None
        count = first.numel() // rows.length
        if count > _FEW:
            return None
        fmt = FORMATS[first.dtype]
        if fmt is FP32 and rows.length > BLOCK:
            return None
        # Larger tensors are in the order of the rows, as checked above.
        index = elements_in_order(first, order) if first.numel() <= SMALL else None
        size = torch.Size(rows.result_shape(keepdim))
        return cls.of_rows(fmt, terms, count, rows.length, size, mean, index)

    @classmethod
    def of_rows(
        cls,
        fmt: Format,
        terms: int,
        rows: int,
        length: int,
        size: torch.Size,
        mean: bool,
        index: Any,
    ) -> SumPlan | None:
        """Create the plan for rows of `length` values, gathered by `index` or contiguous."""
        spec, cpu = sum_fold(fmt, terms, terms), torch.device("cpu")
        fold = registry.prepare_fold(spec, rows, length, cpu)
        if fold is None:
            return None
        state, like = spec.state, torch.empty(size, dtype=torch.float64, device=cpu)
        # Workspace: partial sums, finalized sums, gathered rows.
        item = int(fmt.itemsize)
        in_room = terms if index is not None else 0
        sizes = [8 * rows] * (2 * state) + [item * rows * length] * in_room
        at = 2 * terms
        x, out = [*range(terms)], [*range(terms, at)]
        partial, whole, in_rows = (
            [*range(at, at + state)],
            [*range(at + state, at + 2 * state)],
            [*range(at + 2 * state, at + 2 * state + terms)],
        )
        steps: list[Step] = []
        if index is not None:
            steps.append(Move(x, in_rows, rows * length, index, item))
            x = in_rows
        steps.append(Launch(fold, x, partial[0]))
        settle = row_launch(settle_kernel(state), like)
        # Components beyond the result's go to a workspace that nothing reads.
        wide = fmt is FP64
        found = [*out, *(partial if mean else whole)[terms:]] if wide else partial
        if mean:
            # As the operators do, pass the length as a scalar only where there are several rows.
            divided = kernel(DIV, FP64, state, 1, uniform=frozenset("y" if rows > 1 else ""))
            number = at + len(sizes)
            steps.append(Launch(settle, whole + partial))
            steps.append(Launch(row_launch(divided, like), [*found, *whole, number]))
        else:
            found = found if wide else whole
            steps.append(Launch(settle, [*found, *partial]))
        if not wide:
            steps.append(Launch(rounding(state, fmt, terms, like), [*out, *found]))
        numbers = np.array([float(length)])
        program = Program.of(steps, at, sizes, [numbers.ctypes.data], numbers)
        return None if program is None else cls(fmt, terms, size, program)

    def run(self, x: Components) -> MCFTensor | None:
        """Compute the sum or the mean; return None where only the operators can round it."""
        out = [*map(_empty_like, self._likes)]
        if not self.program([*map(_address, x), *map(_address, out)]):
            return None
        return fresh(out, self._size, self._dtype, self._device)

    def bound(self, x: Components, out: Sequence[Tensor]) -> Parts:
        """Return the launches for operands and results at fixed addresses."""
        return [(self.program, ([*map(_address, x), *map(_address, out)],))], None
