"""Sums, dot products and means of components.

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
    column_sums,
    finish,
    pad,
    paired,
    register_of,
    row_products,
    row_sums,
    state_of,
)
from mcf.reductions.opaque_reductions import one_each, operator
from mcf.reductions.rows import Components, Dim, Rows, check_same


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
