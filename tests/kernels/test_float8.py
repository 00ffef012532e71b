"""Numbers of 8 bits from and to float32, on every executor, and pairs of them.

Up to the largest number the codes are those of torch's own conversions and of rationals rounded
once, and every code means what torch takes it for. The bound of a pair is the docstring's: a mutant
that rounds the low number towards zero and one that keeps it without its factor exceed it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.kernels import exact
from mcf.kernels.algorithms.float8 import constant
from mcf.kernels.algorithms.primitives import bits, from_bits, rn, wand
from mcf.kernels.exact import rounding
from mcf.kernels.formats import FP32
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor, run
from tests.kernels.float8_codings import (
    E4M3,
    E5M2,
    NAMES,
    Coding,
    decode,
    each_format,
    encode,
    kernel,
    to_codes,
    to_values,
)


def patterns(count: int) -> Tensor:
    """float32 numbers whose upper halves are spread over all, with lower halves that matter."""
    tops = torch.linspace(-(2**15), 2**15 - 1, count).to(torch.int64)
    low = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    return ((tops[:, None] << 16) + torch.tensor(low)).flatten().to(torch.int32).view(torch.float32)


def around_ties(coding: Coding) -> Tensor:
    """Every number of a format, the middles between them, and their neighbours in float32."""
    every = torch.arange(127, dtype=torch.int8).view(coding.dtype).float()
    every = every[every.isfinite()]
    middles = (every[1:] + every[:-1]) / 2
    some = torch.cat([every, middles])
    near = torch.cat([some, *(torch.nextafter(some, torch.tensor(e)) for e in (0.0, 1e9))])
    found = torch.cat([near, -near])
    return found[found.abs() <= coding.largest]


@on_each_executor
@each_format
def test_one_number(executor: str, coding: Coding) -> None:
    few = executor == "triton"
    x = torch.cat([patterns(1 << 11 if few else 1 << 16), around_ties(coding)])
    # torch's e4m3 of infinity is NaN or the largest number.
    x = x[~(x.abs() > coding.largest)]
    one = coding.codes(executor, x)[0]
    assert_same_bits(one.view(coding.dtype), x.to(coding.dtype))


@each_format
def test_the_nearest_number(coding: Coding) -> None:
    """Rationals rounded once, by other means than torch's."""
    nearest = rounding(coding.format)
    assert nearest(Fraction(coding.largest)) == coding.largest
    x = around_ties(coding)
    one, hi, lo, _ = coding.codes("torch", x)
    number, pair = coding.values("torch", one, hi, lo)
    p = coding.format.p
    for given, found, both in zip(x.tolist(), number.tolist(), pair.tolist(), strict=True):
        first = nearest(Fraction(given))
        assert Fraction(found) == first, given
        second = nearest((Fraction(given) - first) * 2**p)
        assert Fraction(both) == first + second / 2**p, given


@each_format
def test_the_same_over_rationals(coding: Coding) -> None:
    """The algorithms on exact numbers, where only `rn` rounds, give the same values."""
    numbers = around_ties(coding)[::7]
    x = torch.cat([numbers, torch.tensor([torch.inf, -torch.inf, torch.nan])])
    slots: Any = coding.slots
    to, back = (exact.bind(f, FP32, slots=slots) for f in (to_codes, to_values))  # type: ignore[arg-type]
    expected = torch.stack(coding.values("torch", *coding.codes("torch", x)[:3]), 1)
    for given, values in zip(x.tolist(), expected.tolist(), strict=True):
        found = back(*to(Fraction(given) if math.isfinite(given) else given)[:3])
        assert all(a == b or (a != a and b != b) for a, b in zip(found, values, strict=True)), given


@on_each_executor
@each_format
def test_every_code(executor: str, coding: Coding) -> None:
    every = torch.arange(-128, 128).to(torch.int8)
    found, _ = coding.values(executor, every, every, every)
    expected = every.view(coding.dtype).float()
    assert expected.isfinite().sum() == {E4M3: 254, E5M2: 248}[coding]
    assert_same_bits(found, expected)


@on_each_executor
@each_format
def test_largest(executor: str, coding: Coding) -> None:
    """Finite numbers stay finite; those above the largest come of no block."""
    factors = [1, 1.0001, 1.036, 29 / 28, 1.04, 15 / 14, 2]
    x = torch.tensor([coding.largest * f for f in factors] + [1e30, 3.4e38])
    one = coding.codes(executor, torch.cat([x, -x]))[0]
    top = torch.tensor(coding.largest).to(coding.dtype).view(torch.int8).item()
    assert one.tolist() == [top] * 9 + [top - 128] * 9


