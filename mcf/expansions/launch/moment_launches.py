"""Cached launches of variances, standard deviations, 2-norms and dot products.

A plan runs the kernels of `mcf.reductions` on rows of components, with a workspace of its own.
float32 components are float64 between the first fold and the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mcf.convert import conversions
from mcf.convert.rounding import nearest
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.launch.launches import SMALL, in_float64, rounding, row_launch
from mcf.expansions.launch.offsets import elements_in_order
from mcf.expansions.launch.sum_launches import Parts
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.fold import BLOCK, product_fold, sum_fold
from mcf.kernels.formats import FORMATS, FP64, Format
from mcf.kernels.operators import DIV, SQRT, SUB, kernel, settle_kernel
from mcf.kernels.program import Launch, Move, Program, Step, Within
from mcf.kernels.register_choice import get_registers
from mcf.reductions.folds import LARGEST, LEAST
from mcf.reductions.rows import Rows

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64 = torch.float64
_MOST = 1024
_plans: dict[tuple[Any, ...], MomentPlan | None] = {}
# Scaling by powers of two up to this exponent is exact and keeps results in range.
_RANGE = 1000


def moment(
    name: str, x: Any, dim: Any = None, keepdim: bool = False, correction: float = 0, y: Any = None
) -> MCFTensor | None:
    """Return a moment over dimensions, or None where no plan supports it.

    Args:
        name: "var", "std", "norm" or "dot".
        x: the tensor.
        dim: the dimensions; None or an empty list for all.
        keepdim: whether they remain with size 1.
        correction: of a variance.
        y: the other vector of a dot product.
    """
    if watched() or type(x) is not MCFTensor:
        return None
    given = [x] if y is None else [x, y]
    if type(given[-1]) is not MCFTensor:
        return None
    parts: list[Components] = []
    key: tuple[Any, ...] = (name, keepdim, correction, registry.get_executor(), get_registers())
    key += (tuple(dim) if isinstance(dim, list | tuple) else dim,)
    for each in given:
        own = each.__dict__
        first, terms = own["_c0"], own["_terms"]
        if type(first) is not Tensor:
            return None
        whole = first.is_contiguous()
        if y is not None and not whole:
            return None
        parts.append(COMPONENTS[terms](own))
        key += (terms, first.dtype, first.shape, first.device, None if whole else first.stride())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = MomentPlan.of(name, parts, dim, keepdim, correction)
    return None if plan is None else plan.run(parts)


class MomentPlan:
    """A moment of rows as a program of the addresses of operands and of the result."""

    def __init__(
        self, fmt: Format, terms: int, rows: int, size: torch.Size, programs: Sequence[Program]
    ) -> None:
        """Create a plan; the last program of a root computes rows that have been scaled."""
        self._rows = rows
        one = torch.empty(size, dtype=fmt.dtype, device="cpu")
        self._likes, self._size, self._device = [one] * terms, size, one.device
        self._dtype = one.dtype
        self.program, self._of_scaled = programs[0], programs[-1]

    @classmethod
    def of(
        cls, name: str, parts: list[Components], dim: Any, keepdim: bool, correction: float
    ) -> MomentPlan | None:
        """Create the plan for a signature, or return None if only the operators support it."""
        like, terms = parts[0][0], len(parts[0])
        count, wide = like.numel(), like.dtype is _FLOAT64
        most = SMALL if not like.is_contiguous() else _MANY if name in _SPREAD else count
        if not in_float64(like) or not 0 < count <= most or (wide and terms < 2):
            return None
        for c in parts:
            if len(c) != terms or c[0].shape != like.shape or c[0].dtype is not like.dtype:
                return None
        if name == "dot" and like.ndim != 1:
            return None
        try:
            rows = Rows.of(like.shape, dim)
        except (IndexError, RuntimeError):
            return None
        shape = count // rows.length, rows.length
        if shape[0] > _ROWS:
            return None
        fmt, state = FORMATS[like.dtype], terms
        specs = [sum_fold(fmt, terms, terms), product_fold(fmt, terms, terms, terms)]
        if not wide:
            if rows.length > BLOCK or count > SMALL:
                return None
            state = specs[0].state
            if name in _SPREAD:
                specs[1] = product_fold(FP64, state, state, state)
        folds = [registry.prepare_fold(spec, *shape, like.device) for spec in specs]
        if None in folds or any(spec.state != state for spec in specs):
            return None
        degrees = max(0.0, rows.length - correction)
        if 0 < degrees < 1:
            # The quotient could leave the range, which scaling by a power of two does not mend.
            return None
        size = torch.Size(rows.result_shape(keepdim))
        kind = _Kind(name, fmt, terms, state, *shape, degrees, folds)
        order = (*rows.kept, *rows.dims)
        if count > SMALL and order != tuple(range(like.ndim)):
            return None
        index = elements_in_order(like, order) if count <= SMALL else None
        programs = [kind.program(size, index, looked=True)]
        if name in _ROOTS and wide:
            programs.append(kind.program(size, None, looked=False))
        found = [program for program in programs if program is not None]
        return cls(fmt, terms, shape[0], size, found) if len(found) == len(programs) else None

    def run(self, parts: list[Components]) -> MCFTensor | None:
        """Compute the moment; return None for values that need the operator's scaling."""
        out = [*map(_empty_like, self._likes)]
        given = [place for group in parts for place in map(_address, group)]
        if not self.program([*given, *map(_address, out)]) and not self._scaled(parts[0], out):
            return None
        return fresh(out, self._size, self._dtype, self._device)

    def bound(self, parts: list[Components], out: Sequence[Tensor]) -> Parts:
        """Return the launches that write the moment of operands at fixed addresses."""
        given = [place for group in [*parts, out] for place in map(_address, group)]
        return [(self.program, (given,))], None

    def _scaled(self, x: Components, out: Sequence[Tensor]) -> bool:
        """Write the root of one row, scaled so that its largest value is below 1."""
        # Several rows need a scale each; float32 rows, added in float64, need none.
        alone = self._rows == 1 and self._dtype is _FLOAT64
        exponent = _exponent(x[0]) if alone else None
        if exponent is None:
            return False
        scaled = [c.reshape(-1) * 2.0**-exponent for c in x]
        self._of_scaled([*map(_address, scaled), *map(_address, out)])
        for c in out:
            c.mul_(2.0**exponent)
        return True


