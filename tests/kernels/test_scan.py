"""Exact: running sums and products of a loop over chunks have the bits of the tree by levels.

Caught mutants: an odd last element left out, on a level or in `up`; what runs up to a whole chunk
combined with the chunk alone where the chunk ends a longer block; rows that begin in the room of
others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.kernels import operations
from mcf.kernels.numba.loops.rows.running import CHUNK
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard


def _same(x: Any, name: str, dim: int) -> None:
    with mcf.executor("torch"):
        expected = getattr(x, name)(dim)
    got = getattr(x, name)(dim)
    assert_all_same_bits(got.components, expected.components, f"{name} of {list(x.shape)}")


def _numbers(terms: int, count: int) -> Any:
    """Hard numbers of sizes 1/2 to 2, of which neither sums nor products leave the range soon."""
    parts = hard(torch.float64, terms, count, 3)
    usual = (parts[0] != 0) & parts[0].isfinite() & (parts[0].abs() > 2.0**-900)
    _, exponent = torch.frexp(torch.where(usual, parts[0], 1.0))
    exponent = exponent.long() - torch.arange(count) % 2
    scaled = operations.ldexp(tuple(torch.where(usual, c, 0.0) for c in parts), -exponent)
    return mcf.MCFTensor([torch.where(usual, scaled[0], 1.0), *scaled[1:]])


def _check(terms: int, name: str) -> None:
    special = mcf.MCFTensor(hard(torch.float64, terms, 100, 3))
    _same(special, name, 0)
    x = _numbers(terms, 9 * CHUNK)
    assert bool(getattr(x, name)(0).components[-1].count_nonzero() > 4 * CHUNK) or terms == 1
    assert bool(getattr(x, name)(0).isfinite().all())
    for count in (1, 2, 3, 7, 33, 100, CHUNK - 1, CHUNK, CHUNK + 1, 6 * CHUNK, 9 * CHUNK - 5):
        _same(x[:count], name, 0)
    _same(x[: 6 * CHUNK].reshape(4, -1), name, 1)
    _same(x[: 6 * CHUNK].reshape(-1, 4, 3), name, 0)
    _same(x[:66].flip(0).reshape(11, 6)[:, :4], name, -1)


@pytest.mark.slow
def test_running_sums_of_pairs() -> None:
    _check(2, "cumsum")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_all_terms(name: str, terms: int) -> None:
    _check(terms, name)


def test_single_floats_are_summed_as_pairs() -> None:
    """Mutant: float64 numbers of one component in a loop of their own, rounded at each step."""
    _same(_numbers(1, 300), "cumsum", 0)


def test_threads_have_room_of_their_own() -> None:
    x = _numbers(2, 140_000).reshape(7, -1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        _same(x, "cumsum", 1)
    finally:
        torch.set_num_threads(threads)
