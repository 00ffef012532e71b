"""The loop of Jacobi's sweeps has the bits of plain torch operations."""

from __future__ import annotations

import itertools

import pytest
import torch

from mcf.linalg import rotations
from tests.helpers.everyday import everyday
from tests.mcf.linalg.test_elimination_loops import F64, assert_same_bits, components

TOLERANCE = 2.0**-49
SHAPES = [(1, 1, 3), (2, 2, 1), (2, 3, 3), (1, 9, 14), (3, 6, 21)]


@pytest.mark.parametrize(
    ("terms", "shape"),
    everyday(
        itertools.product((1, 2, 3, 4), SHAPES), lambda k, s: k == 1 or (k == 2 and s[1] == 3)
    ),
)
def test_sweeps(terms: int, shape: tuple[int, int, int]) -> None:
    """Even and odd numbers of rows and of columns, and columns that only follow."""
    a = components(F64, terms, *shape)
    tolerance = 2.0 ** (4 - 53 * terms)
    for width in sorted({shape[2], max(1, shape[2] - 3)}):
        assert_same_bits(lambda width=width: rotations.orthogonalize(a, width, tolerance))


@pytest.mark.parametrize(
    "rows",
    [
        [[0.0, -0.0], [0.0, 0.0]],
        [[1.0, 1.0], [1.0, 1.0]],
        [[1.0, 2.0], [1.0, -2.0]],
        [[2.0**-251, 0.0], [1.0, 2.0**-300]],
        [[1.0, 2.0], [torch.nan, -2.0]],
        [[torch.inf, 2.0], [1.0, -2.0]],
    ],
    ids=["zeros", "parallel", "of_one_norm", "vanishing", "not_a_number", "infinite"],
)
def test_special_values(rows: list[list[float]]) -> None:
    a = (torch.tensor(rows, dtype=F64)[None],)
    assert_same_bits(lambda: rotations.orthogonalize(a, 2, TOLERANCE))


def test_rows_that_are_orthogonal_up_to_the_tolerance_stay() -> None:
    """The mutant is another tolerance, by which the last bits differ."""
    a = components(F64, 1, 1, 8, 8)
    (x,), done = rotations.orthogonalize(a, 8, TOLERANCE)
    (again,), _ = rotations.orthogonalize((x,), 8, TOLERANCE)
    (finer,), _ = rotations.orthogonalize((x,), 8, TOLERANCE * 2.0**-8)
    assert done
    assert torch.equal(x, again)
    assert not torch.equal(x, finer)
