"""Primitives and steps on float64 registers and their bits, on every executor.

*Exact*, torch's own operations as the oracle: each executor's `rint`, `floor`, conversions and
signs at ties, zeros of both signs, infinities and NaN.
"""

from __future__ import annotations

import pytest
import torch

from mcf.kernels import BF16, FP16, FP64, registry
from mcf.kernels.algorithms import primitives as p
from mcf.kernels.algorithms.longs import (
    infinite,
    larger,
    modulo_2,
    nearest_bf16,
    nearest_fp16,
    negative,
    sign,
    smaller,
    with_sign,
)
from mcf.kernels.algorithms.primitives import (
    ONE,
    ZERO,
    absolute,
    bits64,
    const,
    floating,
    floor,
    from_bits64,
    gather,
    invert,
    long,
    rint,
    signed,
    where,
    whole,
)
from mcf.kernels.elementwise import Elementwise, Field
from tests.helpers.adversarial import specials
from tests.helpers.executors import on_each_executor

RESULTS = ("rint", "floor", "absolute", "sign", "with_sign", "modulo", "tests", "longs", "entry")
RESULTS += ("nearest_bf16", "nearest_fp16")


def _longs(x):
    k = long(where(absolute(x) < const(1e15), x, ZERO))
    k = larger(smaller(k, whole(1000)), whole(-1000))
    return floating(((k >> whole(1)) << whole(3)) - (k & whole(7)))


def _tests(x):
    signs = where(negative(x), ONE, ZERO) + where(infinite(x), const(2.0), ZERO)
    signs = signs + where(signed(x), const(8.0), ZERO)
    return signs + where(invert(x == x), const(4.0), ZERO)


def everything(x, entries):
    place = long(where(absolute(x) < const(2.0), absolute(rint(x)), const(2.0)))
    return (
        rint(x),
        floor(x),
        absolute(from_bits64(bits64(x))),
        sign(x),
        with_sign(const(-2.5), x),
        modulo_2(rint(x)) + ZERO,
        _tests(x),
        _longs(x),
        gather(entries, place),
        nearest_bf16(x),
        nearest_fp16(x),
    )


SPEC = Elementwise(
    name="longs",
    function=everything,
    results=RESULTS,
    fields=(
        *(Field(r, FP64, read=False, written=True) for r in RESULTS),
        Field("x", FP64),
        Field("entries", FP64, uniform=True, table=True),
    ),
    stores=tuple((r, r) for r in RESULTS),
    arithmetic=FP64,
    rounded=RESULTS,
)


def expected(x: torch.Tensor, entries: torch.Tensor) -> list[torch.Tensor]:
    """The same in torch."""
    two = torch.full_like(x, 2.5)
    k = torch.where(x.abs() < 1e15, x, 0.0).long().clamp(-1000, 1000)
    tests = torch.signbit(x) * 9.0 + x.isinf() * 2.0 + x.isnan() * 4.0
    return [
        x.round(),
        x.floor(),
        x.abs(),
        x.sign(),
        torch.copysign(two, x),
        torch.remainder(x.round(), 2.0) + 0.0,
        tests,
        (((k >> 1) << 3) - (k & 7)).double(),
        entries[torch.where(x.abs() < 2, x.round().abs(), 2.0).long()],
        # No number below is so near to a tie of 16 bits that float32 makes it one.
        x.bfloat16().double(),
        x.half().double(),
    ]


@on_each_executor
def test_longs(executor: str) -> None:
    halves = torch.arange(-9, 10).double() / 2
    large = torch.tensor([2.0**52 - 0.5, 2.0**52 + 1, 2.0**53 + 2, -(2.0**51) - 0.5, 1e300])
    # Patterns of float32 from everywhere, and ties of both formats, subnormal ones among them.
    patterns = (torch.arange(4000) * 1_073_807 + 12_345).to(torch.int32).view(torch.float32)
    ties = torch.cat([v.double() * torch.tensor([[1.0], [1 + 2.0**-8], [1 + 2.0**-11]])
                      for v in (specials(BF16), specials(FP16))], 1).flatten()  # fmt: skip
    narrow = torch.cat([patterns.double(), ties.double()])
    x = torch.cat(
        [specials(FP64), narrow, halves, large.double(), torch.nextafter(halves, halves * 0)]
    )
    entries = torch.tensor([3.0, 5.0, 7.0], dtype=torch.float64)
    out = [torch.empty_like(x) for _ in RESULTS]
    with registry.executor(executor):
        registry.run(SPEC, [[*out, x, entries]], torch.zeros(1, 0, dtype=torch.float64))
    for name, a, b in zip(RESULTS, expected(x, entries), out, strict=True):
        same = (a == b) & (torch.signbit(a) == torch.signbit(b)) | (a.isnan() & b.isnan())
        assert bool(same.all()), (name, x[~same], a[~same], b[~same])


def test_unbound_they_raise() -> None:
    for function in (p.bits64, p.from_bits64, p.long, p.floating, p.rint):
        with pytest.raises(TypeError, match=f"{function.__name__} is a primitive"):
            function(1)
