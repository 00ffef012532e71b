"""Exact: sums and means along other dimensions than the last have the torch executor's bits.

Caught mutants: lanes of a chunk counted one by one; the rest of a block begun anew; a block's
columns written where the first block's are.

Of narrow components: norms that look for a scale, which they need not, and then turn.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.kernels import registry
from tests.helpers import assert_all_same_bits
from tests.kernels.test_scan import _numbers
from tests.mcf.expansions.inputs import hard

# No whole chunk, some and a rest, several blocks; a tile that is not full; an outer dimension.
SHAPES = [((700, 50), 0), ((2600, 17), 0), ((40000, 16), 0), ((3, 300, 40), 1), ((2, 5, 99, 33), 1)]


def _same(x: Any, dim: Any, *names: str) -> None:
    for name in names or ("sum", "mean"):
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


def _narrow(dtype: torch.dtype, terms: int, shape: tuple[int, ...]) -> Any:
    count = torch.Size(shape).numel()
    return mcf.MCFTensor([c.reshape(shape) for c in hard(dtype, terms, count, seed=count)])


@pytest.mark.parametrize(
    ("dtype", "terms"),
    [
        (torch.float32, 2),
        pytest.param(torch.bfloat16, 2, marks=pytest.mark.slow),
        pytest.param(torch.float16, 3, marks=pytest.mark.slow),
        pytest.param(torch.float32, 4, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_narrow_components(dtype: torch.dtype, terms: int) -> None:
    for shape, dim in SHAPES[1:4] if terms == 2 else SHAPES:
        _same(_narrow(dtype, terms, shape), dim, "sum", "norm")


@pytest.mark.usefixtures("turns_nothing")
def test_narrow_columns_stay_where_they_are() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = _narrow(dtype, 2, (700, 50))
        x.sum(0), x.norm(dim=0), x.var(0)


@pytest.fixture
def turns_nothing(monkeypatch: Any) -> None:
    """Rows in place of columns are an error."""

    def refused(*given: Any) -> None:
        raise AssertionError("columns were turned")

    monkeypatch.setattr(registry, "fold", refused)
