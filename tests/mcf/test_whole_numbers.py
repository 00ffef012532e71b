"""Whole numbers as integers: the bits of a sum, up to the largest that it has.

*Exact*. Mutants caught: another addend, which is wrong on one side of 0, and a limit beyond what is
tried.
"""

from __future__ import annotations

import pytest
import torch

from mcf.elementary.format import computing_in
from mcf.elementary.working import integer
from mcf.kernels import FP32, FP64
from mcf.kernels.formats import Format


@pytest.mark.parametrize(("fmt", "bits"), [(FP64, 50), (FP32, 21)], ids=["fp64", "fp32"])
def test_whole_numbers(fmt: Format, bits: int) -> None:
    ends = [s * ((1 << k) + d) for k in range(bits) for s in (1, -1) for d in (-1, 0, 1)]
    values = torch.tensor([*ends, 1 << bits, -(1 << bits)], dtype=torch.int64)
    with computing_in(fmt):
        found = integer(values.to(fmt.dtype))
    assert found.dtype == torch.int64
    assert torch.equal(found, values)
    negative = torch.tensor([-0.0], dtype=fmt.dtype)
    assert integer(negative).item() == 0
