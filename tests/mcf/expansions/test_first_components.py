"""Bits: extremes of rows that first components decide are those of all components.

Caught mutants: a margin of no place (two forms of one number, of which the second has the larger
first component); a NaN that a later element takes the place of; what is left over of a row's turns
left out; a lane's place without its distance from the first; the sign of "lowest" forgotten for
elements after the first; rows that are left numbered by their place among those.
"""

from __future__ import annotations

import math

import pytest
import torch

import mcf
from mcf.expansions.ops.reductions import extremes
from mcf.kernels import registry
from tests.helpers import assert_all_same_bits

# Rows whose elements share turns (inner of 1 and more), short rows that are turned, wide tiles.
SHAPES = [(9, 277), (70, 21), (3, 130, 5), (2, 9, 700), (130, 3, 2), (5, 1, 40), (2, 4099)]


def _crowd(shape: tuple[int, ...], dtype: torch.dtype, terms: int, seed: int) -> mcf.MCFTensor:
    """Few rows have two elements near their largest or smallest; those have two forms of one."""
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape)
    first = torch.randperm(count, generator=generator).to(torch.float64) - count // 2
    # Whole numbers that the narrow formats have, and a fraction that keeps them apart from 0.
    digits = -round(math.log2(torch.finfo(dtype).eps)) + 1
    first = (first * 2.0**20).to(dtype).view(shape)
    low = first * 2.0 ** -(digits + 2) * torch.randint(-1, 2, shape, generator=generator)
    parts = [first, *(low * 2.0 ** -(digits * k) for k in range(terms - 1))]
    return mcf.MCFTensor([p.to(dtype) for p in parts])


def _same(x: mcf.MCFTensor, *dims: int) -> None:
    for dim in dims or range(x.ndim):
        for largest in (True, False):
            found = extremes._by_first(x, dim, largest, moved=True)
            if found is None:
                assert x.dtype is not torch.float64, (x.shape, dim)
                continue
            index, numbers = found
            assert torch.equal(index, extremes._among(x, dim, largest)), (x.shape, dim, largest)
            for c, v in zip(x.components, numbers or (), strict=False):
                assert_all_same_bits([v], [c.gather(dim, index)])


@pytest.fixture
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    if registry.executor_for(torch.device("cpu")) != "numba":
        pytest.skip("the loops are Numba's")
    monkeypatch.setattr(extremes, "_MANY", 1)


@pytest.mark.parametrize(
    ("dtype", "terms"),
    [
        (torch.float64, 2),
        (torch.float32, 2),
        pytest.param(torch.float64, 4, marks=pytest.mark.slow),
    ],
)
def test_rows_of_any_layout(dtype: torch.dtype, terms: int, all_sizes: None) -> None:
    for seed, shape in enumerate(SHAPES):
        _same(_crowd(shape, dtype, terms, seed))


@pytest.mark.parametrize("length", [12, 130, 700])
def test_rows_that_are_left_to_the_others(length: int, all_sizes: None) -> None:
    for dim in (0, 1):
        x = _crowd((64, length) if dim else (length, 64), torch.float64, 2, 7)
        first, second = (c.movedim(dim, 0) for c in x.components)
        unit = 2.0**40 * torch.finfo(torch.float64).eps
        # One number in two forms, of which the later has the larger first component; of the
        # smallest the later has the smaller one.
        for at, sign in ((3, 1.0), (5, -1.0)):
            first[2, at], second[2, at] = sign * 2.0**40, sign * unit / 2
            first[9, at], second[9, at] = sign * (2.0**40 + unit), -sign * unit / 2
        # NaN before and after what is larger, infinities.
        first[4, 0] = first[1, 1] = math.nan
        first[0, 2] = first[7, 2] = math.inf
        first[6, 6] = -math.inf
        _same(x, dim)


def test_more_ties_than_are_worth_it(all_sizes: None) -> None:
    first = torch.arange(64, dtype=torch.float64).repeat(64, 2)
    x = mcf.MCFTensor([first, torch.zeros_like(first)])
    assert extremes._by_first(x, 1, True) is None
    assert torch.equal(x.argmax(1), torch.full((64,), 63))


def test_subnormal_neighbours(all_sizes: None) -> None:
    x = torch.arange(1.0, 101.0, dtype=torch.float64).repeat(40, 1) * 2.0**-1060
    x[0] *= 2.0**-14
    _same(mcf.MCFTensor([x, torch.zeros_like(x)]), 1)
