"""Exact: running sums have the bits of torch's tree where some chunks are not of usual numbers.

Caught mutants: -0, lower components, huge numbers or what runs before not looked at.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.kernels.numba.loops.rows.running import CHUNK
from tests.kernels.test_scan import _numbers, _same


def _with(x: Any, at: int, *components: float) -> Any:
    parts = [c.clone() for c in x.components]
    for part, value in zip(parts, components, strict=False):
        part[at] = value
    return mcf.MCFTensor(parts)


def _check(terms: int, name: str) -> None:
    x = _numbers(terms, 3 * CHUNK + 5)
    for at in (0, 1, CHUNK - 1, CHUNK, CHUNK + 18, 3 * CHUNK + 3):
        for special in (float("inf"), float("nan"), -0.0):
            _same(_with(x, at, special, *[0.0] * (terms - 1)), name, 0)
    # Lower components of any kind, and sums beyond the range on either side.
    _same(_with(x, CHUNK + 7, 1.0, float("nan")), name, 0)
    _same(_with(x, CHUNK + 7, 1.0, float("-inf")), name, 0)
    huge = 2.0**1023
    _same(_with(_with(_with(x, 6, huge), 7, huge), CHUNK, -huge), name, 0)
    _same(_with(_with(x, 6, huge), CHUNK + 2, huge), name, 0)
    # What cancels: all of it, to +0 and to what is left of the low components.
    low = mcf.MCFTensor([c.repeat_interleave(2) for c in x[: CHUNK + 9].components])
    sign = 1.0 - 2.0 * (torch.arange(2 * CHUNK + 18) % 2)
    _same(mcf.MCFTensor([c * sign for c in low.components]), name, 0)
    # Zeros of both signs, -0 alone up to the second chunk.
    zeros = torch.full((2 * CHUNK + 20,), -0.0, dtype=torch.float64)
    for first in (0, 1, CHUNK, CHUNK + 3, 2 * CHUNK + 20):
        leading = torch.where(torch.arange(len(zeros)) < first, zeros, 0.0)
        _same(
            mcf.MCFTensor([leading, *(torch.zeros_like(zeros) for _ in range(terms - 1))]), name, 0
        )
        _same(mcf.MCFTensor([leading.flip(0), *(zeros.clone() for _ in range(terms - 1))]), name, 0)
    # Strided, transposed.
    rows = _with(x, CHUNK, -0.0)[: 3 * CHUNK].reshape(3, CHUNK)
    _same(rows.mT, name, 0)
    _same(rows[:, ::2], name, 1)
    _same(rows[:, 5:70], name, 1)


def test_running_sums_of_pairs() -> None:
    _check(2, "cumsum")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_all_terms(name: str, terms: int) -> None:
    _check(terms, name)