class _Kind(NamedTuple):
    """The signature of a moment of rows.

    Args:
        name: see `moment`.
        fmt: format of the components.
        terms: number of components.
        state: number of float64 registers of a sum.
        rows: number of rows.
        length: length of each row.
        degrees: divisor of the sum of squares.
        folds: prepared folds, of sums and of products.
    """

    name: str
    fmt: Format
    terms: int
    state: int
    rows: int
    length: int
    degrees: float
    folds: Any

    def program(self, size: torch.Size, index: Any, looked: bool) -> Program | None:
        """Create the program of the moment.

        Args:
            size: size of the result.
            index: offsets of the elements of the rows, where they are gathered first.
            looked: whether the program of a root checks that its values need no scale.
        """
        terms, state, fmt = self.terms, self.state, self.fmt
        rows, count, item = self.rows, self.rows * self.length, int(self.fmt.itemsize)
        wide, differs, rooted = fmt is FP64, self.name in _SPREAD, self.name in _ROOTS
        given = terms * (3 if self.name == "dot" else 2)
        sizes: list[int] = []

        def workspaces(number: int, each: int, used: bool = True) -> list[int]:
            at = given + len(sizes)
            sizes.extend([each if used else 0] * number)
            return [*range(at, at + number)]

        # Workspace of each row: sums, finalized sums, means. Of each element: differences, repeated
        # means, gathered rows, rows in float64.
        few, many = 8 * rows, 8 * count
        partial, whole, other = (workspaces(state, few) for _ in range(3))
        gap = workspaces(state, many, differs)
        spread = workspaces(state, many, differs and rows > 1)
        in_rows = workspaces(terms, item * count, index is not None)
        widened = workspaces(state, many, differs and not wide)
        last = workspaces(state, few, not wide)
        lengths = np.array([self.length, self.degrees])
        fixed = [lengths.ctypes.data, lengths.ctypes.data + 8]
        length, degrees = given + len(sizes), given + len(sizes) + 1
        one = torch.empty(size, dtype=_FLOAT64, device="cpu")
        all_of = torch.empty(count, dtype=_FLOAT64, device="cpu")
        sums, products = self.folds
        settle = row_launch(settle_kernel(state), one)
        number = frozenset("y" if rows > 1 else "")
        divide = row_launch(kernel(DIV, FP64, state, 1, uniform=number), one)
        # The mean of one row is a scalar; several means are repeated for the elements of their row.
        mean = frozenset("y" if self.length > 1 and rows == 1 else "")
        minus = row_launch(kernel(SUB, FP64, state, state, uniform=mean), all_of)
        steps: list[Step] = []
        x, out = [*range(terms)], [*range(given - terms, given)]
        if index is not None:
            steps.append(Move(x, in_rows, count, index, item))
            x = in_rows
        if rooted and looked and wide:
            # A fold of the values themselves checks their range too, so that they are read once.
            if not differs and hasattr(products, "within"):
                products = products.within(LEAST, LARGEST)
            else:
                steps.append(Within(x, count, LEAST, LARGEST))
        result = out if wide else last
        before = other if rooted else result
        if differs:
            steps += [Launch(sums, x, partial[0]), Launch(settle, whole + partial)]
            steps.append(Launch(divide, [*other, *whole, length]))
            means = other
            if rows > 1:
                each = np.repeat(np.arange(rows), self.length)
                steps.append(Move(other, spread, count, each))
                means = spread
            if not wide:
                as_float64 = conversions.kernel(nearest, fmt, terms, FP64, state)
                steps.append(Launch(row_launch(as_float64, all_of), widened + x))
                x = widened
            steps.append(Launch(minus, gap + x + means))
            steps += [Launch(products, gap + gap, partial[0]), Launch(settle, whole + partial)]
            steps.append(Launch(divide, [*before, *whole, degrees]))
        else:
            y = [*range(terms, 2 * terms)] if self.name == "dot" else x
            steps += [Launch(products, x + y, partial[0]), Launch(settle, before + partial)]
        if rooted:
            steps.append(Launch(row_launch(kernel(SQRT, FP64, state), one), result + before))
        if not wide:
            steps.append(Launch(rounding(state, fmt, terms, one), out + last))
        return Program.of(steps, given, sizes, fixed, lengths)


# Moments of differences from means, and the largest number of elements with workspace for them.
_SPREAD, _MANY = frozenset({"var", "std"}), 1 << 18
# Largest number of rows; operators have loops that fold more rows side by side.
_ROWS = 1 << 12
# Roots, whose values may have to be scaled.
_ROOTS = frozenset({"std", "norm"})


def _exponent(x: Tensor) -> int | None:
    """Return the exponent of the largest value, as `row_exponents` does; None beyond `_RANGE`."""
    largest = abs(x.item()) if x.numel() == 1 else x.abs().amax().item()
    if not math.isfinite(largest):
        return None
    exponent = math.frexp(largest)[1]
    return exponent if -_RANGE <= exponent <= _RANGE else None
