"""Exact: variances and deviations, whose differences are in no tensor, have the torch
executor's bits.

Caught mutants: the first row's mean for all rows, or the next tile's; a narrow matrix's means
beside the second of its elements alone; lanes of a piece that begin beyond its rest; narrow
components added up as they come.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf import reductions
from tests.helpers import assert_all_same_bits
from tests.kernels.test_scan import _numbers
from tests.mcf.expansions.inputs import hard

pytest.importorskip("numba", reason="needs Numba")

# Several blocks, a chunk and a rest, short rows; wide columns, a tile that is not full; narrow
# matrices with a rest, with and without chunks, and several of them.
ROWS = [((2, 17000), 1), ((30, 1100), 1), ((5000, 7), 1)]
COLUMNS = [((700, 50), 0), ((40, 300, 3), 1), ((3300, 10), 0), ((2, 530, 31), 1)]


def _same(x: Any, dim: int, *names: str) -> None:
    # On components: of few numbers tensors have plans.
    for name in names:
        got = getattr(reductions, name)(x.components, dim)
        with mcf.executor("torch"):
            expected = getattr(reductions, name)(x.components, dim)
        assert_all_same_bits(got, expected, f"{name} of {list(x.shape)}")


@pytest.mark.parametrize("case", [ROWS[1], COLUMNS[1], COLUMNS[2]])
def test_variances(case: tuple[tuple[int, ...], int]) -> None:
    shape, dim = case
    _same(_numbers(2, torch.Size(shape).numel()).reshape(shape), dim, "var")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [2, 3])
def test_all_layouts(terms: int) -> None:
    for shape, dim in (*ROWS, *COLUMNS):
        _same(_numbers(terms, torch.Size(shape).numel()).reshape(shape), dim, "var", "std")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2])
def test_special_values_and_scales(terms: int) -> None:
    for shape, dim in (ROWS[1], COLUMNS[1], COLUMNS[3]):
        x = _numbers(terms, torch.Size(shape).numel()).reshape(shape)
        for scale in (2.0**-500, 2.0**500):
            _same(x * scale, dim, "std")
        for k, value in ((1234, float("inf")), (4321, float("nan"))):
            for c in x.components:
                c.view(-1)[k] = 0.0
            x.components[0].view(-1)[k] = value
        _same(x, dim, "var", "std")


def _narrow(dtype: torch.dtype, terms: int, shape: tuple[int, ...]) -> Any:
    """Ties, and elements whose components come in the other order."""
    count = torch.Size(shape).numel()
    first, *others = hard(dtype, terms, count, seed=count)
    turned = torch.arange(count) % 7 == 0
    below = [torch.where(turned, first, c) for c in others]
    first = torch.where(turned, others[-1], first) if others else first
    # Away from the ends of the range, where every variance is infinite.
    kept = first.double().abs().clamp(2.0**-20, 2.0**20) == first.double().abs()
    return mcf.MCFTensor([torch.where(kept, c, 1.0).reshape(shape) for c in (first, *below)])


@pytest.mark.parametrize(
    ("dtype", "terms"),
    [
        (torch.float32, 2),
        pytest.param(torch.float32, 1, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, 2, marks=pytest.mark.slow),
        pytest.param(torch.float16, 3, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_narrow_components(dtype: torch.dtype, terms: int) -> None:
    for shape, dim in (ROWS[0], ROWS[1], COLUMNS[0], COLUMNS[2]):
        _same(_narrow(dtype, terms, shape), dim, "var", "std")
