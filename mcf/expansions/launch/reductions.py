"""Compute sums, means, variances, 2-norms and dot products of CPU tensors in one native call.

A call runs the kernels of `mcf.reductions` on rows of components. float32 components are added in
float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.convert import conversions
from mcf.convert.rounding import nearest
from mcf.expansions.launch.calls import SMALL, Call, cached, in_float64, parts_of
from mcf.expansions.tensor import Components, MCFTensor
from mcf.kernels import registry
from mcf.kernels.fold import BLOCK, product_fold, sum_fold
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.operators import DIV, SQRT, SUB, kernel
from mcf.reductions.folds import LARGEST, LEAST
from mcf.reductions.native_steps import CPU, Slots, Steps, UnpreparedError
from mcf.reductions.rows import Rows

# Moments of differences from means, and the largest number of elements with workspace for them.
_SPREAD, _MANY = frozenset({"var", "std"}), 1 << 18
# Roots, whose float64 values may have to be scaled by a power of two.
_ROOTS = frozenset({"std", "norm"})
_SUMS = frozenset({"sum", "mean"})
# Largest number of rows; operators have loops that fold more rows side by side.
_ROWS = dict.fromkeys(("var", "std", "norm", "dot"), 1 << 12) | dict.fromkeys(_SUMS, 64)
# Scaling by powers of two up to this exponent is exact and keeps results in range.
_RANGE = 1000


def reduced(
    name: str, x: Any, dim: Any = None, keepdim: bool = False, correction: float = 0, y: Any = None
) -> MCFTensor | None:
    """Return a reduction over dimensions, or None where no call supports it.

    Args:
        name: "sum", "mean", "var", "std", "norm" or "dot".
        x: the tensor.
        dim: the dimensions; None or an empty list for all.
        keepdim: whether they remain with size 1.
        correction: of a variance.
        y: the other vector of a dot product.
    """
    groups = parts_of(x) if y is None else parts_of(x, y)
    if groups is None:
        return None
    over = tuple(dim) if isinstance(dim, list | tuple) else dim
    found = cached(_prepared, groups, name, over, keepdim, correction)
    if found is None:
        return None
    call, of_scaled = found
    result: MCFTensor | None = call(groups)
    return _scaled(of_scaled, groups[0]) if result is None and of_scaled is not None else result


def _prepared(
    groups: Sequence[Components], name: str, dim: Any, keepdim: bool, correction: float
) -> tuple[Call, Call | None] | None:
    """Return the call of a signature, and for a root of one row that of scaled values."""
    like, terms = groups[0][0], len(groups[0])
    count, wide = like.numel(), like.dtype is torch.float64
    if not in_float64(like) or not count:
        return None
    if any(
        (len(c), c[0].shape, c[0].dtype) != (terms, like.shape, like.dtype) or c[0].device != CPU
        for c in groups
    ):
        return None
    rows = Rows.of(like.shape, dim)
    order = (*rows.kept, *rows.dims)
    if count > SMALL and not (like.is_contiguous() and order == (*range(like.ndim),)):
        return None
    if count // rows.length > _ROWS[name] or (name in _SPREAD and count > _MANY):
        return None
    if not wide and (rows.length > BLOCK or (name not in _SUMS and count > SMALL)):
        return None
    if name not in _SUMS and wide and terms < 2:
        return None
    if name == "dot" and not (like.ndim == 1 and all(c[0].is_contiguous() for c in groups)):
        return None
    degrees = max(0.0, rows.length - correction)
    if name in _SPREAD and 0 < degrees < 1:
        # The quotient could leave the range, which scaling by a power of two does not mend.
        return None
    given = name, like, terms, rows, keepdim, degrees
    call = _call(*given, order if count <= SMALL else None, looked=True)
    # Several rows need a scale each; float32 rows, added in float64, need none.
    scaled = None
    if name in _ROOTS and wide and rows.length == count:
        scaled = _call(*given, None, looked=False)
    return call, scaled


def _call(
    name: str,
    like: Tensor,
    terms: int,
    rows: Rows,
    keepdim: bool,
    degrees: float,
    order: Sequence[int] | None,
    looked: bool,
) -> Call:
    """Return the call of a reduction of rows.

    Args:
        name: see `reduced`.
        like: a component.
        terms: number of components.
        rows: the rows.
        keepdim: see `reduced`.
        degrees: divisor of a variance's sum of squares.
        order: order of dimensions in which the elements are gathered first, or None.
        looked: whether the program of a root checks that its values need no scale.
    """
    fmt, count, length = FORMATS[like.dtype], like.numel(), rows.length
    number, wide, spread, rooted = count // length, fmt is FP64, name in _SPREAD, name in _ROOTS
    of_sums = sum_fold(fmt, terms, terms)
    state = of_sums.state
    of_products = product_fold(FP64 if spread else fmt, *[state if spread else terms] * 3)
    if name not in _SUMS and of_products.state != state:
        raise UnpreparedError
    adding: Any
    multiplying: Any
    adding, multiplying = (
        registry.on(CPU).prepare_fold(spec, number, length, CPU) for spec in (of_sums, of_products)
    )
    operands = 2 if name == "dot" else 1
    steps = Steps((operands + 1) * terms)
    x, out = [*range(terms)], [*range(operands * terms, (operands + 1) * terms)]
    if order is not None:
        x = steps.gathered(x, like, order)
    if rooted and looked and wide:
        # A fold of the values themselves checks their range too, so that they are read once.
        if not spread and hasattr(multiplying, "within"):
            multiplying = multiplying.within(LEAST, LARGEST)
        else:
            steps.within(x, count, LEAST, LARGEST)

    def quotient(total: Slots, divisor: float, found: Slots) -> Slots:
        # As the operators do, pass the divisor as a scalar only where there are several rows.
        spec = kernel(DIV, FP64, state, 1, uniform=frozenset("y" if number > 1 else ""))
        found = found + steps.workspace(state - len(found), number)
        steps.kernel(spec, number, found + total + steps.number(divisor))
        return found

    last = out if wide else steps.workspace(state, number)
    before = [] if rooted else last
    if name in _SUMS:
        total = steps.fold(adding, x, state, number, last if name == "sum" else None)
        if name == "mean":
            quotient(total, length, last)
    elif spread:
        means = quotient(steps.fold(adding, x, state, number), length, [])
        if number > 1:
            repeated = steps.workspace(state, count)
            steps.move(means, repeated, count, np.repeat(np.arange(number), length))
            means = repeated
        if not wide:
            widened = steps.workspace(state, count)
            spec = conversions.kernel(nearest, fmt, terms, FP64, state)
            steps.kernel(spec, count, widened + x)
            x = widened
        # The mean of one row is a scalar; several means are repeated for the elements of their row.
        uniform = frozenset("y" if length > 1 and number == 1 else "")
        gap = steps.workspace(state, count)
        steps.kernel(kernel(SUB, FP64, state, state, uniform=uniform), count, gap + x + means)
        before = quotient(steps.fold(multiplying, gap + gap, state, number), degrees, before)
    else:
        y = [*range(terms, 2 * terms)] if name == "dot" else x
        before = steps.fold(multiplying, x + y, state, number, before or None)
    if rooted:
        steps.kernel(kernel(SQRT, FP64, state), number, last + before)
    if not wide:
        steps.rounded(last, out, fmt, number)
    return Call(steps.program(), rows.result_shape(keepdim), *[like.dtype] * terms)


def _scaled(call: Call, x: Components) -> MCFTensor | None:
    """Return the root of one row, scaled so that its largest value is below 1, or None."""
    largest = abs(x[0].item()) if x[0].numel() == 1 else x[0].abs().amax().item()
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else _RANGE + 1
    if abs(exponent) > _RANGE:
        return None
    out = call.results([[c.reshape(-1) * 2.0**-exponent for c in x]])
    return None if out is None else call.expansion([c.mul_(2.0**exponent) for c in out])
