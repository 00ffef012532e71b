"""The norm of all gradients: exact to its bound, and the same bits for any order and layout.

Mutants these tests catch: a float64 sum instead of integers (order, `test_same_bits_*`), HIGH or
LOW smaller than stated (`test_bound`), the exponent taken from the first tensor only
(`test_wide_range`), no carry from the low to the high sums (`test_carry`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.optim.step.norm import HIGH, LOW, finite, total_norm
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP16, FP32, FP64, random

pytestmark = pytest.mark.usefixtures("on_torch")

DTYPES = [BF16, FP16, FP32, FP64]


def exact_square(tensors: list[Tensor]) -> Fraction:
    return sum(
        (Fraction(x) ** 2 for t in tensors for x in t.double().flatten().tolist()), Fraction(0)
    )


def norm(*tensors: Tensor) -> Tensor:
    return total_norm([(t,) for t in tensors])


def assert_within(found: Tensor, square: Fraction, count: int) -> None:
    bound = Fraction(count, 2 ** (HIGH + LOW)) + Fraction(1, 2**51)
    got = Fraction(found.item())
    assert (got / (1 + bound)) ** 2 <= square <= (got * (1 + bound)) ** 2, (
        float(got),
        float(square),
    )


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
def test_bound(dtype: torch.dtype, scale: float) -> None:
    tensors = [random((300, 70), dtype, 1, scale), random(5, dtype, 2, scale), random((), dtype, 3)]
    assert_within(norm(*tensors), exact_square(tensors), sum(t.numel() for t in tensors))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_for_any_order_and_layout(dtype: torch.dtype) -> None:
    x = random((200, 300), dtype, 1)
    expected = norm(x)
    generator = torch.Generator().manual_seed(0)
    shuffled = x.flatten()[torch.randperm(x.numel(), generator=generator)]
    padded = torch.full((400, 300), 7.0, dtype=dtype)
    padded[::2] = x
    for other in (
        [x.t()],
        [shuffled],
        list(x.unbind(0)),
        list(x.flatten().split(7777)),
        [padded[::2]],
    ):
        assert_same_bits(norm(*other), expected)
    # A float64 sum is not: else this test would say nothing.
    if dtype != BF16:
        a, b = (t.double().square().cumsum(0)[-1] for t in (x.flatten(), shuffled))
        assert a != b


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 2.0**-14, 1e4])
def test_the_compiled_loop_has_the_same_bits(dtype: torch.dtype, scale: float) -> None:
    # Numbers of very different sizes, some below what counts, some subnormal.
    x = random(40000, dtype, 1, scale)
    x[::3] = (x[::3].double() * 2.0**-13).to(dtype)
    x[::7] = (x[::7].double() * 2.0**-40).to(dtype)
    expected = norm(x, x[:5])
    with mcf.executor("numba"):
        assert_same_bits(norm(x, x[:5]), expected)
    assert_within(expected, exact_square([x, x[:5]]), 40005)


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_wide_range(executor: str) -> None:
    with mcf.executor(executor):
        check_wide_range()


def check_wide_range() -> None:
    for dtype, big, small in ((BF16, 3e38, 1e-38), (FP32, 1e38, 1e-45), (FP64, 1e308, 1e-300)):
        for values in ([big, small], [small, big], [small, small, 0.0], [big] * 5):
            t = torch.tensor(values, dtype=dtype)
            parts = list(t.unbind())
            if dtype == FP64 and big in values and values.count(big) > 1:
                assert norm(t).isinf()
                continue
            assert_within(norm(*parts), exact_square(parts), len(parts))


def test_carry() -> None:
    # Squares just below a multiple of 2**-HIGH: the low sums run over many times.
    x = torch.full((1 << 18,), math.sqrt(0.25 + 2.0**-30 - 2.0**-50), dtype=FP64)
    tensors = [x] * 8
    square = Fraction(x[0].item()) ** 2 * len(tensors) * len(x)
    assert_within(norm(*tensors), square, len(tensors) * len(x))


def test_components_are_added() -> None:
    high, low = torch.tensor([1.0, -2.0], dtype=BF16), torch.tensor([2.0**-10, 2.0**-9], dtype=BF16)
    found = total_norm([(high, low)])
    assert_within(found, exact_square([high.double() + low.double()]), 2)
    assert found != norm(high)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_not_finite(dtype: torch.dtype, bad: float) -> None:
    x = random((40, 50), dtype, 1)
    assert finite((x,))
    x[3, 4] = bad
    assert not finite((x,))
    assert not finite((torch.zeros(40, 50, dtype=dtype), x))
    found = norm(torch.ones(3, dtype=dtype), x)
    assert found.isnan() if math.isnan(bad) else found == torch.inf


@pytest.mark.parametrize(
    "tensors",
    [[], [torch.zeros(0)], [torch.zeros(3), torch.zeros(2)]],
    ids=["none", "empty", "zero"],
)
def test_nothing(tensors: list[Any]) -> None:
    assert norm(*tensors) == 0
    assert norm(*tensors).dtype == FP64
