"""Exact: what native steps make of pivots is what exchanges one by one make of lists.

Caught mutants: pivots from 0; the inverse permutation; a zero's sign lost; NaN with a sign of its
own; a matrix that begins with the order of the one before.
"""

from __future__ import annotations

import math
from array import array

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_same_bits

pytest.importorskip("numba", reason="needs Numba")

from mcf.kernels.pivots import Narrowed, Permutations, Signs
from mcf.kernels.program import Launch, Program

BATCH, ROWS = 40, 5
FORMATS = [torch.float64, torch.float32]


def _pivots(columns: int) -> list[list[int]]:
    """Each from its own row on, some of them in place."""
    return [
        [j + 1 + (7 * k + 3 * j * j) % (ROWS - j) for j in range(columns)] for k in range(BATCH)
    ]


def _flat(pivots: list[list[int]]) -> array[int]:
    return array("q", [p for each in pivots for p in each])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("columns", [ROWS, 3])
def test_permutations(dtype: torch.dtype, columns: int) -> None:
    pivots = _pivots(columns)
    expected = torch.zeros(BATCH, ROWS, ROWS, dtype=dtype)
    for matrix, exchanges in zip(expected, pivots, strict=True):
        order = [*range(ROWS)]
        for j, other in enumerate(exchanges):
            order[j], order[other - 1] = order[other - 1], order[j]
        for column, row in enumerate(order):
            matrix[row, column] = 1.0
    call = Permutations(BATCH, ROWS, columns, dtype.itemsize)
    program = Program.of([Launch(call, [0, 1])], 2)
    assert program is not None
    given = _flat(pivots)
    for _ in range(2):
        found = torch.zeros_like(expected)
        program([given.buffer_info()[0], found.data_ptr()])
        assert_same_bits(found, expected, f"{dtype}, {columns} pivots")


def _diagonal(k: int) -> list[float]:
    values = [1.5, -0.0, -2.0, math.inf, -math.inf, math.nan, 0.0, -5e-324, 3.0, -1.0]
    return [values[(k * (k + j) + 3 * j) % len(values)] for j in range(ROWS)]


@pytest.mark.parametrize("dtype", FORMATS)
def test_signs(dtype: torch.dtype) -> None:
    pivots = _pivots(ROWS)
    matrices = torch.full((BATCH, ROWS, ROWS), -7.0, dtype=dtype)
    for k, matrix in enumerate(matrices):
        # A float32 of -5e-324 would be 0.
        matrix.diagonal().copy_(torch.tensor(_diagonal(k), dtype=torch.float64).to(dtype))
    signs = []
    for matrix, exchanges in zip(matrices, pivots, strict=True):
        sign = 1.0
        for j, (x, other) in enumerate(zip(matrix.diagonal().tolist(), exchanges, strict=True)):
            sign *= (x > 0) - (x < 0)
            sign = sign if other == j + 1 else -sign
        signs.append(sign)
    expected = torch.tensor(signs, dtype=dtype)
    program = Program.of([Launch(Signs(BATCH, ROWS, 3, dtype.itemsize), [0, 1, 2, 3, 4])], 5)
    assert program is not None
    given = _flat(pivots)
    found: list[Tensor] = [torch.full((BATCH,), 9.0, dtype=dtype) for _ in range(3)]
    program([matrices.data_ptr(), given.buffer_info()[0], *(x.data_ptr() for x in found)])
    assert {-1.0, 0.0, 1.0} <= {*signs}
    for got, want in zip(found, [expected, *[torch.zeros_like(expected)] * 2], strict=True):
        assert_same_bits(got, want, str(dtype))


def test_numbers_of_fewer_bits() -> None:
    given = array("q", [0, 1, 2**31 - 1, -1, -(2**31)])
    found = torch.empty(len(given), dtype=torch.int32)
    program = Program.of([Launch(Narrowed(len(given)), [0, 1])], 2)
    assert program is not None
    program([given.buffer_info()[0], found.data_ptr()])
    assert found.tolist() == [*given]