@on_each_executor
@each_format
def test_a_pair_of_what_is_not_finite(executor: str, coding: Coding) -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan])
    one, hi, lo, _ = coding.codes(executor, x)
    assert_same_bits(one, hi)
    for found in coding.values(executor, one, hi, lo):
        if coding is E5M2:
            assert_same_bits(found, x)
        else:
            assert found.isnan().all()


def spread(coding: Coding) -> Tensor:
    """Numbers of every binade, with twice the bits that a pair has."""
    fractions = 1 + torch.arange(0, 2**11) / 2**11
    exponents = range(coding.format.emin - 10, coding.format.emax + 1)
    x = torch.cat([fractions * 2.0**e for e in exponents])
    return x[x <= coding.largest]


def unscaled(x):
    """A mutant: the low number without its factor."""
    hi = encode(x)
    return hi, hi, encode(rn(decode(encode(rn(x - decode(hi)))) * factor(x))), hi


def cut(x):
    """A mutant: the low number rounded towards zero."""
    hi = encode(x)
    rest = rn(rn(x - decode(hi)) * factor(x))
    return hi, hi, encode(from_bits(wand(bits(rest), cutting()))), hi


def factor(x):
    """A slot: 2**p."""


def cutting():
    """A slot: the bits that stay."""


def sixteen(x):
    return constant(bits(x), 0x41800000)


def eight(x):
    return constant(bits(x), 0x41000000)


def top12():
    return -0x100000


def top11():
    return -0x200000


_MUTATED = {E4M3: {"factor": sixteen, "cutting": top12}, E5M2: {"factor": eight, "cutting": top11}}


def worst(coding: Coding, executor: str = "torch", mutant: object = None) -> float:
    """The largest error of a pair as a share of its bound."""
    x = spread(coding)
    made = tuple(torch.empty(x.shape, dtype=torch.int8) for _ in range(4))
    spec = coding.to
    if mutant is not None:
        slots = tuple((coding.slots | _MUTATED[coding]).items())
        spec = kernel(mutant, slots, (*NAMES, "exponent"), spec.fields[:1])
    run(executor, spec, x, *made)
    found = coding.values("torch", *made[:3])[1]
    p, emin = coding.format.p, coding.format.emin
    least = torch.tensor(2.0 ** (emin - 2 * p), dtype=torch.float64)
    bound = torch.maximum(x.double() * 2.0 ** -(2 * p + 1), least)
    return ((found.double() - x.double()).abs() / bound).max().item()


@on_each_executor
@each_format
def test_bound_of_a_pair(executor: str, coding: Coding) -> None:
    assert 0.8 < worst(coding, executor) <= 1


@each_format
@pytest.mark.parametrize("mutant", [unscaled, cut])
def test_bound_catches(coding: Coding, mutant: object) -> None:
    assert worst(coding, mutant=mutant) > 1.5


@each_format
def test_exponent(coding: Coding) -> None:
    top = coding.largest
    tops = torch.tensor([0.0, 2.0**-149, 2.0**-92, top * 2.0**-100])
    assert coding.codes("torch", tops)[3].tolist() == [-100] * 4
    for k in range(-99, 128 - coding.format.emax):
        x = torch.tensor([top * 2.0**k, top * 2.0 ** (k - 1)])
        above = torch.nextafter(x[1:], torch.tensor(torch.inf))
        for executor in ("torch", "numba"):
            found = coding.codes(executor, torch.cat([x, above]))[3].tolist()
            assert found == [k, max(k - 1, -100), k], k


@on_each_executor
@each_format
def test_a_value_of_a_pair_is_kept(executor: str, coding: Coding) -> None:
    """What was stored once is stored again as the same value, though perhaps by other codes."""
    x = spread(coding)
    x = x[x >= 2.0 ** (coding.format.emin - 2 * coding.format.p + 1)][
        :: 1 if executor != "triton" else 16
    ]
    x = torch.cat([x, -x, torch.zeros(1), -torch.zeros(1)])
    once = coding.values(executor, *coding.codes(executor, x)[:3])
    again = coding.values(executor, *coding.codes(executor, once[1])[:3])
    assert_same_bits(again[1], once[1])
