"""Exact: a loop that sorts has the order and the numbers of torch's stable sorts of components.

Caught mutants: zeros of two signs or NaN as integers of their own, runs of NaN sorted by lower
components, runs that lost bits sorted by the next component, places without their run's first one,
bins of long rows that begin where the next one does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.kernels.numba.loops.rows.row_loops import LONG
from mcf.kernels.numba.loops.rows.sorting import FEW, PIECE
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

# Several times as many as there are kinds of hard numbers.
MANY = 256


def _numbers(dtype: torch.dtype, terms: int, count: int) -> Any:
    """Hard numbers, many of one first component, every one some times, zeros, infinities, NaN."""
    parts = hard(dtype, terms, 64, 5)
    one = torch.ones(64, dtype=dtype)
    alike = [one, *(c * (torch.finfo(dtype).eps / 2) for c in _small(parts))]
    ends = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan], dtype=dtype)
    given = [
        torch.cat([c, a, ends if k == 0 else ends * 0])
        for k, (c, a) in enumerate(zip(parts, alike, strict=True))
    ]
    given[1:] = [torch.nan_to_num(c) for c in given[1:]]
    some = torch.randint(len(given[0]), (count,), generator=torch.Generator().manual_seed(count))
    return mcf.MCFTensor([c[some] for c in mcf.kernels.operations.renormalize(tuple(given), terms)])


def _small(parts: Any) -> list[torch.Tensor]:
    """Lower components of what is about 1, of few different values."""
    kinds = torch.arange(len(parts[0])) % 5 - 2
    return [kinds.to(parts[0].dtype) * 2.0 ** (-60 * k - 1) for k in range(len(parts) - 1)]


def _check(dtype: torch.dtype, terms: int, *shapes: tuple[int, ...]) -> None:
    for shape in shapes:
        x = _numbers(dtype, terms, math.prod(shape)).reshape(shape)
        for dim in range(len(shape)):
            for descending in (False, True):
                with mcf.executor("torch"):
                    values, index = x.sort(dim, descending=descending)
                got, places = x.sort(dim, descending=descending)
                assert torch.equal(places, index)
                assert_all_same_bits(got.components, values.components, f"{shape} {dim}")
                assert torch.equal(x.argsort(dim, descending=descending), index)


def test_pairs() -> None:
    _check(
        torch.float64,
        2,
        (FEW,),
        (FEW + 1,),
        (1,),
        (2,),
        (9,),
        (40,),
        (MANY,),
        (3 * MANY,),
        (5, 33),
        (2, MANY),
    )


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_all_formats(dtype: torch.dtype, terms: int) -> None:
    _check(dtype, terms, (1,), (9,), (3 * MANY + 1,), (20, 7), (2, 3, MANY))


def test_a_digit_of_one() -> None:
    """All but one share the digits of all but the last bits."""
    for place in (0, 1, 299):
        first = torch.ones(300, dtype=torch.float64)
        first[place] = 2.0**40
        x: Any = mcf.MCFTensor([first, torch.zeros_like(first)])
        assert x.argsort().tolist() == [*(k for k in range(300) if k != place), place]


def _wide(count: int) -> list[torch.Tensor]:
    """First components whose integers are far apart, close together, or nearly all the same."""
    generator = torch.Generator().manual_seed(count)
    some = torch.randint(-(2**52), 2**52, (count,), generator=generator).double()
    near = 1 + torch.randint(count // 4, (count,), generator=generator).double() * 2.0**-52
    # Numbers between two that are far away lose the bits that tell them apart.
    between = near.clone()
    between[0], between[count // 2] = 1e300, -1e300
    powers = torch.ldexp(torch.ones(count).double(), torch.arange(count) * 37 % 2000 - 1000)
    ordered = some.sort().values
    return [some, near, between, powers * some.sign(), ordered, ordered.flip(0), some.sign()]


@pytest.mark.parametrize("count", [3 * MANY, pytest.param(LONG + 7, marks=pytest.mark.slow)])
def test_ranges_of_integers(count: int) -> None:
    kinds = torch.arange(count).double() * 7 % 5 * 2.0**-60
    for first in _wide(count):
        parts = [first, first * kinds]
        keys = [c.numpy() for c in reversed(parts)]
        for descending in (False, True):
            # Stable, and pairs like these are canonical.
            index = torch.from_numpy(np.lexsort([-k for k in keys] if descending else keys))
            got, places = mcf.MCFTensor(parts).sort(descending=descending)
            assert torch.equal(places, index)
            assert_all_same_bits(got.components, [c[index] for c in parts])


def test_threads_have_room_of_their_own() -> None:
    x = _numbers(torch.float64, 2, 7 * 11_000).reshape(7, -1)
    with mcf.executor("torch"):
        expected = x.argsort(1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(x.argsort(1), expected)
        y = _numbers(torch.float64, 2, 2 * (PIECE + LONG)).reshape(2, -1)
        with mcf.executor("torch"):
            expected = y.argsort(1)
        assert torch.equal(y.argsort(1), expected)
    finally:
        torch.set_num_threads(threads)
