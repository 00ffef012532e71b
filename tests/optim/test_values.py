"""Values of two float64 numbers are rounded once; a mutant rounds to float32 on the way."""

from __future__ import annotations

import math

import pytest
import torch

from mcf.optim.storage import values
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP16, FP32, FP64, random


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_values_round_once(dtype: torch.dtype) -> None:
    # Halfway between two numbers, and by 2**-60 off it: float32 alone would call all of them ties.
    base = random(300, dtype, 1).double()
    up = torch.nextafter(base.to(dtype), torch.full((300,), math.inf, dtype=dtype)).double()
    middle = (base + up) / 2
    for rest in (2.0**-60, -(2.0**-60), 0.0):
        e = torch.full_like(middle, rest)
        found = values.rounded((middle, e), dtype).double()
        expected = torch.where(e > 0, up, base)
        if rest == 0:
            expected = torch.where(found == base, base, up)
            last = found.to(dtype).view(torch.int16 if dtype.itemsize == 2 else torch.int32)
            assert (last & 1 == 0).all(), "ties to even"
        assert_same_bits(found, expected)


def test_values_of_special_numbers() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e39, 1e-46, 5e-324], dtype=FP64)
    for dtype in (BF16, FP32):
        assert_same_bits(values.rounded(values.exact(x), dtype), x.to(dtype))
    high, low = torch.tensor([1.0]), torch.tensor([2.0**-80])
    s, e = values.exact(high, low)
    assert (s.item(), e.item()) == (1.0, 2.0**-80)
