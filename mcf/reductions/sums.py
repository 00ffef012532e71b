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
from mcf.reductions.rows import Components, Dim, Rows, check_same, one_each, operator


def _shaped(x: Components, rows: Rows, keepdim: bool) -> Components:
    shape = rows.result_shape(keepdim)
    return tuple(c.reshape(shape) for c in x)


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
    inner = 1 if reproducible else rows.beside(x)
    if inner > 1:
        wide = list(pad(tuple(x), count))
        return _shaped(_column_sums(wide, rows.length, inner, count), rows, keepdim)
    given = rows.gather(x)
    if reproducible:
        return _shaped(exact_sums(given, count), rows, keepdim)
    return _shaped(_row_sums(list(pad(tuple(given), count)), count), rows, keepdim)


def _row(x: list[Tensor], *others: object) -> list[Tensor]:
    """Return fake results of an operator on rows; its last argument is the number of components."""
    terms = others[-1]
    assert isinstance(terms, int)
    return one_each(x, terms)


@operator("row_sums(Tensor[] x, int terms)", _row)
def _row_sums(x: list[Tensor], terms: int) -> list[Tensor]:
    return list(finish(row_sums(x, terms), format_of(x[0].dtype), terms))


@operator(
    "column_sums(Tensor[] x, int count, int inner, int terms)",
    lambda x, count, inner, terms: [x[0].new_empty(x[0].numel() // count) for _ in range(terms)],
)
def _column_sums(x: list[Tensor], count: int, inner: int, terms: int) -> list[Tensor]:
    found = column_sums([c.contiguous() for c in x], count, inner, terms)
    return list(finish(found, format_of(x[0].dtype), terms))


@operator("row_products(Tensor[] x, Tensor[] y, int terms)", _row)
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
    return _shaped(result, rows, False)


def _wide_sum(given: list[Tensor], terms: int, reproducible: bool) -> Components:
    """Return the sums of rows as expansions in registers."""
    if not reproducible:
        return row_sums(given, terms)
    dtype = register_of(given[0]).dtype
    return exact_sums([c.to(dtype) for c in given], state_of(given[0], max(terms, len(given))))


def mean(
    x: Components, dim: Dim = None, keepdim: bool = False, *, reproducible: bool = False
) -> Components:
    """Return the mean over dimensions; NaN for no elements."""
    format_of(x[0].dtype, "mean: x")
    rows = Rows.of(x[0].shape, dim)
    inner = 1 if reproducible else rows.beside(x)
    if inner > 1:
        return _shaped(_column_means(list(x), rows.length, inner), rows, keepdim)
    return _shaped(_row_means(rows.gather(x), reproducible), rows, keepdim)


@operator(
    "column_means(Tensor[] x, int count, int inner)",
    lambda x, count, inner: [c.new_empty(c.numel() // count) for c in x],
)
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
