"""Exact: extremes of narrow rows are the first of the largest values, NaN before all.

Caught mutants: a later one of equal sums in another lane; sums that are not exact taken as they
are; a limit, an infinity or a NaN that decides; numbers moved by another length; places of pieces
of a long row without their first one.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits

NARROW = [torch.bfloat16, torch.float16, torch.float32]


def _pairs(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> tuple[Any, torch.Tensor]:
    """Pairs of which many are equal, and float64 numbers in their order."""
    g = torch.Generator().manual_seed(seed)
    info = torch.finfo(dtype)
    high = torch.randint(-8, 9, shape, generator=g).double()
    low = torch.randint(-4, 5, shape, generator=g).double() * info.eps / 16
    if dtype is not torch.float32:
        # Both of a size, which is no rounded sum.
        swapped = torch.randint(0, 2, shape, generator=g) > 0
        high, low = torch.where(swapped, low, high), torch.where(swapped, high, low)
    high[high == 0] = -0.0
    parts = [high.to(dtype), low.to(dtype)]
    return parts, parts[0].double() + parts[1].double()


def _check(parts: list[torch.Tensor], order: torch.Tensor, what: str) -> None:
    x: Any = mcf.MCFTensor(parts)
    for dim in range(x.ndim):
        for name, sign in (("max", 1.0), ("min", -1.0)):
            # NaN is before all, whichever is looked for.
            value = torch.where(order.isnan(), math.inf, sign * order)
            nan = order.isnan().any(dim, keepdim=True)
            hit = torch.where(nan, order.isnan(), value == value.amax(dim, keepdim=True))
            first = hit.to(torch.uint8).argmax(dim)
            got = getattr(x, name)(dim)
            assert torch.equal(got.indices, first), f"{what} {name} {dim}"
            assert torch.equal(getattr(x, f"arg{name}")(dim), first), f"{what} arg{name} {dim}"
            at = first.unsqueeze(dim)
            expected = [c.gather(dim, at).squeeze(dim) for c in x.components]
            assert_all_same_bits(got.values.components, expected, f"{what} {name} {dim}")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rows(dtype: torch.dtype, terms: int) -> None:
    # Of lanes side by side, of rows in pieces, short rows that are turned, rows of odd lengths.
    for k, shape in enumerate([(70, 300), (5000, 5), (3, 7, 301), (20_000,), (1, 9000)]):
        parts, order = _pairs(dtype, shape, k)
        if terms > 2:
            normalised = parts[0] + parts[1] == parts[0]
            parts[1] = torch.where(normalised, parts[1], 0.0)
            order = parts[0].double() + parts[1].double()
            parts.append(torch.zeros_like(parts[0]))
        _check(parts, order, f"{shape}")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_sums_do_not_decide(dtype: torch.dtype) -> None:
    """Of some rows, so few that the others are decided."""
    for shape in ((60, 300), (4000, 6)):
        parts, order = _pairs(dtype, shape, 9)
        count = shape[1]
        largest = torch.finfo(dtype).max
        half = 2.0 ** (math.frexp(largest)[1] - 2) * torch.finfo(dtype).eps
        special = [(math.nan, 0.0), (math.inf, 0.0), (-math.inf, 0.0), (largest, half)]
        for row, (high, low) in enumerate(special):
            for at in (count - 1, count // 2):
                parts[0][row, at], parts[1][row, at] = high, low
                order[row, at] = high if low == 0 else math.inf
        # The same first components, and sums that are the same in float64.
        if dtype is not torch.float16:
            for at, low, more in ((1, -70, -47), (3, -60, -46), (4, -60, -46), (5, None, None)):
                below = 0.0 if low is None else 2.0**low
                parts[0][4, at], parts[1][4, at] = 16.0, below
                parts[0][5, at], parts[1][5, at] = -16.0, below
                # What stands for it in float64.
                order[4, at] = 16.0 + (0.0 if more is None else 2.0**more)
                order[5, at] = -16.0 + (0.0 if more is None else 2.0**more)
        # Along the last dimension alone: a column has what all rows have.
        x: Any = mcf.MCFTensor(parts)
        for name, sign in (("max", 1.0), ("min", -1.0)):
            nan = order.isnan()
            value = torch.where(nan, math.inf, sign * order)
            hit = torch.where(nan.any(1, keepdim=True), nan, value == value.amax(1, keepdim=True))
            assert torch.equal(getattr(x, name)(1).indices, hit.to(torch.uint8).argmax(1)), shape
