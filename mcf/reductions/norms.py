"""Vector norms on components."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf import elementary
from mcf.convert.numbers import components_of
from mcf.convert.rounding import convert
from mcf.kernels import operations
from mcf.kernels.components import padded
from mcf.kernels.formats import format_of
from mcf.reductions.exact import exact_dots
from mcf.reductions.folds import (
    brought_down,
    column_squares,
    finish,
    pad,
    paired,
    register_of,
    row_products,
    row_squares,
    state_of,
    unscaled,
)
from mcf.reductions.rows import Components, Dim, Rows, as_rows, one_each, operator
from mcf.reductions.sums import sum as sum_


def norm(
    x: Components,
    p: float = 2,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    terms: int | None = None,
    reproducible: bool = False,
) -> Components:
    """Return the p-norm over dimensions, (sum |x|^p)^(1/p); the nonzero count for p = 0.

    The 2-norm is the root of a sum of squares, each row scaled by a power of two, so that it has no
    spurious overflow or underflow. For other p it is scaled by the largest element (the smallest
    for p < 0), and float16 is computed in float32.

    Raises:
        ValueError: for a NaN p.
        RuntimeError: for p < 0 and inf over no elements.
    """
    format_of(x[0].dtype, "norm: x")
    count = terms or len(x)
    rows = Rows.of(x[0].shape, dim)
    if p == 0:
        nonzero = (x[0] != 0).to(x[0].dtype)
        return sum_((nonzero,), dim, keepdim, terms=count)
    if p == 1:
        return sum_(absolute(x), dim, keepdim, terms=count, reproducible=reproducible)
    if math.isnan(p):
        raise ValueError("norm: p must be a number, got nan")
    if rows.length == 0 and (p < 0 or math.isinf(p)):
        raise RuntimeError(
            f"norm: cannot compute the {p:g} norm of no elements, for which it has no value"
        )
    if math.isinf(p):
        given = rows.gather(absolute(x))
        return rows.shaped(finish_plain(_extreme(given, p > 0), count), keepdim)
    if p != 2:
        return rows.shaped(_powers(rows.gather(absolute(x)), p, count), keepdim)
    if rows.length == 0:
        return sum_(x, dim, keepdim, terms=count)
    given, inner = rows.arranged(x, reproducible)
    found = _norms(given, rows.length, inner, reproducible, count)
    return rows.shaped(found, keepdim)


def _scales(x: Tensor) -> bool:
    """Return whether squares can leave the range of the registers.

    Squares of narrow formats fit float64's range, and those of fp16 float32's.
    """
    return 2 * format_of(x.dtype).emax >= register_of(x).emax


@operator(
    "norms(Tensor[] x, SymInt count, SymInt inner, bool reproducible, int terms)",
    lambda x, count, inner, _, terms: one_each(x, terms, count, inner),
)
def _norms(x: list[Tensor], count: int, inner: int, reproducible: bool, terms: int) -> list[Tensor]:
    """Return 2-norms along the middle of contiguous [M / inner, count, inner]."""
    if inner > 1 and (not _scales(x[0]) or unscaled(x)):
        padded_x = pad(tuple(x), max(len(x), terms))
        columns = column_squares(padded_x, count, inner, terms)
        if columns is not None:
            return list(finish(operations.sqrt(columns), format_of(x[0].dtype), terms))
    x = as_rows(x, count, inner)
    fmt, register = format_of(x[0].dtype), register_of(x[0])
    exponent = None
    found = None if reproducible else row_squares(x, terms)
    if _scales(x[0]) and (reproducible or not (found[1] if found is not None else unscaled(x))):
        x, exponent = brought_down(x)
        found = None
    if reproducible:
        wide = [c.to(register.dtype) for c in x]
        squares = tuple(exact_dots(wide, wide, state_of(x[0], terms)))
    elif found is not None:
        squares = found[0]
    else:
        squares = row_products(*paired(tuple(x), tuple(x), terms), terms)
    root = operations.sqrt(squares)
    if exponent is not None:
        root = operations.ldexp(root, exponent)
    return list(finish(root, fmt, terms))


def _powers(x: list[Tensor], p: float, terms: int) -> Components:
    """Return p-norms of rows of nonnegative expansions, for p neither 0 nor infinite."""
    if x[0].dtype is torch.float16:
        # In float32 powers keep all bits.
        wide = [c.to(torch.float32) for c in x]
        return convert(_powers(wide, p, terms), torch.float16, terms)
    if x[0].shape[1] == 0:
        return finish_plain(tuple(c.new_zeros(c.shape[0]) for c in x), terms)
    top = _extreme(x, p > 0)
    # If the largest element is 0, infinite or NaN, it is the norm.
    regular = top[0].isfinite() & (top[0] != 0)
    one = torch.ones_like(top[0])
    unit = (torch.where(regular, top[0], one), *(torch.where(regular, c, 0.0) for c in top[1:]))
    fmt = format_of(x[0].dtype)
    ratios = operations.div(tuple(x), tuple(c[:, None] for c in unit))
    exponent, root = (
        tuple(torch.tensor(c, dtype=x[0].dtype, device=x[0].device) for c in parts)
        for parts in (components_of(p, fmt, terms), components_of(1 / Fraction(p), fmt, terms))
    )
    total = sum_(elementary.pow(tuple(ratios), exponent), 1, terms=terms)
    result = operations.mul(elementary.pow(total, root), unit)
    return tuple(
        torch.where(regular, r, t)
        for r, t in zip(finish_plain(result, terms), finish_plain(top, terms), strict=True)
    )


def absolute(x: Components) -> Components:
    """Return |x|: all components negated if the first has its sign bit set."""
    negative = torch.signbit(x[0])
    return tuple(torch.where(negative, -c, c) for c in x)


def finish_plain(x: Components, terms: int) -> Components:
    """Pad or cut the components of a result that is one of the elements."""
    return padded(x[:terms], terms)


def _extreme(x: list[Tensor], largest: bool) -> Components:
    """Return the largest or smallest of rows of nonnegative expansions; NaN if there is one."""
    best = x[0].amax(1) if largest else x[0].amin(1)
    result = [best]
    among = x[0] == best[:, None]
    for c in x[1:]:
        worst = -torch.inf if largest else torch.inf
        rest = torch.where(among, c, worst)
        low = rest.amax(1) if largest else rest.amin(1)
        among &= rest == low[:, None]
        result.append(torch.where(best.isfinite(), low, 0.0).to(c.dtype))
    return tuple(result)
