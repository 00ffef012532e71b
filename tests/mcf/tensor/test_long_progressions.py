"""Bit for bit: long progressions, whose sums are kernels, have the numbers of torch's steps."""

from __future__ import annotations

import pytest
import torch

import mcf
from mcf.tensor import progressions
from tests.helpers import assert_all_same_bits

# float32 is computed in two components of float64, the others in four.
FORMATS = [(torch.float32, 2), (torch.float64, 2), (torch.float64, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "terms"), FORMATS, ids=["fp32-2", "fp64-2", "fp64-3"])
def test_kernels_have_the_bits(
    dtype: torch.dtype, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = progressions._MANY + 77
    many = mcf.linspace("0.1", 3, count, terms=terms, dtype=dtype)
    monkeypatch.setattr(progressions, "_MANY", count + 1)
    few = mcf.linspace("0.1", 3, count, terms=terms, dtype=dtype)
    assert_all_same_bits(many.components, few.components, "the last bits")
