"""Numbers of 8 and 4 bits rounded by random bits: the formats, and what rounding does, exactly.

All codes are compared with a model in rationals. Between every two neighbours a and b the number of
the 2**16 random words for which x is rounded up is counted: for x = a + (b - a) j / 2**16 it is j,
so that the mean is x; for any float32 x the mean is off by at most 2**-17 (b - a), where an
addition rounds before by 2**-21 (b - a) more. Mutants are caught: noise without its half, and noise
of 15 and 14 bits. Kernels store pairs of 4 bits next to fields of any other format.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from mcf.kernels import registry, streams
from mcf.kernels.algorithms import codes, words
from mcf.kernels.algorithms.codes import constant
from mcf.kernels.algorithms.primitives import bits, number, wadd, wand, wshl, wshr, wsub
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Code, Elementwise, Field
from mcf.kernels.exact import bind
from mcf.kernels.formats import BF16, FP16, FP32, INT8, INT16, UINT4, UINT8, Format
from mcf.kernels.torch.registers import primitives
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor

WORDS = torch.arange(1 << 16, dtype=torch.int32)
reference = Binder(lambda f: f, primitives(FP32, FP32, {}))
# The numbers of 4 bits.
LEVELS = [Fraction(k, 16) for k in (0, 1, 2, 4, 6, 8, 16, 48)]


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


class Case(NamedTuple):
    """A format: its algorithms, its model, the codes of finite numbers from 0, and the sign.

    `first` is the code of the least of two neighbours between which there is a choice: between 0
    and 2**-60 there is none for "unsigned", as what is not 0 does not become it. `lost` bounds the
    error of the mean.
    """

    decode: Any
    encode: Any
    model: Callable[[int], Fraction]
    finite: range
    sign: int
    stored: Format = UINT8
    draw: str = "second"
    first: int = 0
    lost: float = 2**-17 + 2**-21


CASES = {
    "unsigned": Case(
        codes.from_unsigned, codes.to_unsigned, unsigned, range(255), 0, first=1, lost=2**-17
    ),
    "e4m3": Case(codes.from_e4m3_over_4, codes.to_e4m3_over_4, e4m3_over_4, range(127), 128),
    "e5m2": Case(
        codes.from_e5m2_over_4096, codes.to_e5m2_over_4096, e5m2_over_4096, range(124), 128
    ),
    "4_bits": Case(
        codes.from_4_bits, codes.to_4_bits, LEVELS.__getitem__, range(8), 8, UINT4, "first"
    ),
}
# Those with a sign as torch has them, and what those are over.
OCP = {"e4m3": (torch.float8_e4m3fn, 2.0**2), "e5m2": (torch.float8_e5m2, 2.0**12)}
each = pytest.mark.parametrize("name", CASES)


@functools.cache
def numbers(name: str) -> Tensor:
    """The finite numbers of a format from 0, in order; float32."""
    case = CASES[name]
    return torch.tensor([float(case.model(c)) for c in case.finite], dtype=torch.float64).float()


@each
def test_every_code(name: str) -> None:
    case, end = CASES[name], len(CASES[name].finite)
    found = reference(case.decode)(torch.arange(2 * case.sign or 256).float())
    assert [Fraction(x) for x in found[:end].tolist()] == [case.model(c) for c in case.finite]
    exact = bind(case.decode, FP32)
    assert all(exact(Fraction(c)) == case.model(c) for c in case.finite)
    if name == "unsigned":
        assert found[255].isnan()
        assert (Fraction(found[254].item()), Fraction(found[1].item())) == (10, Fraction(1, 2**60))
        return
    # In 4 bits -0 is NaN, and nothing else.
    negative = found[case.sign : case.sign + end]
    assert_same_bits(negative[1:], -found[1:end])
    assert negative[0].isnan() if name == "4_bits" else negative[0].item() == 0
    assert found[end : case.sign].isnan().all()
    assert found[case.sign + end :].isnan().all()
    assert found[end - 1] == {"e4m3": 112, "e5m2": 14, "4_bits": 3}[name]
    if name in OCP:
        dtype, over = OCP[name]
        ocp = torch.arange(256).to(torch.uint8).view(dtype).float() / over
        assert_same_bits(found[ocp.isfinite()], ocp[ocp.isfinite()])


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


def gaps(name: str) -> tuple[Tensor, Tensor, int]:
    """Every two neighbours between which there is a choice, and the code of the first."""
    grid, lower = numbers(name), CASES[name].first
    return grid[lower:-1], grid[lower + 1 :], lower


@each
def test_larger_words_round_up(name: str) -> None:
    a, b, lower = gaps(name)
    step = 17 if len(a) > 17 else 1
    x = (a * 0.75 + b * 0.25)[::step]
    place = lower + step * torch.arange(len(x))
    encode = reference(CASES[name].encode)
    found = encode(x[:, None].expand(-1, 1 << 16), WORDS.expand(len(x), -1))
    assert torch.equal(found.long() - place[:, None], (WORDS >= 3 << 14).long().expand(len(x), -1))


@pytest.mark.sampled
@each
@pytest.mark.parametrize("j", [0, 1, 2, 3 << 12, 0x7FFF, 0x8000, 0xABCD, 0xFFFE, 0xFFFF])
def test_the_mean_is_the_number_between_any_two(name: str, j: int) -> None:
    a, b, lower = gaps(name)
    x = (a.double() + (b.double() - a.double()) * j / 2**16).float()
    assert (x.double() == a.double() + (b.double() - a.double()) * j / 2**16).all(), "exact"
    assert (ups(CASES[name].encode, x, lower) == j).all()


def off(name: str, encode: Any, count: int | None = None) -> float:
    """The largest |mean - x| as a share of the distance of neighbours, over float32 between."""
    a, b, lower = gaps(name)
    a, b = a[:count], b[:count]
    width = b.double() - a.double()
    worst = 0.0
    for part in (0x155555, 0x0AAAA9, 0x1FFFFF, 0x10, 0x0AAABE):
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


def places(x):
    """8 more than the place of a number up to 1/8 among those of 4 bits."""
    return x * constant(x, 131 << 23) + constant(x, 130 << 23)


def four_without_half(x, random):
    """A mutant of the first two distances: noise from 0."""
    return number(wand(wshr(wadd(bits(places(x)), wshl(random, 4)), 20), 7))


def four_of_14_bits(x, random):
    """A mutant of the first two distances: noise of 14 bits."""
    noise = wadd(wshl(wand(random, 0x3FFF), 6), 32)
    return number(wand(wshr(wadd(bits(places(x)), noise), 20), 7))


@each
def test_the_mean_of_any_number(name: str) -> None:
    assert off(name, CASES[name].encode) <= CASES[name].lost


@pytest.mark.parametrize(
    ("name", "mutant", "count", "least"),
    [
        ("unsigned", without_half, None, 1.9 * 2**-17),
        ("unsigned", of_15_bits, None, 2**-17),
        ("4_bits", four_without_half, 2, 1.8 * 2**-17),
        ("4_bits", four_of_14_bits, 2, 2**-17 + 2**-21),
    ],
)
def test_the_mean_of_mutants(name: str, mutant: Any, count: int | None, least: float) -> None:
    assert off(name, mutant, count) > least


@each
def test_numbers_of_the_format_stay_and_the_order_is_kept(name: str) -> None:
    case, grid = CASES[name], numbers(name)
    encode = reference(case.encode)
    for word in (0, 1, 0x8000, 0xFFFF):
        same = torch.full_like(grid, word, dtype=torch.int32)
        assert encode(grid, same).tolist() == list(case.finite)
        if name == "4_bits":
            assert encode(-grid, same).tolist() == [0, *range(9, 16)], "0 has no sign"
    x = torch.cat([torch.linspace(0, 12, 9999).square(), torch.arange(4 << 12) / 2.0**12]).sort()[0]
    for word in (0, 12345, 0xFFFF):
        code = encode(x, torch.full_like(x, word, dtype=torch.int32))
        assert (code.diff() >= 0).all()


# Numbers with a certain code, and these codes: never 0 of what is not 0 ("unsigned"), never above
# the largest, NaN of infinity and NaN. The sign of NaN depends on the processor.
SPECIAL = {
    "unsigned": {0.0: 0, 2.0**-149: 1, 2.0**-61: 1, 2.0**-60: 1, 10.5: 254, 3e38: 254},
    "e4m3": {0.0: 0, 113.0: 126, 3e38: 126},
    "e5m2": {0.0: 0, 113.0: 123, 3e38: 123},
    "4_bits": {0.0: 0, 2.0**-149: 0, 2.0**-22: 0, 3.1: 7, 3e38: 7},
}


@each
@pytest.mark.parametrize("word", [0, 0xFFFF])
def test_special_numbers(name: str, word: int) -> None:
    encode, sign = reference(CASES[name].encode), CASES[name].sign
    x = torch.tensor([*SPECIAL[name], torch.inf, torch.nan])
    random = torch.full_like(x, word, dtype=torch.int32)
    nan = {"unsigned": 255, "4_bits": 8}.get(name, 127)
    assert encode(x, random).tolist() == [*SPECIAL[name].values(), nan, nan]
    if name == "unsigned":
        assert encode(-torch.zeros(1), random[:1]).item() == 0
    else:
        zero = 0 if name == "4_bits" else sign
        expected = [c + sign if c else zero for c in SPECIAL[name].values()]
        assert encode(-x, random).tolist() == [*expected, nan, nan]


def same(x, y):
    return (x, y)


def kernel(name: str) -> Elementwise:
    """Stores x as a code, and the number that a code was."""
    case = CASES[name]
    return Elementwise(
        name=f"code_{name}",
        function=same,
        results=("code", "number"),
        fields=(
            Field("x", FP32),
            Field("y", case.stored, written=True, draw=case.draw),
            Field("number", FP32, read=False, written=True),
        ),
        stores=(("code", "y"), ("number", "number")),
        arithmetic=FP32,
        scalars=streams.SCALARS,
        codes=(Code("y", case.decode, case.encode),),
    )


def unpacked(t: Tensor, fmt: Format) -> Tensor:
    return t if fmt.packed == 1 else torch.stack((t & 15, t >> 4), -1).flatten()


@pytest.mark.sampled(every=4)
@on_each_executor
@each
def test_executors_have_the_same_codes(executor: str, name: str) -> None:
    case = CASES[name]
    # More than a block of any executor, and a part of one.
    count = 41_000 if executor != "triton" else 3000
    # Every exponent and sign, and signs that a second moment never has.
    tops = torch.linspace(-(2**15), 2**15 - 1, count).to(torch.int32)
    x = ((tops << 16) | (tops * 40503 & 0xFFFF)).view(torch.float32)
    if name == "4_bits":
        x[::3] = torch.linspace(-4, 4, count)[::3]
    before = (torch.arange(count // case.stored.packed) % 256).to(torch.uint8)
    y, number = before.clone(), torch.zeros(count)
    table = torch.tensor([[7.0, 0.0]], dtype=torch.float64)
    with registry.executor(executor):
        registry.run(kernel(name), [[x, y, number]], table)
    scalars = dict(zip(streams.SCALARS, streams.scalars(7, 0), strict=True))
    keys = [torch.tensor(float(scalars[s])) for s in streams.MOMENTS]
    pair = reference(words.random16_pair)(torch.arange(count, dtype=torch.int32), *keys)
    word = pair[case.draw == "second"]
    found = unpacked(y, case.stored)
    assert_same_bits(number, reference(case.decode)(unpacked(before, case.stored).float()))
    assert torch.equal(found, reference(case.encode)(x, word).to(torch.uint8))
    exact = bind(case.encode, FP32)
    for k in range(0, count, count // 64):
        value = x[k].item()
        given = Fraction(value) if x[k].isfinite() else value
        assert exact(given, int(word[k])) == found[k].item()


def moved(a, b, c, d, e, f, y):
    return (a, b, c, d, e, f, y)


FORMATS = (BF16, FP16, FP32, INT8, INT16, UINT8)


@on_each_executor
def test_formats_beside_packed_ones(executor: str) -> None:
    """Loads and stores in pairs keep every number of every format."""
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
