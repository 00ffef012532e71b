"""Compute sums, dot products, means and variances of components.

Without `reproducible` a sum is a fold in a fixed order (`mcf.kernels.fold`), accurate to u**terms
times the sum of absolute values. With it, it is exact and rounded once (`mcf.reductions.exact`), in
any order of the elements. Either way the bits do not depend on the executor or the number of
threads. Components narrower than float64 are added up in expansions of the registers' format
(`mcf.set_registers`) and rounded once at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.kernels import operations
from mcf.kernels.formats import FP32, format_of
from mcf.reductions.exact import exact_dots, exact_sums
from mcf.reductions.folds import (
    brought_down,
    column_sums,
    deviations_of,
    finish,
    pad,
    paired,
    register_of,
    row_deviations,
    row_products,
    row_sums,
    scaled_rows,
    state_of,
    unscaled,
    widened,
)
from mcf.reductions.rows import (
    Components,
    Dim,
    Rows,
    as_rows,
    check_same,
    one_each,
    one_for_each_row,
    operator,
)


def _count(number: float, like: Tensor) -> Components:
    """Return a number in registers, exactly."""
    register = register_of(like)
    parts = components_of(number, register, 1 if register != FP32 else 3)
    while len(parts) > 1 and parts[-1] == 0:
        parts = parts[:-1]
    return tuple(torch.tensor(c, dtype=register.dtype, device=like.device) for c in parts)


def _divided(x: Components, number: float, like: Tensor) -> Components:
    """Return expansions over a number, with as many components."""
    return operations.div(x, _count(number, like))[: len(x)]


def sum(
    x: Components,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    terms: int | None = None,
    reproducible: bool = False,
) -> Components:
    """Return the sum over dimensions, as `terms` components (those of x by default)."""
    format_of(x[0].dtype, "sum: x")
    count = terms or len(x)
    rows = Rows.of(x[0].shape, dim)
    given, inner = rows.arranged(x, reproducible)
    if reproducible:
        return rows.shaped(exact_sums(given, count), keepdim)
    wide = list(pad(tuple(given), count))
    if inner > 1:
        return rows.shaped(_column_sums(wide, rows.length, inner, count), keepdim)
    return rows.shaped(_row_sums(wide, count), keepdim)


@operator("row_sums(Tensor[] x, int terms)", one_each)
def _row_sums(x: list[Tensor], terms: int) -> list[Tensor]:
    return list(finish(row_sums(x, terms), format_of(x[0].dtype), terms))


@operator(
    "column_sums(Tensor[] x, int count, int inner, int terms)",
    lambda x, count, inner, terms: one_each(x, terms, count, inner),
)
def _column_sums(x: list[Tensor], count: int, inner: int, terms: int) -> list[Tensor]:
    found = column_sums([c.contiguous() for c in x], count, inner, terms)
    return list(finish(found, format_of(x[0].dtype), terms))


@operator("row_products(Tensor[] x, Tensor[] y, int terms)", lambda x, y, terms: one_each(x, terms))
def _row_products(x: list[Tensor], y: list[Tensor], terms: int) -> list[Tensor]:
    return list(finish(row_products(x, y, terms), format_of(x[0].dtype), terms))


def dot(
    x: Components, y: Components, *, terms: int | None = None, reproducible: bool = False
) -> Components:
    """Return the dot product of two vectors; `terms` is by default the larger count of x and y."""
    check_same("dot", x=x[0], y=y[0])
    format_of(x[0].dtype, "dot: x")
    if x[0].dim() != 1 or y[0].shape != x[0].shape:
        raise ValueError(
            f"dot: x and y must be vectors of one length, got shapes {list(x[0].shape)} and "
            f"{list(y[0].shape)}"
        )
    count = terms or max(len(x), len(y))
    rows = Rows.of(x[0].shape, None)
    a, b = paired(x, y, count)
    if reproducible:
        result = exact_dots(rows.gather(x), rows.gather(y), count)
    else:
        result = _row_products(rows.gather(a), rows.gather(b), count)
    return rows.shaped(result, False)


def _wide_sum(given: list[Tensor], terms: int, reproducible: bool) -> Components:
    """Return the sums of rows as expansions in registers."""
    if not reproducible:
        return row_sums(given, terms)
    dtype = register_of(given[0]).dtype
    wide = [c.to(dtype) for c in given]
    return tuple(exact_sums(wide, state_of(given[0], max(terms, len(given)))))


def mean(
    x: Components, dim: Dim = None, keepdim: bool = False, *, reproducible: bool = False
) -> Components:
    """Return the mean over dimensions; NaN for no elements."""
    format_of(x[0].dtype, "mean: x")
    rows = Rows.of(x[0].shape, dim)
    given, inner = rows.arranged(x, reproducible)
    if inner > 1:
        return rows.shaped(_column_means(given, rows.length, inner), keepdim)
    return rows.shaped(_row_means(given, reproducible), keepdim)


@operator("column_means(Tensor[] x, int count, int inner)", one_for_each_row)
def _column_means(x: list[Tensor], count: int, inner: int) -> list[Tensor]:
    total = column_sums([c.contiguous() for c in x], count, inner, len(x))
    quotient = _divided(total, count, x[0])
    return list(finish(quotient, format_of(x[0].dtype), len(x)))


@operator("row_means(Tensor[] x, bool reproducible)", lambda x, _: one_each(x, len(x)))
def _row_means(x: list[Tensor], reproducible: bool) -> list[Tensor]:
    total = _wide_sum(x, len(x), reproducible)
    quotient = _divided(total, x[0].shape[1], x[0])
    return list(finish(quotient, format_of(x[0].dtype), len(x)))


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
        products = exact_dots if reproducible else row_products
        squares = tuple(products(list(gap), list(gap), state))
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
    given, inner = rows.arranged(x, reproducible)
    found = _variances(given, rows.length, inner, correction, reproducible)
    return rows.shaped(found[: len(x)], keepdim)


@operator(
    "variances(Tensor[] x, SymInt count, SymInt inner, float correction, bool reproducible)",
    lambda x, count, inner, *_: one_each(x, 2 * len(x), count, inner),
)
def _variances(
    x: list[Tensor], count: int, inner: int, correction: float, reproducible: bool
) -> list[Tensor]:
    """Return variances, then means, along the middle of contiguous [M / inner, count, inner]."""
    found = _column_variance(x, count, inner, correction) if inner > 1 else None
    if found is None:
        value, centre, exponent = _variance(as_rows(x, count, inner), correction, reproducible)
        found = value if exponent is None else operations.ldexp(value, 2 * exponent), centre
    fmt = format_of(x[0].dtype)
    return [c for part in found for c in finish(part, fmt, len(x))]


def var_mean(
    x: Components, dim: Dim = None, correction: float = 1, keepdim: bool = False
) -> tuple[Components, Components]:
    """Return the variance and the mean."""
    format_of(x[0].dtype, "var_mean: x")
    rows = Rows.of(x[0].shape, dim)
    given, inner = rows.arranged(x)
    found = _variances(given, rows.length, inner, correction, False)
    return rows.shaped(found[: len(x)], keepdim), rows.shaped(found[len(x) :], keepdim)


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
    given, inner = rows.arranged(x, reproducible)
    found = _deviations(given, rows.length, inner, correction, reproducible)
    return rows.shaped(found, keepdim)


@operator(
    "deviations(Tensor[] x, SymInt count, SymInt inner, float correction, bool reproducible)",
    one_for_each_row,
)
def _deviations(
    x: list[Tensor], count: int, inner: int, correction: float, reproducible: bool
) -> list[Tensor]:
    fmt, exponent = format_of(x[0].dtype), None
    scales = x[0].dtype is torch.float64 and count and (reproducible or not unscaled(x))
    found = _column_variance(x, count, inner, correction) if inner > 1 and not scales else None
    if found is not None:
        value = found[0]
    else:
        given = as_rows(x, count, inner)
        if scales:
            given, exponent = brought_down(given)
        value, _, lifted = _variance(given, correction, reproducible)
        exponent = exponent if lifted is None else lifted
    root = operations.sqrt(value)
    if exponent is not None:
        root = operations.ldexp(root, exponent)
    return list(finish(root, fmt, len(x)))
