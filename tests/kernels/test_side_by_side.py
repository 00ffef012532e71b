"""Exact: what runs along rows that lie side by side has the bits of torch's tree.

Caught mutants: a row's place among its neighbours counted on where the dimension ends; -0 taken for
a usual number; rows usual again after what was not; of equal extremes of a long row any; a long
row's last elements left out.
"""

from __future__ import annotations

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits
from tests.kernels.test_scan import _numbers, _same

# Shapes and the dimension: neighbours in memory, all or some of them, none; a piece that is not
# full; few long rows, which are done one by one. More elements than go by plan.
SHAPES = [((127, 130), 0), ((3, 80, 70), 1), ((140, 11, 11), 1), ((1700, 10), 1), ((8500, 2), 0)]

COLUMNS = 1900


def _check(terms: int, name: str) -> None:
    for shape, dim in SHAPES:
        count = torch.Size(shape).numel()
        _same(_numbers(terms, count).reshape(shape), name, dim)


def _specials(terms: int, name: str) -> None:
    for special in (float("inf"), float("nan"), -0.0, 2.0**1023):
        x = _numbers(terms, 9 * COLUMNS)
        for at in (0, COLUMNS * 4 + 70, COLUMNS * 8 + 499):
            x.components[0][at] = special
        _same(x.reshape(9, COLUMNS), name, 0)
        _same(x.reshape(COLUMNS, 9), name, 1)
    zeros = torch.full((9, COLUMNS), -0.0, dtype=torch.float64)
    zeros[5, ::2] = 0.0
    _same(mcf.MCFTensor([zeros.clone() for _ in range(terms)]), name, 0)
    low = _numbers(terms, 9 * COLUMNS)
    for c in low.components[1:]:
        c[COLUMNS * 3 + 5] = float("-inf")
    _same(low.reshape(9, COLUMNS), name, 0)


def test_running_sums_of_pairs() -> None:
    _check(2, "cumsum")
    _specials(2, "cumsum")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_all(terms: int, name: str) -> None:
    _check(terms, name)
    _specials(terms, name)


def _extremes(terms: int, names: list[str]) -> None:
    """With equal numbers, zeros of both signs, NaN and what differs in the last component."""
    for shape, dim in [*SHAPES, ((40, 500), 1), ((3, 6001), 1)]:
        generator = torch.Generator().manual_seed(5)
        count = torch.Size(shape).numel()
        parts = [torch.randint(-4, 4, (count,), generator=generator).double() for _ in range(terms)]
        parts = [c * 2.0 ** (-60 * k) for k, c in enumerate(parts)]
        parts[0] *= 1.0 + (torch.arange(count) > count // 2)
        parts[0][count // 3 :: 997] = float("nan")
        parts[0][count // 5 :: 1013] = -0.0
        for k in (0, -1):
            parts[k][::511] *= 1.5
        parts[0].view(-1, shape[-1])[::3, -1] = 16.0
        x = mcf.MCFTensor([c.reshape(shape) for c in parts])
        for name in names:
            got = getattr(x, name)(dim)
            with mcf.executor("torch"):
                expected = getattr(x, name)(dim)
            assert torch.equal(got.indices, expected.indices), (name, shape)
            assert_all_same_bits(got.values.components, expected.values.components, name)


@pytest.mark.slow
def test_extremes_of_pairs() -> None:
    _extremes(2, ["cummax", "max"])


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_all_extremes(terms: int) -> None:
    _extremes(terms, ["cummax", "cummin", "max", "min"])


@pytest.mark.slow
def test_threads_have_room_of_their_own() -> None:
    x = _numbers(2, 140_000).reshape(7, 10, 2000)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        _same(x, "cumsum", 1)
    finally:
        torch.set_num_threads(threads)
