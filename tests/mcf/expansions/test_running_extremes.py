"""Exact: running extremes of long rows, looked at in blocks, are what the torch executor finds.

Caught mutants: a block passed over that has an equal element, a NaN or a larger lower component;
the number of the block before written; rows that go on where another ended; pairs that are not as
sums are rounded taken as they are, or passed over by their first components; a loop for one format
that another's numbers go to.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday


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
    everyday([(0, 1.0), (1, -1.0), (0, -1.0), (1, 1.0)], [(0, 1.0), (1, -1.0)]),
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


def _running(values: list[float], sign: float) -> list[int]:
    """Where the largest of sign * value so far is, the last of equal ones; NaN stays."""
    found = [0]
    for k, v in enumerate(values[1:], 1):
        best = values[found[-1]]
        wins = sign * v >= sign * best if best == best and v == v else v != v
        found.append(k if wins else found[-1])
    return found


def _narrow(dtype: torch.dtype) -> torch.Tensor:
    """Six rows of pairs, components first: tied in the first, falling, not as sums are rounded."""
    g = torch.Generator().manual_seed(11)
    shape, eps = (6, 300), torch.finfo(dtype).eps
    first = torch.randint(-1, 2, shape, generator=g).double()
    low = torch.randint(-8, 9, shape, generator=g).double() * (eps / 16)
    # So few are larger than those before that blocks are passed over, but for what is below.
    first[1], low[1] = 1.0, low[1] - torch.arange(300) % 100 * 2 * eps
    first[2, 128:] = low[2, 128:] = 0.0
    # Both of a size, and the second the larger one.
    first[3], low[3] = low[3] * 16, first[3] * 16
    first[4, 200], low[4, 200] = math.nan, 0.0
    largest = torch.finfo(dtype).max
    # Half a place more rounds to infinity.
    first[5, ::70], low[5, ::70] = largest, 2.0 ** (math.frexp(largest)[1] - 2) * eps
    first[5, 100], low[5, 100], first[5, 201], low[5, 201] = math.inf, 0.0, -math.inf, 0.0
    return torch.stack([first, low]).to(dtype)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_narrow_rows(name: str, dtype: torch.dtype, terms: int) -> None:
    sign = 1.0 if name == "cummax" else -1.0
    # Rows, many of them beside each other, and a few columns: more numbers than go by plan.
    for rows, times, dim in ((12, 1, 1), (12, 1, 0), (2, 5, 0)):
        parts = _narrow(dtype).repeat(1, 1, times)
        if terms > 2:
            # Only pairs may be of any sizes.
            normalised = parts[0] + parts[1] == parts[0]
            parts[1] = torch.where(normalised, parts[1], 0.0)
        values = parts.double().sum(0)
        # Rounded to the format it is infinite.
        beyond = values.abs() > torch.finfo(dtype).max
        values = torch.where(beyond, values.sign() * math.inf, values)
        index = torch.tensor([_running(row.tolist(), sign) for row in values]).repeat(rows, 1)
        given = parts.repeat(1, rows, 1)
        if dim == 0:
            given, index = given.mT.contiguous(), index.mT
        x = mcf.MCFTensor([*given, *[torch.zeros_like(given[0])] * (terms - 2)])
        got: Any = getattr(x, name)(dim)
        assert torch.equal(got.indices, index)
        moved = [c.gather(dim, index) for c in x.components]
        assert_all_same_bits(got.values.components, moved, f"{name} {rows}")
