"""Exact: running extremes of long rows, looked at in blocks, are what the torch executor finds.

Caught mutants: a block passed over that has an equal element, a NaN or a larger lower component;
the number of the block before written; rows that go on where another ended.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits


def _rows(terms: int) -> Any:
    """Rows of 300: falling, rising, flat with rare larger ones in the last component, NaN, ends."""
    count = 300
    step = torch.arange(count, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    mixed = torch.randint(-1000, 1000, (count,), generator=generator).double()
    first = torch.stack([-step, step, torch.ones(count).double(), mixed, mixed, 0 * step])
    first[4, 130], first[3, 70], first[3, 250] = math.nan, math.inf, -math.inf
    first[5, 64::64] = -0.0
    low = torch.zeros_like(first)
    low[2, [63, 64, 128, 129, 290]] = torch.tensor([-1.0, 1.0, 1.0, 2.0, -2.0]).double() * 2.0**-60
    return mcf.MCFTensor([first, low][:terms])


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_long_rows(name: str, terms: int) -> None:
    x = _rows(terms)
    # Beyond what goes by plan, and what does.
    for given in (x, torch.cat([x] * 12), x[:, ::2].contiguous()):
        got = getattr(given, name)(1)
        with mcf.executor("torch"):
            expected = getattr(given, name)(1)
        assert torch.equal(got.indices, expected.indices)
        assert_all_same_bits(got.values.components, expected.values.components, name)
