"""Bits: closeness of many numbers, by first components where they decide, is that of all.

Caught mutants: no margin; a margin on the wrong side of what is too far; what first components do
not decide taken for apart; a relative tolerance that the format has as zero or infinity.
"""

from __future__ import annotations

import math

import pytest
import torch

import mcf

_COUNT = 1 << 13
RTOL, ATOL = 2.0**-10, 2.0**-30


def _numbers(dtype: torch.dtype, terms: int, widest: int) -> tuple[mcf.MCFTensor, mcf.MCFTensor]:
    """y, and x about as far from it as the tolerance is: some to a place, most to a quarter."""
    generator = torch.Generator().manual_seed(5)
    eps = torch.finfo(dtype).eps
    bits = -round(math.log2(eps)) + 1

    def whole(least: int, most: int) -> torch.Tensor:
        return torch.randint(least, most, (_COUNT,), generator=generator).double()

    y = torch.ldexp(whole(1 << (bits - 1), 1 << bits), whole(-widest, widest).long())
    y *= 1 - 2 * whole(0, 2)
    gap = y.abs() * RTOL + ATOL
    near = torch.arange(_COUNT) % 11 == 0
    quarter = torch.where(whole(0, 2) > 0, 0.75, 1.25)
    first = (y + (1 - 2 * whole(0, 2)) * gap * torch.where(near, 1.0, quarter)).to(dtype)
    low = [whole(-2, 3) / 8 * eps for _ in range(2)]
    x, y = (
        mcf.MCFTensor([v.to(dtype), (v * u).to(dtype)][:terms])
        for u, v in zip(low, (first.double(), y), strict=True)
    )
    ends = (math.inf, -math.inf, math.nan, torch.finfo(dtype).max, -torch.finfo(dtype).max)
    for k, a in enumerate((*ends, 0.0, -0.0)):
        for j, b in enumerate((*ends, 0.0)):
            for t, v in ((x, a), (y, b)):
                for i, c in enumerate(t.components):
                    c[100 + 6 * k + j] = v if i == 0 else 0.0
    return x, y


@pytest.mark.parametrize(
    ("dtype", "terms"),
    [
        (torch.float64, 2),
        pytest.param(torch.float32, 2, marks=pytest.mark.slow),
        pytest.param(torch.float64, 1, marks=pytest.mark.slow),
    ],
)
def test_as_all_components_have_it(dtype: torch.dtype, terms: int) -> None:
    x, y = _numbers(dtype, terms, 60)
    for rtol, atol in ((RTOL, ATOL), (RTOL, 0.0), (2.0**100, torch.finfo(dtype).max)):
        found = torch.isclose(x, y, rtol, atol)
        with mcf.executor("torch"):
            assert torch.equal(found, torch.isclose(x, y, rtol, atol))
        assert 0 < int(found.sum()) < _COUNT or atol > 1


@pytest.mark.slow
def test_what_first_components_rarely_decide() -> None:
    one = torch.ones(_COUNT, dtype=torch.float64)
    x = mcf.MCFTensor([one * (1 + RTOL), one * 2.0**-60])
    y = mcf.MCFTensor([one, one * 0])
    assert not bool(torch.isclose(x, y, RTOL, 0.0).any())
    assert bool(torch.isclose(-x + 2 * y, y, RTOL + 2.0**-50, 0.0).all())


@pytest.mark.parametrize("count", [1, 100, 1 << 12])
@pytest.mark.parametrize(
    ("dtype", "rtol", "value"),
    [
        (torch.float32, 1e300, 0.0),
        (torch.float32, 1e-60, math.inf),
        pytest.param(torch.float16, 1e5, 0.0, marks=pytest.mark.slow),
    ],
)
def test_tolerances_beyond_the_format(
    count: int, dtype: torch.dtype, rtol: float, value: float
) -> None:
    x = mcf.MCFTensor([torch.full((count,), v, dtype=dtype) for v in (value, 0.0)])
    assert bool(torch.isclose(x, x, rtol=rtol, atol=0.0).all())
    assert torch.allclose(x, x, rtol, 0.0)
