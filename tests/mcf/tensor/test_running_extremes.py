"""Exact: running extremes of long rows, looked at in blocks, are what the torch executor finds.

Caught mutants: a block passed over that has an equal element, a NaN or a larger lower component;
the number of the block before written; rows that go on where another ended; pairs that are not as
sums are rounded taken as they are, or passed over by their first components.
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


@pytest.mark.parametrize(
    ("dim", "sign"),
    [
        (0, 1.0),
        (1, -1.0),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in ((0, -1.0), (1, 1.0))),
    ],
)
def test_one_number_in_two_forms(dim: int, sign: float) -> None:
    unit = 2.0**-52
    first = torch.zeros(70, 300, dtype=torch.float64)
    low = torch.zeros_like(first)
    # The second is the first once more, not as sums are rounded, among numbers far from it.
    first[:, 5], low[:, 5] = 1 + 2 * unit, -unit / 2
    first[:, 100], low[:, 100] = 1 + unit, unit / 2
    parts = [(sign * c if dim else sign * c.mT).contiguous() for c in (first, low)]
    found = (torch.cummax if sign > 0 else torch.cummin)(mcf.MCFTensor(parts), dim)
    indices = found.indices if dim else found.indices.mT
    assert set(indices[:, 5:100].reshape(-1).tolist()) == {5}
    assert set(indices[:, 100:].reshape(-1).tolist()) == {100}
