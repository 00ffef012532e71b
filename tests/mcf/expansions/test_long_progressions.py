"""Bit for bit: long progressions, whose sums are kernels, have the numbers of torch's steps.

Caught mutants: kernels from the first short one on; never; for another format's numbers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions import progressions
from mcf.kernels import operations
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
    monkeypatch.setattr(progressions, "_MANY", 1 << 60)
    few = mcf.linspace("0.1", 3, count, terms=terms, dtype=dtype)
    assert_all_same_bits(many.components, few.components, "the last bits")


@pytest.mark.usefixtures("on_torch")
def test_short_ones_are_kernels_once_there_were_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progressions, "_asked", Counter())
    monkeypatch.setattr(progressions, "_MANY", 600)
    calls, add = [], operations.add

    def counted(*given: Any) -> Any:
        calls.append(given)
        return add(*given)

    monkeypatch.setattr(operations, "add", counted)

    def made(terms: int) -> tuple[Any, int]:
        calls.clear()
        x = mcf.linspace("0.1", 3, 400, terms=terms, dtype=torch.float64)
        return x, len(calls)

    (first, none), (second, some), (_, others) = made(2), made(2), made(3)
    assert none == others == 0 < some
    assert_all_same_bits(first.components, second.components, "of kernels")
