"""Exact: many mantissas and exponents, by one kernel, are those of the numbers.

Caught mutants: a power of two with something negative below it that keeps its exponent; subnormal
numbers that are not lifted; the large factor first, which rounds components far below twice.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

import mcf
from mcf.convert import conversions
from mcf.convert.conversions import FEWEST
from mcf.kernels.formats import FORMATS
from tests.helpers.bits import assert_same_bits
from tests.helpers.everyday import everyday

_COUNT = FEWEST + 40
_EVERYDAY = [(torch.float64, 2), (torch.float32, 3), (torch.bfloat16, 2)]
_OTHERS = [
    (dtype, terms)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for terms in (1, 2, 3, 4)
    if (dtype, terms) not in _EVERYDAY
]


def _numbers(dtype: torch.dtype, terms: int) -> mcf.MCFTensor:
    """Exponents of the whole range, every third a power of two, zeros and what is not finite."""
    generator, fmt = torch.Generator().manual_seed(3), FORMATS[dtype]
    exponent = torch.randint(fmt.emin - fmt.p, fmt.emax, (_COUNT,), generator=generator)
    whole = 1 << (fmt.p - 1)
    first = torch.randint(whole, 2 * whole, (_COUNT,), generator=generator).double() / whole
    first[::3] = 1.0
    first *= torch.randint(0, 2, (_COUNT,), generator=generator) * 2 - 1
    parts = [first]
    for k in range(1, terms):
        low = torch.randint(-whole, whole, (_COUNT,), generator=generator).double() / whole
        parts.append(low * 2.0 ** (-(fmt.p + 1) * k))
    # In two steps: a power of two itself may be no number.
    half = exponent // 2
    one = torch.ones(_COUNT, dtype=torch.float64)
    steps = torch.ldexp(one, half), torch.ldexp(one, exponent - half)
    given = [(c * steps[0] * steps[1]).to(dtype) for c in parts]
    for at, value in enumerate((0.0, -0.0, math.inf, -math.inf, math.nan)):
        given[0][at] = value
        for c in given[1:]:
            c[at] = 0.0
    return mcf.MCFTensor(given)


@pytest.mark.parametrize(
    ("dtype", "terms"),
    everyday([*_EVERYDAY, *_OTHERS], _EVERYDAY),
)
def test_many(dtype: torch.dtype, terms: int) -> None:
    x = _numbers(dtype, terms)
    mantissa, exponent = torch.frexp(x)
    assert exponent.dtype is torch.int32
    with mcf.executor("torch"):
        same, too = torch.frexp(x)
    assert torch.equal(exponent, too)
    for c, d in zip(mantissa.components, same.components, strict=True):
        assert_same_bits(c, d)
    rows = zip(*(c.tolist() for c in (*x.components, *mantissa.components)), strict=True)
    least = Fraction(2) ** FORMATS[dtype].emin
    for row, e in zip(rows, exponent.tolist(), strict=True):
        if not math.isfinite(row[0]) or row[0] == 0:
            assert e == 0
            continue
        value, found = (sum(map(Fraction, part)) for part in (row[:terms], row[terms:]))
        whole = value / Fraction(2) ** e
        assert Fraction(1, 2) <= abs(whole) < 1
        # Of components that are subnormal in the end each is rounded once.
        assert found == whole or (e > 0 and abs(found - whole) <= 2 * least)


@pytest.mark.parametrize("e", [1010, 1024])
def test_what_lies_far_below_is_rounded_once(e: int) -> None:
    # 8191 1/2 units of the smallest number, and a little less: not a tie.
    low = (8191.5 - 2.0**-20) * 2.0 ** (e - 1074)
    first = torch.full((_COUNT,), 1.5 * 2.0 ** (e - 1), dtype=torch.float64)
    mantissa, exponent = torch.frexp(mcf.MCFTensor([first, torch.full_like(first, low)]))
    assert set(exponent.tolist()) == {e}
    assert set(mantissa.components[1].tolist()) == {8191 * 2.0**-1074}


@pytest.mark.parametrize(("dtype", "terms"), [(torch.float64, 2), (torch.float32, 3)])
def test_few_that_are_asked_for_often(
    dtype: torch.dtype, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba", reason="needs Numba")
    x = _numbers(dtype, terms)
    expected = torch.frexp(x)
    monkeypatch.setattr(conversions, "OFTEN", 0)
    monkeypatch.setattr(conversions, "_prepared", {})
    for some in (slice(0, 1), slice(0, 50), slice(3, None, 60)):
        mantissa, exponent = torch.frexp(x[some].clone())
        for k, (got, c) in enumerate(zip(mantissa.components, expected[0].components, strict=True)):
            assert_same_bits(got, c[some].contiguous(), f"component {k} of {some}")
        assert_same_bits(exponent, expected[1][some].contiguous(), f"{some}")
        # As it lies there, not one after the other.
        again = torch.frexp(x[some])
        assert_same_bits(again[1], exponent, f"{some}")
    assert len(conversions._prepared) >= 3
    assert None not in conversions._prepared.values()
