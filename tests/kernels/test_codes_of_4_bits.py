"""Numbers of 4 bits, two to a byte: the format, its rounding, exactly, and how kernels keep pairs.

As in test_codes.py: for x = a + (b - a) j / 2**16 between neighbours exactly j of the 2**16 random
words round up, and for any float32 the mean is off by at most 2**-17 + 2**-21 of their distance.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.kernels import registry, streams
from mcf.kernels.algorithms import codes, words
from mcf.kernels.algorithms.codes import constant
from mcf.kernels.algorithms.primitives import bits, number, wadd, wand, wshl, wshr
from mcf.kernels.elementwise import Code, Elementwise, Field
from mcf.kernels.exact import bind
from mcf.kernels.formats import BF16, FP16, FP32, INT8, INT16, UINT4, UINT8
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.kernels.test_codes import reference, ups

LEVELS = [Fraction(k, 16) for k in (0, 1, 2, 4, 6, 8, 16, 48)]
GRID = torch.tensor([float(x) for x in LEVELS])


def test_every_code() -> None:
    found = reference(codes.from_4_bits)(torch.arange(16).float())
    assert [Fraction(x) for x in found[:8].tolist()] == LEVELS
    assert found[8].isnan()
    assert_same_bits(found[9:], -found[1:8])
    exact = bind(codes.from_4_bits, FP32)
    assert [exact(Fraction(k)) for k in range(8)] == LEVELS


@pytest.mark.parametrize("j", [0, 1, 2, 3 << 12, 0x7FFF, 0x8000, 0xABCD, 0xFFFE, 0xFFFF])
def test_the_mean_is_the_number_between_any_two(j: int) -> None:
    a, b = GRID[:-1], GRID[1:]
    x = a + (b - a) * j / 2**16
    assert (x.double() == a.double() + (b - a).double() * j / 2**16).all(), "exact"
    assert (ups(codes.to_4_bits, x, 0) == j).all()


def off(encode: Any, count: int = len(GRID) - 1) -> float:
    """The largest |mean - x| as a share of the distance of neighbours, over float32 between."""
    a, b = GRID[:count], GRID[1 : count + 1]
    width, worst = (b - a).double(), 0.0
    for part in (0x155555, 0x0AAAA9, 0x1FFFFF, 0x10, 0x15557C):
        x = (a.double() + width * part / 2**22).float().clamp(max=torch.nextafter(b, a))
        share = (x.double() - a.double()) / width
        mean = ups(encode, x, 0).double() / 2**16
        worst = max(worst, (mean - share).abs().max().item())
    return worst


def without_half(x, random):
    """A mutant: noise from 0, which cuts what is below 16 bits."""
    return number(wand(wshr(wadd(bits(places(x)), wshl(random, 4)), 20), 7))


def of_14_bits(x, random):
    """A mutant: noise of 14 bits."""
    noise = wadd(wshl(wand(random, 0x3FFF), 6), 32)
    return number(wand(wshr(wadd(bits(places(x)), noise), 20), 7))


def places(x):
    """8 more than the place of a number up to 1/8."""
    return x * constant(x, 131 << 23) + constant(x, 130 << 23)


def test_the_mean_of_any_number() -> None:
    assert off(codes.to_4_bits) <= 2**-17 + 2**-21
    assert off(without_half, 2) > 1.8 * 2**-17
    assert off(of_14_bits, 2) > 2**-17 + 2**-21


def test_numbers_of_the_format_stay_and_the_order_is_kept() -> None:
    for word in (0, 1, 0x8000, 0xFFFF):
        same = torch.full_like(GRID, word, dtype=torch.int32)
        assert reference(codes.to_4_bits)(GRID, same).tolist() == list(range(8))
        negative = reference(codes.to_4_bits)(-GRID, same).tolist()
        assert negative == [0, *range(9, 16)], "0 has no sign"
    x = torch.arange(0, 4 << 12).float() / 2**12
    for word in (0, 12345, 0xFFFF):
        code = reference(codes.to_4_bits)(x, torch.full_like(x, word, dtype=torch.int32))
        assert (code.diff() >= 0).all()


def test_special_numbers() -> None:
    x = torch.tensor([0.0, 2.0**-149, 2.0**-22, 3.1, 3e38, torch.inf, torch.nan])
    for word in (0, 0xFFFF):
        random = torch.full_like(x, word, dtype=torch.int32)
        assert reference(codes.to_4_bits)(x, random).tolist() == [0, 0, 0, 7, 7, 8, 8]
        assert reference(codes.to_4_bits)(-x, random).tolist() == [0, 0, 0, 15, 15, 8, 8]


def same(x, y):
    return (x, y)


KERNEL = Elementwise(
    name="code_4_bits",
    function=same,
    results=("code", "number"),
    fields=(
        Field("x", FP32),
        Field("y", UINT4, written=True, draw="first"),
        Field("number", FP32, read=False, written=True),
    ),
    stores=(("code", "y"), ("number", "number")),
    arithmetic=FP32,
    scalars=streams.SCALARS,
    codes=(Code("y", codes.from_4_bits, codes.to_4_bits),),
)


def halves(t: Tensor) -> Tensor:
    return torch.stack((t & 15, t >> 4), -1).flatten()


@on_each_executor
def test_executors_have_the_same_codes(executor: str) -> None:
    # More than a block of any executor, and a part of one.
    count = 41000 if executor != "triton" else 3000
    tops = torch.linspace(-(2**15), 2**15 - 1, count).to(torch.int32)
    x = ((tops << 16) | (tops * 40503 & 0xFFFF)).view(torch.float32)
    x[::3] = torch.linspace(-4, 4, count)[::3]
    before = (torch.arange(count // 2) % 256).to(torch.uint8)
    y, number = before.clone(), torch.zeros(count)
    table = torch.tensor([[7.0, 0.0]], dtype=torch.float64)
    with registry.executor(executor):
        registry.run(KERNEL, [[x, y, number]], table)
    scalars = dict(zip(streams.SCALARS, streams.scalars(7, 0), strict=True))
    keys = [torch.tensor(float(scalars[s])) for s in streams.MOMENTS]
    word, _ = reference(words.random16_pair)(torch.arange(count, dtype=torch.int32), *keys)
    assert_same_bits(number, reference(codes.from_4_bits)(halves(before).float()))
    assert torch.equal(halves(y), reference(codes.to_4_bits)(x, word).to(torch.uint8))
    exact = bind(codes.to_4_bits, FP32)
    for k in range(0, count, count // 64):
        value = x[k].item()
        given = Fraction(value) if x[k].isfinite() else value
        assert exact(given, int(word[k])) == halves(y)[k].item()


def moved(a, b, c, d, e, f, y):
    return (a, b, c, d, e, f, y)


FORMATS = (BF16, FP16, FP32, INT8, INT16, UINT8)


@on_each_executor
def test_formats_beside_packed_ones(executor: str) -> None:
    """What is loaded in pairs and stored in pairs is what was there, of every format."""
    spec = Elementwise(
        name="pairs",
        function=moved,
        results=tuple("abcdefy"),
        fields=(
            *(Field(n, f, written=True) for n, f in zip("abcdef", FORMATS, strict=True)),
            Field("y", UINT4, written=True, draw="first"),
        ),
        stores=tuple((n, n) for n in "abcdefy"),
        arithmetic=FP32,
        scalars=streams.SCALARS,
        codes=(Code("y", codes.from_4_bits, codes.to_4_bits),),
    )
    count = 1530
    raw = torch.arange(count) * 0x9E3779B1
    row = []
    for fmt in FORMATS:
        size = fmt.dtype.itemsize if fmt.dtype is not None else 0
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[size]
        t = (raw >> 7).to(kind).view(fmt.dtype)
        row.append(torch.where(t.isfinite(), t, 1))
    row.append((torch.arange(count // 2) % 256).to(torch.uint8))
    expected = [t.clone() for t in row]
    with registry.executor(executor):
        registry.run(spec, [row], torch.tensor([[7.0, 0.0]], dtype=torch.float64))
    for t, before in zip(row, expected, strict=True):
        assert_same_bits(t, before)
