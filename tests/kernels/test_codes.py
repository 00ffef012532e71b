"""Numbers of 8 bits rounded by random bits: the formats, and what rounding does, exactly.

All codes are compared with a model in rationals. Between every two neighbours a and b the number of
the 2**16 random words for which x is rounded up is counted: for x = a + (b - a) j / 2**16 it is j,
so that the mean is x; for any float32 x the mean is off by at most 2**-17 (b - a). Mutants are
caught: noise without its half, and noise of 15 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.kernels import registry, streams
from mcf.kernels.algorithms import codes, words
from mcf.kernels.algorithms.primitives import bits, number, wadd, wand, wshl, wshr, wsub
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Code, Elementwise, Field
from mcf.kernels.exact import bind
from mcf.kernels.formats import FP32, UINT8
from mcf.kernels.torch.registers import primitives
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor

WORDS = torch.arange(1 << 16, dtype=torch.int32)
reference = Binder(lambda f: f, primitives(FP32, FP32, {}))


def unsigned(code: int) -> Fraction:
    """The model: 6 exponent bits, 2 of the significand, and nothing below 2**-60 but 0."""
    e, f = divmod(code - 1, 4)
    return Fraction(4 + f, 4) * Fraction(2) ** (e - 60) if code else Fraction(0)


def e4m3_over_4(code: int) -> Fraction:
    """The model: OCP's e4m3, bias 7, over 4."""
    e, f = divmod(code, 8)
    return (Fraction(8 + f) * Fraction(2) ** (e - 1) if e else Fraction(f)) / 2**11


def e5m2_over_4096(code: int) -> Fraction:
    """The model: OCP's e5m2, bias 15, over 2**12."""
    e, f = divmod(code, 4)
    return (Fraction(4 + f) * Fraction(2) ** (e - 1) if e else Fraction(f)) / 2**28


# Name: decode, encode, the model, and the codes of finite numbers from 0.
FORMATS: dict[str, tuple[Any, Any, Callable[[int], Fraction], range]] = {
    "unsigned": (codes.from_unsigned, codes.to_unsigned, unsigned, range(255)),
    "e4m3": (codes.from_e4m3_over_4, codes.to_e4m3_over_4, e4m3_over_4, range(127)),
    "e5m2": (codes.from_e5m2_over_4096, codes.to_e5m2_over_4096, e5m2_over_4096, range(124)),
}
# Those with a sign as torch has them, and what those are over.
OCP = {"e4m3": (torch.float8_e4m3fn, 2.0**2), "e5m2": (torch.float8_e5m2, 2.0**12)}
each = pytest.mark.parametrize("name", FORMATS)


@functools.cache
def numbers(name: str) -> Tensor:
    """The finite numbers of a format from 0, in order; float32."""
    _, _, model, finite = FORMATS[name]
    return torch.tensor([float(model(c)) for c in finite], dtype=torch.float64).float()


@each
def test_every_code(name: str) -> None:
    decode, _, model, finite = FORMATS[name]
    found = reference(decode)(torch.arange(256).float())
    for c in finite:
        assert Fraction(found[c].item()) == model(c), c
    if name == "unsigned":
        assert found[255].isnan()
        assert (Fraction(found[254].item()), Fraction(found[1].item())) == (10, Fraction(1, 2**60))
    else:
        end = len(finite)
        assert found[end:128].isnan().all()
        assert found[128 + end :].isnan().all()
        assert_same_bits(found[128 : 128 + end], -found[:end])
        assert found[end - 1] == {"e4m3": 112, "e5m2": 14}[name]
        dtype, over = OCP[name]
        ocp = torch.arange(256).to(torch.uint8).view(dtype).float() / over
        assert_same_bits(found[ocp.isfinite()], ocp[ocp.isfinite()])
    exact = bind(decode, FP32)
    assert all(exact(Fraction(c)) == model(c) for c in finite)


def ups(encode: Any, x: Tensor, lower: int) -> Tensor:
    """For numbers between code `lower + k` and the next, k their place: how many words round up.

    They are the largest: by bisection, see `test_larger_words_round_up`.
    """
    first, last = torch.zeros(len(x), dtype=torch.int32), torch.full((len(x),), 1 << 16)
    place = lower + torch.arange(len(x))
    while (first < last).any():
        middle = (first + last) // 2
        up = reference(encode)(x, middle.to(torch.int32)).long() - place
        assert ((up == 0) | (up == 1) | (middle > 0xFFFF)).all(), "one of the two neighbours"
        inside = first < last
        last = torch.where(inside & (up == 1), middle, last)
        first = torch.where(inside & (up == 0), middle + 1, first)
    return (1 << 16) - first


@each
def test_larger_words_round_up(name: str) -> None:
    a, b, lower = gaps(name)
    x = (a * 0.75 + b * 0.25)[::17]
    place = lower + 17 * torch.arange(len(x))
    codes = reference(FORMATS[name][1])(x[:, None].expand(-1, 1 << 16), WORDS.expand(len(x), -1))
    assert torch.equal(codes.long() - place[:, None], (WORDS >= 3 << 14).long().expand(len(x), -1))


# Between 0 and 2**-60 there is no chance: what is not 0 does not become it.
def gaps(name: str) -> tuple[Tensor, Tensor, int]:
    """Every two neighbours between which there is a choice, and the code of the first."""
    grid, lower = numbers(name), 1 if name == "unsigned" else 0
    return grid[lower:-1], grid[lower + 1 :], lower


