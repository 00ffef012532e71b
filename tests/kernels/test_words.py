"""Splitting a float32 into a bf16 number and further bits: exact, and nearest, on every executor.

`split16` is undone by `join16` for every bit pattern that is not NaN, and its leading part is the
nearest bf16 number; a mutant that rounds ties to even is caught. `split8` is the same after
rounding to 24 bits.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from mcf.kernels.algorithms import join8, join16, split8, split16
from mcf.kernels.algorithms.primitives import bits, from_bits, number, wadd, wand, wshr, wsub
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.exact import bind
from mcf.kernels.formats import BF16, FP32, INT8, INT16, Format
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor, run


def splitting(split: object, integer: Format) -> Elementwise:
    return Elementwise(
        name=f"splitting_{integer.name}",
        function=split,  # type: ignore[arg-type]
        results=("hi", "low"),
        fields=(
            Field("x", FP32),
            Field("hi", BF16, read=False, written=True),
            Field("low", integer, read=False, written=True),
        ),
        stores=(("hi", "hi"), ("low", "low")),
        arithmetic=FP32,
        rounded=("hi", "low"),
    )


def joined(hi, low):
    return (open_join(hi, low),)


def open_join(hi, low):
    """A slot."""


def joining(join: object, integer: Format) -> Elementwise:
    return Elementwise(
        name=f"joining_{integer.name}",
        function=joined,
        results=("x",),
        fields=(
            Field("hi", BF16),
            Field("low", integer),
            Field("x", FP32, read=False, written=True),
        ),
        stores=(("x", "x"),),
        arithmetic=FP32,
        slots=(("open_join", join),),  # type: ignore[arg-type]
    )


SPLIT16, JOIN16 = splitting(split16, INT16), joining(join16, INT16)
SPLIT8, JOIN8 = splitting(split8, INT8), joining(join8, INT8)


def to_even(x):
    """A mutant: ties to even."""
    pattern = bits(x)
    top = wand(wadd(pattern, wadd(0x7FFF, wand(wshr(pattern, 16), 1))), -0x10000)
    return from_bits(top), number(wsub(pattern, top))


def patterns(tops: Tensor) -> Tensor:
    """float32 numbers: some upper halves with lower halves that matter, every sign and exponent."""
    low = [0, 1, 0x7F, 0x80, 0x81, 0xFF, 0x7F7F, 0x7FFF, 0x8000, 0x8001, 0x8080, 0xFF80, 0xFFFF]
    whole = (tops.to(torch.int64)[:, None] << 16) + torch.tensor(low)
    return whole.flatten().to(torch.int32).view(torch.float32)


def parts(spec: Elementwise, executor: str, x: Tensor, integer: torch.dtype) -> tuple[Tensor, ...]:
    hi, low = torch.empty(x.shape, dtype=torch.bfloat16), torch.empty(x.shape, dtype=integer)
    run(executor, spec, x, hi, low)
    return hi, low


def nearest(x: Tensor) -> Tensor:
    """bf16, ties away from zero, in integers."""
    pattern = x.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    return ((pattern + 0x8000) >> 16 << 48 >> 48).to(torch.int16).view(torch.bfloat16)


@on_each_executor
def test_split16_is_exact(executor: str) -> None:
    count = 1 << 16 if executor != "triton" else 1 << 11
    x = patterns(torch.linspace(-(2**15), 2**15 - 1, count).to(torch.int64))
    x = x[~x.isnan()]
    hi, low = parts(SPLIT16, executor, x, torch.int16)
    assert_same_bits(hi, nearest(x))
    back = torch.empty_like(x)
    run(executor, JOIN16, hi, low, back)
    assert_same_bits(back, x)


@pytest.mark.nightly
def test_split16_is_exact_for_every_pattern() -> None:
    for start in range(-(2**31), 2**31, 2**24):
        x = torch.arange(start, start + 2**24, dtype=torch.int64).to(torch.int32)
        x = x.view(torch.float32)
        hi, low = parts(SPLIT16, "numba", x, torch.int16)
        back = torch.empty_like(x)
        run("numba", JOIN16, hi, low, back)
        finite = ~x.isnan()
        assert_same_bits(back[finite], x[finite])
        assert back[~finite].isnan().all()
        assert hi[~finite].isnan().all()


def test_ties_to_even_would_not_be_exact() -> None:
    x = patterns(torch.arange(0x3F80, 0x3F90))
    mutant = splitting(to_even, INT16)
    hi, low = parts(mutant, "torch", x, torch.int16)
    back = torch.empty_like(x)
    run("torch", JOIN16, hi, low, back)
    assert (back != x).sum() == 8, "every tie above an even number"


@on_each_executor
def test_split8_rounds_to_24_bits(executor: str) -> None:
    x = patterns(torch.linspace(-(2**15), 2**15 - 1, 2**11).to(torch.int64))
    x = x[~x.isnan()]
    hi, low = parts(SPLIT8, executor, x, torch.int8)
    back = torch.empty_like(x)
    run(executor, JOIN8, hi, low, back)
    # Patterns in units of 2**8, rounded by Python; above the largest number they are infinity's.
    expected = [round(Fraction(k, 256)) * 256 for k in (x.view(torch.int32) & 0x7FFFFFFF).tolist()]
    assert_same_bits(back, torch.copysign(torch.tensor(expected, dtype=torch.int32).view(
        torch.float32), x))  # fmt: skip


@on_each_executor
@pytest.mark.parametrize(("spec", "integer"), [(SPLIT16, torch.int16), (SPLIT8, torch.int8)])
def test_nan_stays_nan(executor: str, spec: Elementwise, integer: torch.dtype) -> None:
    # The carry of rounding would make -0 of the first, and infinity of the last.
    payloads = [0x7FFFFFFF, 0x7FFF8000, 0x7FC00000, 0x7F800001, -1, -0x7FFFFF]
    x = torch.tensor(payloads, dtype=torch.int32).view(torch.float32)
    assert x.isnan().all()
    hi, low = parts(spec, executor, x, integer)
    assert hi.isnan().all()
    assert (low == 0).all()


def test_exact_executor_agrees() -> None:
    x = patterns(torch.arange(0x3F00, 0x4100, 37))
    hi, low = parts(SPLIT16, "torch", x, torch.int16)
    split, join = bind(split16, FP32), bind(join16, FP32)
    for value, h, k in zip(x.tolist(), hi.tolist(), low.tolist(), strict=True):
        assert split(Fraction(value)) == (Fraction(h), k)
        assert join(Fraction(h), Fraction(k)) == Fraction(value)
