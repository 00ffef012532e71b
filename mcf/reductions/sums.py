"""Sums, dot products, means and variances on components.

Without `reproducible` a sum is a fold in a fixed order (`mcf.kernels.fold`), accurate to u**terms
times the sum of absolute values. With it, it is exact and rounded once (`mcf.reductions.exact`):
the elements may come in any order. Either way the bits are those of any executor and any number of
threads. Arithmetic is in float64 expansions; components narrower than that are rounded once at the
end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.kernels import operations
from mcf.kernels.fold import state_for
from mcf.kernels.formats import format_of
from mcf.reductions.exact import exact_dots, exact_sums
from mcf.reductions.folds import finish, pad, paired, row_products, row_sums, scaled_rows
from mcf.reductions.rows import Components, Dim, Rows, check_same


def _shaped(x: Components, rows: Rows, keepdim: bool) -> Components:
    shape = rows.result_shape(keepdim)
    return tuple(c.reshape(shape) for c in x)


def _count(number: float, like: Tensor) -> Tensor:
    return torch.tensor(number, dtype=torch.float64, device=like.device)


def sum(
    x: Components,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    terms: int | None = None,
    reproducible: bool = False,
) -> Components:
    """The sum over dimensions, as `terms` components (those of x by default)."""
    fmt, count = format_of(x[0].dtype, "sum: x"), terms or len(x)
    rows = Rows.of(x[0].shape, dim)
    given = rows.gather(x)
    if reproducible:
        return _shaped(exact_sums(given, count), rows, keepdim)
    return _shaped(finish(row_sums(pad(tuple(given), count), count), fmt, count), rows, keepdim)


def dot(
    x: Components, y: Components, *, terms: int | None = None, reproducible: bool = False
) -> Components:
    """The dot product of two vectors, as `terms` components (the most of x and y by default)."""
    check_same("dot", x=x[0], y=y[0])
    fmt = format_of(x[0].dtype, "dot: x")
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
        result = finish(row_products(rows.gather(a), rows.gather(b), count), fmt, count)
    return _shaped(result, rows, False)


def _wide_sum(given: list[Tensor], terms: int, reproducible: bool) -> Components:
    """Sums of rows as float64 expansions."""
    if not reproducible:
        return row_sums(given, terms)
    state = state_for(format_of(given[0].dtype), max(terms, len(given)))
    return exact_sums([c.double() for c in given], state)


def mean(
    x: Components, dim: Dim = None, keepdim: bool = False, *, reproducible: bool = False
) -> Components:
    """The sum over dimensions divided by the number of elements; NaN for none."""
    fmt = format_of(x[0].dtype, "mean: x")
    rows = Rows.of(x[0].shape, dim)
    total = _wide_sum(rows.gather(x), len(x), reproducible)
    quotient = operations.div(total, _count(rows.length, x[0]))
    return _shaped(finish(quotient, fmt, len(x)), rows, keepdim)


def _variance(
    given: list[Tensor], correction: float, reproducible: bool
) -> tuple[Components, Components]:
    """Variances and means of rows, float64 expansions [outer]."""
    like, length = given[0], given[0].shape[1]
    centre = operations.div(_wide_sum(given, len(given), reproducible), _count(length, like))
    state = len(centre)
    wide = tuple(given) if like.dtype is torch.float64 else convert(given, torch.float64, state)
    gap = operations.sub(wide, tuple(c[:, None] for c in centre))
    squares = exact_dots(gap, gap, state) if reproducible else row_products(gap, gap, state)
    return operations.div(squares, _count(max(0.0, length - correction), like)), centre


def var(
    x: Components,
    dim: Dim = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    reproducible: bool = False,
) -> Components:
    """The variance: squared distances from the mean, summed, over max(0, count - correction)."""
    rows, fmt = Rows.of(x[0].shape, dim), format_of(x[0].dtype, "var: x")
    value, _ = _variance(rows.gather(x), correction, reproducible)
    return _shaped(finish(value, fmt, len(x)), rows, keepdim)


def var_mean(
    x: Components, dim: Dim = None, correction: float = 1, keepdim: bool = False
) -> tuple[Components, Components]:
    """The variance and the mean."""
    rows, fmt = Rows.of(x[0].shape, dim), format_of(x[0].dtype, "var_mean: x")
    both = _variance(rows.gather(x), correction, False)
    first, second = (_shaped(finish(v, fmt, len(x)), rows, keepdim) for v in both)
    return first, second


def std(
    x: Components,
    dim: Dim = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    reproducible: bool = False,
) -> Components:
    """The square root of the variance.

    In float64 each row is scaled by a power of two, so that no square of a gap overflows, and none
    that counts underflows; narrower formats have float64's range for them.
    """
    rows, fmt = Rows.of(x[0].shape, dim), format_of(x[0].dtype, "std: x")
    given, exponent = rows.gather(x), None
    if x[0].dtype is torch.float64 and rows.length:
        given, exponent = scaled_rows(given)
    value, _ = _variance(given, correction, reproducible)
    root = operations.sqrt(value)
    if exponent is not None:
        root = operations.ldexp(root, exponent)
    return _shaped(finish(root, fmt, len(x)), rows, keepdim)
