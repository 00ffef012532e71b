"""Exact: float64 keys of narrow expansions are in the order of the values, and as few as decide.

Caught mutants: the rest of a sum left out; a rest of 0 kept; sums that round to infinity in their
format taken as finite; Fast2Sum in place of TwoSum.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
import torch

import mcf
from mcf.kernels.formats import FORMATS, FP16
from mcf.kernels.ordering import narrow_keys
from tests.helpers.executors import EXECUTORS

NARROW = [torch.float32, torch.bfloat16, torch.float16]


def _ends(dtype: torch.dtype) -> list[float]:
    """Numbers far apart, next to each other and at the ends of a format, of both signs."""
    info, fmt = torch.finfo(dtype), FORMATS[dtype]
    near = [1.0, 1 + info.eps, 1 + 2 * info.eps, info.eps / 2, info.eps / 4]
    ends = [info.max, 2.0 ** (fmt.emax - fmt.p), info.tiny, float(fmt.min_subnormal)]
    return [s * v for v in (0.0, *near, *ends, 2.0**12, math.inf) for s in (1.0, -1.0)] + [math.nan]


def _value(hi: float, lo: float, dtype: torch.dtype) -> float | Fraction:
    """The sum, infinite where it rounds to infinity in the format."""
    if not math.isfinite(hi + lo):
        return hi + lo
    s, fmt = Fraction(hi) + Fraction(lo), FORMATS[dtype]
    beyond = abs(s) >= fmt.max + Fraction(2) ** (fmt.emax - fmt.p)
    return math.copysign(math.inf, s) if beyond else s


def _keys(x: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    keys = narrow_keys(x)
    assert keys is not None
    assert len(keys) == count
    return keys


@pytest.mark.parametrize("dtype", NARROW, ids=str)
# Few go by torch's operations, many by a kernel.
@pytest.mark.parametrize("copies", [1, 16])
def test_pairs(dtype: torch.dtype, copies: int) -> None:
    pairs = list(product(_ends(dtype), repeat=2))
    x = [torch.tensor(c).to(dtype).repeat(copies) for c in zip(*pairs, strict=True)]
    keys = _keys(x, 1 if dtype is torch.float16 else 2)
    for k, (hi, lo) in enumerate(pairs):
        got, expected = [c[k].item() for c in keys], _value(hi, lo, dtype)
        if isinstance(expected, float):
            assert got[0] == expected or (math.isnan(got[0]) and math.isnan(expected))
            assert got[1:] in ([], [0.0])
        else:
            assert sum(map(Fraction, got)) == expected
            # The first is the sum in float64, so that the larger value has no smaller one.
            assert got[0] == float(expected)


@pytest.mark.parametrize("copies", [1, 2048])
def test_one_number_where_it_decides(copies: int) -> None:
    for dtype in NARROW:
        x = [torch.tensor([3.0, -5.0] * copies).to(dtype), torch.tensor([0.25, 0.0] * copies)]
        x[1] = x[1].to(dtype)
        (key,) = _keys(x, 1)
        assert key[:2].tolist() == [3.25, -5.0]
        if FORMATS[dtype] != FP16:
            x[1][-1] = 2.0**-60
            _, rest = _keys(x, 2)
            assert rest.count_nonzero() == 1
            assert rest[-1] == 2.0**-60


@pytest.mark.parametrize("name", EXECUTORS)
def test_many_on_each_executor(name: str) -> None:
    g = torch.Generator().manual_seed(1)
    for dtype in NARROW:
        x = [torch.randint(-9, 10, (5000,), generator=g).to(dtype) for _ in range(2)]
        with mcf.executor(name):
            (key,) = _keys(x, 1)
        assert torch.equal(key, x[0].double() + x[1].double())


def test_float16_of_any_number_is_one() -> None:
    g = torch.Generator().manual_seed(0)
    for terms, count in product((3, 4), (50, 5000)):
        x = [
            (torch.randint(-2047, 2048, (count,), generator=g) * 2.0 ** (5 - 9 * k)).half()
            for k in range(terms)
        ]
        (key,) = _keys(x, 1)
        inside = key.isfinite()
        assert torch.equal(key[inside], sum(c.double() for c in x)[inside])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("terms", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sorts_are_those_of_the_values(dtype: torch.dtype, terms: int) -> None:
    info = torch.finfo(dtype)
    g = torch.Generator().manual_seed(7)
    # Many ties in the first component, others in the float64 sum as well.
    first = torch.randint(-2, 3, (2, 2600), generator=g).double()
    low = torch.randint(-2, 3, first.shape, generator=g).double()
    low = low * torch.where(torch.rand(first.shape, generator=g) < 0.1, 2.0**-58, info.eps / 4)
    parts = [first, low * first.abs().clamp(0, 1)]
    parts += [torch.zeros_like(first)] * (terms - 2)
    x = mcf.MCFTensor([c.to(dtype) for c in parts])
    for row in range(2):
        values = [
            Fraction(a) + Fraction(b)
            for a, b in zip(*(c[row].tolist() for c in x.components[:2]), strict=True)
        ]
        for descending in (False, True):
            got, index = x.sort(1, descending=descending)
            expected = sorted(range(len(values)), key=values.__getitem__, reverse=descending)
            assert index[row].tolist() == expected
            for c, s in zip(x.components, got.components, strict=True):
                assert torch.equal(s[row], c[row][index[row]])
