"""The reference's fused multiply-subtract, which torch lacks, against exact arithmetic.

It is only called with c = RN(a * b), and must then be an FMA to the bit: signs of zeros too, which
the Numba executor's hardware FMA provides for comparison.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcf.kernels import FP32, FP64, Format
from mcf.kernels.algorithms import two_prod
from mcf.kernels.operators import TWO_PROD, kernel
from tests.helpers import assert_all_same_bits
from tests.helpers.adversarial import Draw
from tests.helpers.executors import run
from tests.helpers.toys import bound

WIDE = [FP32, FP64]


def both(fmt: Format, a: Tensor, b: Tensor) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """The reference's product and the CPU's, which has the instruction."""
    out = [torch.empty_like(a), torch.empty_like(a)]
    run("numba", kernel(TWO_PROD, fmt), a, b, *out)
    return bound(two_prod, fmt)(a, b), out


@pytest.mark.parametrize("fmt", WIDE, ids=lambda f: f.name)
def test_every_exponent_of_the_product(fmt: Format) -> None:
    draw = Draw(fmt, seed=3)
    n = 300_000
    first = draw.exponents(n)
    bottom = fmt.emin - fmt.p + 1
    second = (draw.rng.integers(2 * bottom, 2 * fmt.emax, n) - first).clip(bottom, fmt.emax)
    a, b = draw.tensor(draw.numbers(first)), draw.tensor(draw.numbers(second))
    assert_all_same_bits(*both(fmt, a, b), what=fmt.name)


@pytest.mark.parametrize("fmt", WIDE, ids=lambda f: f.name)
def test_products_about_the_smallest_numbers(fmt: Format) -> None:
    # Results from below half the smallest subnormal to above the smallest normal number.
    draw = Draw(fmt, seed=4)
    n = 200_000
    total = draw.rng.integers(fmt.emin - fmt.p - 2, fmt.emin + 4, n)
    first = draw.exponents(n, low=fmt.emin)
    a = draw.numbers(first)
    b = draw.numbers((total - first).clip(fmt.emin - fmt.p + 1, fmt.emax))
    assert_all_same_bits(*both(fmt, draw.tensor(a), draw.tensor(b)), what=fmt.name)


def test_rounded_up_to_the_smallest_normal_number() -> None:
    # The rounded product is normal, the exact one is not: the error is -2**-1075, a zero below 0.
    a = torch.tensor([2.0**-1022, -(2.0**-1022)], dtype=torch.float64)
    b = torch.full_like(a, 1 - 2.0**-53)
    p, e = bound(two_prod, FP64)(a, b)
    assert torch.equal(p, a)
    assert torch.signbit(e).tolist() == [True, False]
    assert_all_same_bits(*both(FP64, a, b), what="smallest normal")


def test_overflow_of_the_rounded_product() -> None:
    # An FMA subtracts an infinity from a finite product.
    a = torch.tensor([1e200, -1e200, torch.inf, torch.nan], dtype=torch.float64)
    b = torch.full_like(a, 1e200)
    p, e = bound(two_prod, FP64)(a, b)
    assert p.tolist()[:3] == [torch.inf, -torch.inf, torch.inf]
    assert e.tolist()[:2] == [-torch.inf, torch.inf]
    assert_all_same_bits(*both(FP64, a, b), what="overflow")
