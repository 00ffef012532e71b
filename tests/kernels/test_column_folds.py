"""Exact: sums and means along other dimensions than the last have the torch executor's bits.

Caught mutants: lanes of a chunk counted one by one; the rest of a block begun anew; a block's
columns written where the first block's are.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits
from tests.kernels.test_scan import _numbers

# No whole chunk, some and a rest, several blocks; a tile that is not full; an outer dimension.
SHAPES = [((700, 50), 0), ((2600, 17), 0), ((40000, 16), 0), ((3, 300, 40), 1), ((2, 5, 99, 33), 1)]


def _same(x: Any, dim: Any) -> None:
    for name in ("sum", "mean"):
        got = getattr(x, name)(dim)
        with mcf.executor("torch"):
            expected = getattr(x, name)(dim)
        assert got.shape == expected.shape
        assert_all_same_bits(got.components, expected.components, f"{name} of {list(x.shape)}")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_all_terms(terms: int) -> None:
    for shape, dim in SHAPES:
        x = _numbers(terms, torch.Size(shape).numel()).reshape(shape)
        _same(x, dim)
        x.components[0].view(-1)[12345] = float("inf")
        x.components[-1].view(-1)[4321] = float("nan")
        _same(x, dim)
    x = _numbers(terms, 40 * 30 * 40).reshape(40, 30, 40)
    _same(x, (0, 1))
    _same(x, (0, 2))


@pytest.mark.slow
def test_threads_have_lanes_of_their_own() -> None:
    x = _numbers(2, 300 * 700).reshape(300, 700)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        _same(x, 0)
    finally:
        torch.set_num_threads(threads)
