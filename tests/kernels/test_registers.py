"""16-bit formats in float32 registers: what is left unrounded there does not change a result.

`rx` rounds inside two_sum in the theorem, and leaves a wider register alone in the executors. Here
both give the same numbers for all pairs of mantissas, exponent gaps and signs. Where they differ is
overflow: rounded intermediates can overflow although the sum does not, wide ones cannot.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, toy
from mcf.kernels.algorithms import renormalize, two_sum
from mcf.kernels.algorithms.primitives import rc, rn, rx
from tests.helpers import assert_all_same_bits
from tests.helpers.toys import bound, finite

MODELS = {BF16: toy(8, -200, 200), FP16: toy(11, -200, 200)}


def different(algorithm, fmt: Format, model: Format, gap: int, step: int) -> int:
    """Results that differ between registers and the theorem's arithmetic, at one exponent gap."""
    one = 1 << (fmt.p - 1)
    m = torch.arange(one, 2 * one, step, dtype=torch.float64)
    m = torch.cat([m, torch.tensor([2.0 * one - 1], dtype=torch.float64)])
    a, b = (t.flatten() for t in torch.meshgrid(m, torch.cat([m, -m]), indexing="ij"))
    # Both in the middle of the range, so that neither end is near.
    a, b = a * 2.0 ** -(gap // 2), b * 2.0 ** (gap - gap // 2)
    scale = 2.0 ** -(fmt.p if fmt is FP16 else 0)
    a, b = a * scale, b * scale
    exact = bound(algorithm, model)(a, b)
    wide = bound(algorithm, fmt)(a.float(), b.float())
    return sum(int((w.to(fmt.dtype).double() != e).sum()) for w, e in zip(wide, exact, strict=True))


BF16_GAPS, FP16_GAPS = range(-40, 41), range(-12, 13)


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", [two_sum, renormalize], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("fmt", "gaps", "step"),
    [
        pytest.param(BF16, BF16_GAPS, 5, id="bf16"),
        pytest.param(FP16, FP16_GAPS, 31, id="fp16"),
        pytest.param(BF16, range(-130, 131), 1, id="all-bf16", marks=pytest.mark.slow),
        pytest.param(FP16, range(-14, 15), 1, id="all-fp16", marks=pytest.mark.slow),
    ],
)
def test_two_sum_is_the_same_in_wide_registers(algorithm, fmt, gaps: range, step: int) -> None:
    for gap in gaps:
        assert different(algorithm, fmt, MODELS[fmt], gap, step) == 0, f"gap {gap}"


def fast_two_sum_unrounded(a, b):
    """The mutant: Fast2Sum may not leave its subtraction unrounded; the other error differs."""
    s = rc(a + b)
    return s, rn(b - rx(s - a))


def test_the_check_sees_an_algorithm_that_differs() -> None:
    assert sum(different(fast_two_sum_unrounded, BF16, MODELS[BF16], g, 3) for g in range(0, 9))


@pytest.mark.parametrize("p", [3, 4, 5])
def test_toy_registers(p: int) -> None:
    # Over all pairs of a format with subnormals: float64 registers instead of rounding.
    fmt = toy(p, -4, 3)
    x = finite(fmt)
    a, b = (t.flatten() for t in torch.meshgrid(x, x, indexing="ij"))
    classical = bound(two_sum, fmt)(a, b)
    live = b.abs() < float(fmt.max)
    s = classical[0]
    t = s - a
    e = (a - (s - t)) + (b - t)
    live &= torch.isfinite(s)
    assert torch.equal(e[live], classical[1][live])


def at_the_largest(fmt: Format) -> tuple[Tensor, Tensor]:
    """b = max, a = -3/2 ulp(b), both signs: s = b - ulp, and s - a is half an ulp beyond max."""
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    a, b = sign * float(-3 * fmt.u * Fraction(2) ** fmt.emax), sign * float(fmt.max)
    return a.to(fmt.dtype), b.to(fmt.dtype)


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32, FP64], ids=lambda f: f.name)
def test_two_sum_beside_the_largest_number(fmt: Format) -> None:
    a, b = at_the_largest(fmt)
    s, e = torch.nextafter(b, torch.zeros_like(b)), a / 3
    # In this order every format is exact.
    assert_all_same_bits(mcf.two_sum(b, a), (s, e), fmt.name)
    if fmt.register == fmt:
        sum_, error = mcf.two_sum(a, b)
        assert torch.equal(sum_, s)
        assert not torch.isfinite(error).any()
    else:
        assert_all_same_bits(mcf.two_sum(a, b), (s, e), fmt.name)
