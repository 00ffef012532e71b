"""Variances and standard deviations of components, summed in the order of `mcf.reductions.sums`."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.kernels.formats import FP32, format_of
from mcf.reductions.exact import exact_dots
from mcf.reductions.folds import (
    brought_down,
    column_sums,
    deviations_of,
    finish,
    register_of,
    row_deviations,
    row_products,
    scaled_rows,
    unscaled,
    widened,
)
from mcf.reductions.opaque_reductions import one_each, operator
from mcf.reductions.rows import Components, Dim, Rows
from mcf.reductions.sums import _divided, _shaped, _wide_sum


def _variance(
    given: list[Tensor], correction: float, reproducible: bool
) -> tuple[Components, Components, Tensor | None]:
    """Return variances, means and an exponent or None for rows; expansions [outer] in registers.

    If the exponent k (int64) is not None, the variances are to be multiplied by 2**(2 k). In
    float32 registers the deviations of a row are scaled to 1/2 .. 1: otherwise squares of small
    ones would underflow, and squares of large ones overflow.
    """
    like, length = given[0], given[0].shape[1]
    centre = _divided(_wide_sum(given, len(given), reproducible), length, like)
    state, exponent = len(centre), None
    squares = None if reproducible else row_deviations(given, centre, length, 1)
    if squares is None:
        gap = operations.sub(widened(given, state), tuple(c[:, None] for c in centre))
        if register_of(like) == FP32 and length:
            scaled, exponent = scaled_rows(gap)
            gap = tuple(scaled)
        squares = exact_dots(gap, gap, state) if reproducible else row_products(gap, gap, state)
    return _divided(squares, max(0.0, length - correction), like), centre, exponent


def _column_variance(
    x: list[Tensor], count: int, inner: int, correction: float
) -> tuple[Components, Components] | None:
    """Return variances and means along the middle of [M / inner, count, inner], or None."""
    if deviations_of(x) is None:
        return None
    centre = _divided(column_sums(x, count, inner, len(x)), count, x[0])
    squares = row_deviations(x, centre, count, inner)
    if squares is None:
        return None
    return _divided(squares, max(0.0, count - correction), x[0]), centre


def _turned(x: list[Tensor], count: int, inner: int) -> list[Tensor]:
    """Transpose contiguous [M / inner, count, inner] to rows."""
    return [c.view(-1, count, inner).mT.reshape(-1, count).contiguous() for c in x]


def var(
    x: Components,
    dim: Dim = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    reproducible: bool = False,
) -> Components:
    """Return the variance: the sum of squared deviations over max(0, count - correction)."""
    format_of(x[0].dtype, "var: x")
    rows = Rows.of(x[0].shape, dim)
    found = _variances(x, rows, correction, reproducible)
    return _shaped(tuple(found[: len(x)]), rows, keepdim)


def _variances(x: Components, rows: Rows, correction: float, reproducible: bool) -> list[Tensor]:
    inner = 1 if reproducible else rows.beside(x)
    if inner > 1:
        return list(_column_variances(list(x), rows.length, inner, correction))
    return list(_row_variances(rows.gather(x), correction, reproducible))


def _two_each(x: list[Tensor], *others: object) -> list[Tensor]:
    return one_each(x, 2 * len(x))


@operator(
    "column_variances(Tensor[] x, int count, int inner, float correction)",
    lambda x, count, *_: [x[0].new_empty(x[0].numel() // count) for _ in range(2 * len(x))],
)
def _column_variances(x: list[Tensor], count: int, inner: int, correction: float) -> list[Tensor]:
    """Return variances and means along the middle of contiguous [M / inner, count, inner]."""
    found = _column_variance(x, count, inner, correction)
    if found is None:
        return list(_row_variances(_turned(x, count, inner), correction, False))
    fmt = format_of(x[0].dtype)
    return [c for part in found for c in finish(part, fmt, len(x))]


@operator("row_variances(Tensor[] x, float correction, bool reproducible)", _two_each)
def _row_variances(x: list[Tensor], correction: float, reproducible: bool) -> list[Tensor]:
    """Return variances, then means."""
    value, centre, exponent = _variance(x, correction, reproducible)
    if exponent is not None:
        value = operations.ldexp(value, 2 * exponent)
    fmt = format_of(x[0].dtype)
    return [*finish(value, fmt, len(x)), *finish(centre, fmt, len(x))]


def var_mean(
    x: Components, dim: Dim = None, correction: float = 1, keepdim: bool = False
) -> tuple[Components, Components]:
    """Return the variance and the mean."""
    format_of(x[0].dtype, "var_mean: x")
    rows = Rows.of(x[0].shape, dim)
    found = _variances(x, rows, correction, False)
    first, second = (_shaped(tuple(v), rows, keepdim) for v in (found[: len(x)], found[len(x) :]))
    return first, second


def std(
    x: Components,
    dim: Dim = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    reproducible: bool = False,
) -> Components:
    """Return the square root of the variance.

    In float64 each row is scaled by a power of two, so that no squared deviation overflows, and
    none that matters underflows. In float32 registers deviations are scaled likewise. For narrower
    formats the range of float64 registers suffices.
    """
    format_of(x[0].dtype, "std: x")
    rows = Rows.of(x[0].shape, dim)
    inner = 1 if reproducible else rows.beside(x)
    if inner > 1:
        found = _column_deviations(list(x), rows.length, inner, correction)
    else:
        found = _row_deviations(rows.gather(x), correction, reproducible)
    return _shaped(found, rows, keepdim)


@operator(
    "column_deviations(Tensor[] x, int count, int inner, float correction)",
    lambda x, count, *_: [x[0].new_empty(x[0].numel() // count) for _ in x],
)
def _column_deviations(x: list[Tensor], count: int, inner: int, correction: float) -> list[Tensor]:
    scales = x[0].dtype is torch.float64 and not unscaled(x)
    found = None if scales else _column_variance(x, count, inner, correction)
    if found is None:
        return list(_row_deviations(_turned(x, count, inner), correction, False))
    return list(finish(operations.sqrt(found[0]), format_of(x[0].dtype), len(x)))


@operator(
    "row_deviations(Tensor[] x, float correction, bool reproducible)",
    lambda x, *_: one_each(x, len(x)),
)
def _row_deviations(x: list[Tensor], correction: float, reproducible: bool) -> list[Tensor]:
    fmt, given, exponent = format_of(x[0].dtype), x, None
    scales = x[0].dtype is torch.float64 and x[0].shape[1]
    if scales and (reproducible or not unscaled(x)):
        given, exponent = brought_down(given)
    value, _, lifted = _variance(given, correction, reproducible)
    root = operations.sqrt(value)
    exponent = exponent if lifted is None else lifted
    if exponent is not None:
        root = operations.ldexp(root, exponent)
    return list(finish(root, fmt, len(x)))
