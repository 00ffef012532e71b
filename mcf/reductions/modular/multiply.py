"""Compute x @ y with each element the nearest expansion to the exact sum of exact products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.components import Components as Components
from mcf.kernels.formats import Format, format_of
from mcf.reductions.exact import exact_dots
from mcf.reductions.modular.integer_matrices import integers
from mcf.reductions.modular.moduli import Plan, plan_for
from mcf.reductions.modular.tiles import tile

# Approximate temporary memory of a tile, in bytes.
WORKSPACE = 1 << 28
# Numbers gathered at a time for exact dot products.
GATHERED = 1 << 20


def matmul(x: Sequence[Tensor], y: Sequence[Tensor], terms: int) -> Components:
    """Return `exact_matrices` as one operator, which `torch.compile` does not trace."""
    return tuple(torch.ops.mcf.exact_matrices(list(x), list(y), terms))


def exact_matrices(x: list[Tensor], y: list[Tensor], terms: int) -> list[Tensor]:
    """Return the nearest expansions of `terms` components to x @ y.

    Args:
        x: components, contiguous [batch, m, k].
        y: components, contiguous [batch, k, n], of the same dtype.
        terms: components of the results.

    Returns:
        Components [batch, m, n].
    """
    batch, rows, inner = x[0].shape
    columns, fmt = y[0].shape[2], format_of(x[0].dtype)
    out = [x[0].new_zeros(batch, rows, columns) for _ in range(terms)]
    if not out[0].numel() or not inner:
        return out
    plan = plan_for(fmt, terms, inner)
    across, down = _tiles(plan, rows, inner, columns)
    for b in range(batch):
        left, right = _finite([c[b] for c in x]), _finite([c[b] for c in y])
        for j in range(0, columns, across):
            strip = [c[:, j : j + across].contiguous() for c in right]
            factors = integers(strip, 0, plan)
            for i in range(0, rows, down):
                part = [c[i : i + down] for c in left]
                found, sure = tile(integers(part, 1, plan), factors, plan, fmt, terms)
                area = (b, slice(i, i + down), slice(j, j + across))
                for o, c in zip(out, found, strict=True):
                    o[area] = c
                _again([o[area] for o in out], part, strip, ~sure, fmt)
        _special([o[b] for o in out], x[0][b], y[0][b])
    return out


def _tiles(plan: Plan, rows: int, inner: int, columns: int) -> tuple[int, int]:
    """Return the columns and rows of a tile, as large as the workspace allows."""
    planes = len(plan.moduli) + len(plan.squares)
    down, across = rows, columns

    def taken(down: int, across: int) -> int:
        # Residues, exponents and sizes of strips; components and certainty of elements.
        return inner * (planes + 40) * (down + across) + 40 * down * across

    while taken(down, across) > WORKSPACE and max(down, across) > 1:
        if down > across:
            down = -(-down // 2)
        else:
            across = -(-across // 2)
    return across, down


def _finite(x: list[Tensor]) -> list[Tensor]:
    """Return components in float64, with 0 in place of infinities and NaN."""
    wide = [c.double() for c in x]
    finite = wide[0].isfinite()
    for c in wide[1:]:
        finite &= c.isfinite()
    if bool(finite.all()):
        return wide
    return [torch.where(finite, c, 0.0) for c in wide]


def _again(out: list[Tensor], x: list[Tensor], y: list[Tensor], where: Tensor, fmt: Format) -> None:
    """Recompute elements of a product, in integers as wide as the range of the format."""
    places = where.nonzero()
    step = max(1, GATHERED // (x[0].shape[1] * len(x)))
    for start in range(0, len(places), step):
        i, j = places[start : start + step].unbind(1)
        left = [c[i].to(fmt.dtype) for c in x]
        right = [c[:, j].mT.contiguous().to(fmt.dtype) for c in y]
        for o, c in zip(out, exact_dots(left, right, len(out)), strict=True):
            o[i, j] = c


def _special(out: list[Tensor], x: Tensor, y: Tensor) -> None:
    """Write infinities and NaN where products of x and y have them."""
    rows, columns = ~x.isfinite().all(1), ~y.isfinite().all(0)
    if not bool(rows.any() | columns.any()):
        return

    # Count products of each kind as sums of ones: 0 means that there are none.
    def count(a: Tensor, b: Tensor) -> Tensor:
        return a.double() @ b.double()

    inf = torch.inf
    nan = count(x.isnan(), torch.ones_like(y)) + count(torch.ones_like(x), y.isnan())
    nan += count(x.isinf(), y == 0) + count(x == 0, y.isinf())
    plus = count(x == inf, y > 0) + count(x == -inf, y < 0)
    plus += count((x > 0) & x.isfinite(), y == inf) + count((x < 0) & x.isfinite(), y == -inf)
    minus = count(x == inf, y < 0) + count(x == -inf, y > 0)
    minus += count((x > 0) & x.isfinite(), y == -inf) + count((x < 0) & x.isfinite(), y == inf)
    special = (nan > 0) | (plus > 0) | (minus > 0)
    value = torch.where(plus > 0, inf, -inf).to(x.dtype)
    value = torch.where((nan > 0) | (plus > 0) & (minus > 0), torch.nan, value)
    out[0].copy_(torch.where(special, value, out[0]))
    for o in out[1:]:
        o.masked_fill_(special, 0.0)


def _fake(x: list[Tensor], y: list[Tensor], terms: int) -> list[Tensor]:
    return [x[0].new_empty(*x[0].shape[:2], y[0].shape[2]) for _ in range(terms)]


_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("exact_matrices(Tensor[] x, Tensor[] y, int terms) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.impl("exact_matrices", exact_matrices, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("mcf::exact_matrices", _fake, lib=_library)
