"""Exact: places of narrow numbers in narrow sequences, by one float64 number or two.

Caught mutants: the path of a search without its last step; a table of the first steps that begins
where another level does; a second number of keys left out where one side alone has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.kernels.ordering import DEPTH, PIECE


def _pairs(dtype: torch.dtype, count: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    eps = torch.finfo(dtype).eps
    high = torch.randint(-60, 60, (count,), generator=g).double()
    low = torch.randint(-8, 9, (count,), generator=g).double() * (eps / 32)
    return [high.to(dtype), (low * (high != 0)).to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "size", [2**DEPTH, 2**DEPTH + 1, pytest.param(9999, marks=pytest.mark.slow)]
)
def test_of_many(dtype: torch.dtype, size: int) -> None:
    wanted = _pairs(dtype, 4 * PIECE + 37, 1)
    x: Any = mcf.MCFTensor(_pairs(dtype, size, 2)).sort().values
    y: Any = mcf.MCFTensor(wanted)
    there, sought = (sum(c.double() for c in t.components).numpy() for t in (x, y))
    for right in (False, True):
        got = torch.searchsorted(x, y, right=right)
        assert np.array_equal(got, np.searchsorted(there, sought, "right" if right else "left"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_where_one_side_has_two_numbers(dtype: torch.dtype) -> None:
    first = torch.arange(-8.0, 9.0)
    sequence: Any = mcf.MCFTensor([first.to(dtype), torch.zeros(17, dtype=dtype)])
    high = torch.tensor([4.0, 4.0, 4.0, -4.0]).to(dtype)
    low = torch.tensor([2.0**-70, 0.0, -(2.0**-70), 2.0**-70]).to(dtype)
    wanted: Any = mcf.MCFTensor([high, low])
    assert torch.searchsorted(sequence, wanted).tolist() == [13, 12, 12, 5]
    assert torch.searchsorted(sequence, wanted, right=True).tolist() == [13, 13, 12, 5]
    assert torch.searchsorted(wanted[[3, 2, 1, 0]], sequence).tolist() == [
        *[0] * 5, *[1] * 7, 2, *[4] * 4,
    ]  # fmt: skip


@pytest.mark.parametrize("right", [False, True])
def test_elements_looked_at_are_the_same(right: bool) -> None:
    """Of a sequence that is in no order, with NaN, as the torch executor finds."""
    g = torch.Generator().manual_seed(3)
    given = torch.randint(-999, 999, (5001,), generator=g).double()
    given[::50] = torch.nan
    x: Any = mcf.MCFTensor([given])
    y: Any = mcf.MCFTensor([given.repeat(4)])
    got = torch.searchsorted(x, y, right=right)
    with mcf.executor("torch"):
        assert torch.equal(got, torch.searchsorted(x, y, right=right))
