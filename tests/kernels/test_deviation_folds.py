"""Exact: variances and deviations, whose differences are in no tensor, have the torch
executor's bits.

Caught mutants: the first row's mean for all rows, or the next tile's; a narrow matrix's means
beside the second of its elements alone; lanes of a piece that begin beyond its rest.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf import reductions
from tests.helpers import assert_all_same_bits
from tests.kernels.test_scan import _numbers

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