@pytest.mark.sampled
@each
@pytest.mark.parametrize("j", [0, 1, 2, 3 << 12, 0x7FFF, 0x8000, 0xABCD, 0xFFFE, 0xFFFF])
def test_the_mean_is_the_number_between_any_two(name: str, j: int) -> None:
    a, b, lower = gaps(name)
    x = (a.double() + (b.double() - a.double()) * j / 2**16).float()
    assert (x.double() == a.double() + (b.double() - a.double()) * j / 2**16).all(), "exact"
    assert (ups(FORMATS[name][1], x, lower) == j).all()


def off(name: str, encode: Any) -> float:
    """The largest |mean - x| as a share of the distance of neighbours, over float32 between."""
    a, b, lower = gaps(name)
    width = b.double() - a.double()
    worst = 0.0
    for part in (0x155555, 0x0AAAA9, 0x1FFFFF, 0x10):
        x = (a.double() + width * part / 2**21).float().clamp(max=torch.nextafter(b, a))
        share = (x.double() - a.double()) / width
        mean = ups(encode, x, lower).double() / 2**16
        worst = max(worst, (mean - share).abs().max().item())
    return worst


def without_half(x, random):
    """A mutant: noise from 0, which cuts what is below 16 bits."""
    return number(wsub(wshr(wadd(bits(x), wshl(random, 5)), 21), 267))


def of_15_bits(x, random):
    """A mutant: noise of 15 bits."""
    noise = wadd(wshl(wand(random, 0x7FFF), 6), 32)
    return number(wsub(wshr(wadd(bits(x), noise), 21), 267))


def test_the_mean_of_any_number() -> None:
    # Below 2**-8 an addition rounds to nearest before, at 2**-21 of the distance.
    assert off("unsigned", codes.to_unsigned) <= 2**-17
    assert off("e4m3", codes.to_e4m3_over_4) <= 2**-17 + 2**-21
    assert off("e5m2", codes.to_e5m2_over_4096) <= 2**-17 + 2**-21
    assert off("unsigned", without_half) > 1.9 * 2**-17
    assert off("unsigned", of_15_bits) > 2**-17


@each
def test_numbers_of_the_format_stay_and_the_order_is_kept(name: str) -> None:
    _, encode, _, finite = FORMATS[name]
    grid = numbers(name)
    for word in (0, 1, 0x8000, 0xFFFF):
        words = torch.full_like(grid, word, dtype=torch.int32)
        assert reference(encode)(grid, words).tolist() == list(finite)
    x = torch.linspace(0, 12, 9999).square()
    for word in (0, 12345, 0xFFFF):
        code = reference(encode)(x, torch.full_like(x, word, dtype=torch.int32))
        assert (code.diff() >= 0).all()


SPECIAL = [0.0, -0.0, 2.0**-149, 2.0**-61, 2.0**-60, 10.5, 12.0, 113.0, 3e38, float("inf")]


@each
def test_special_numbers(name: str) -> None:
    encode = reference(FORMATS[name][1])
    x = torch.tensor([*SPECIAL, float("nan")])
    for word in (0, 0xFFFF):
        found = encode(x, torch.full_like(x, word, dtype=torch.int32)).tolist()
        if name == "unsigned":
            # Never 0 of what is not, and never above the largest.
            assert found == [0, 0, 1, 1, 1, 254, 254, 254, 254, 255, 255]
        else:
            assert found[:2] == [0, 128]
            top = FORMATS[name][3][-1]
            assert found[7:] == [top, top, 127, 127]
            negative = encode(-x, torch.full_like(x, word, dtype=torch.int32)).tolist()
            assert negative[7:9] == [top + 128, top + 128]
            assert [n % 128 for n in negative] == [n % 128 for n in found]
            # The sign of NaN depends on the processor, and on who computes.
            assert negative[9:] == [127, 127]


def same(x, y):
    return (x, y)


def kernel(name: str) -> Elementwise:
    """Stores x as a code, and the number that a code was."""
    from_code, to_code, _, _ = FORMATS[name]
    return Elementwise(
        name=f"code_{name}",
        function=same,
        results=("code", "number"),
        fields=(
            Field("x", FP32),
            Field("y", UINT8, written=True, draw="second"),
            Field("number", FP32, read=False, written=True),
        ),
        stores=(("code", "y"), ("number", "number")),
        arithmetic=FP32,
        scalars=streams.SCALARS,
        codes=(Code("y", from_code, to_code),),
    )


@pytest.mark.sampled(every=4)
@on_each_executor
@each
def test_executors_have_the_same_codes(executor: str, name: str) -> None:
    count = 1 << 16 if executor != "triton" else 1 << 12
    # Every exponent and sign, and signs that a second moment never has.
    tops = torch.linspace(-(2**15), 2**15 - 1, count).to(torch.int32)
    x = ((tops << 16) | (tops * 40503 & 0xFFFF)).view(torch.float32)
    before = (torch.arange(count) % 256).to(torch.uint8)
    y, number = before.clone(), torch.zeros(count)
    table = torch.tensor([[7.0, 0.0]], dtype=torch.float64)
    with registry.executor(executor):
        registry.run(kernel(name), [[x, y, number]], table)
    decode, encode, _, _ = FORMATS[name]
    scalars = dict(zip(streams.SCALARS, streams.scalars(7, 0), strict=True))
    index = torch.arange(count, dtype=torch.int32)
    keys = [torch.tensor(float(scalars[s])) for s in streams.MOMENTS]
    _, word = reference(words.random16_pair)(index, *keys)
    assert_same_bits(number, reference(decode)(before.float()))
    assert torch.equal(y, reference(encode)(x, word).to(torch.uint8))
    exact = bind(encode, FP32)
    for k in range(0, count, count // 64):
        value = x[k].item()
        given = Fraction(value) if x[k].isfinite() else value
        assert exact(given, int(word[k])) == y[k].item()
