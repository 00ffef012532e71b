"""Exact: sums, scans and extremes of narrow matrices and short rows have the torch executor's bits.

Caught mutants: lanes of a piece of all columns begun anew; a column's rest in another's lanes; the
columns of the second matrix taken for the first's; results turned before the rows are done; keys
in the place of numbers; an odd row in the middle left out of products; a tile's columns that begin
where the first tile's do.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf import reductions
from mcf.reductions import rows
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.kernels.test_scan import _numbers

pytest.importorskip("numba", reason="needs Numba")

# Chunks and a rest in all columns of a piece, two columns, several blocks, a tile that is not full.
SUMS = [((3300, 10), 0), ((33000, 2), 0), ((2, 1100, 31), 1), ((5000, 7), 1), ((1500, 24), 1)]


def _flat(found: Any) -> list[Tensor]:
    if isinstance(found, tuple):
        return [c for x in found for c in _flat(x)]
    return [*found.components] if isinstance(found, mcf.MCFTensor) else [found]


def _same(x: Any, dim: int, *names: str) -> None:
    for name in names:
        named = {"dim": dim}
        got = _flat(getattr(x, name)(**named))
        with mcf.executor("torch"):
            expected = _flat(getattr(x, name)(**named))
        assert_all_same_bits(got, expected, f"{name} of {list(x.shape)}")


def _matrix(terms: int, shape: tuple[int, ...]) -> Any:
    x = _numbers(terms, torch.Size(shape).numel()).reshape(shape)
    for k, value in ((1234, float("inf")), (4321, float("nan"))):
        for c in x.components:
            c.view(-1)[k] = 0.0
        x.components[0].view(-1)[k] = value
    return x


@pytest.mark.parametrize("terms", everyday([2, 1, 3, 4], [2]))
def test_sums(terms: int) -> None:
    for shape, dim in SUMS if terms > 2 else SUMS[::2]:
        _same(_matrix(terms, shape), dim, "sum", "mean")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [2, 3])
def test_products_of_short_rows(terms: int) -> None:
    for shape in ((5000, 7), (33000, 1), (1500, 24)):
        _same(_numbers(terms, torch.Size(shape).numel()).reshape(shape), 1, "norm", "var", "sum")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3])
def test_norms_of_columns(terms: int) -> None:
    # Numbers that need no scale, numbers whose squares are out of range, and both.
    for shape, dim in (((3300, 10), 0), ((3, 1100, 33), 1)):
        x = _numbers(terms, torch.Size(shape).numel()).reshape(shape)
        for scale in (2.0**-400, 1.0, 2.0**400):
            _same(x * scale, dim, "norm")
        x.components[0].view(-1)[777] = 2.0**-600
        for c in x.components[1:]:
            c.view(-1)[777] = 0.0
        _same(x, dim, "norm")


# Columns by themselves and in tiles, short rows that are turned, one that is not; one element.
PRODUCTS = [((9, 70), 0), ((3, 12, 130), 1), ((500, 10), 0), ((70, 33), 1), ((3, 700), 1)]
PRODUCTS += [((2, 1, 40), 1), ((130, 1), 1)]


@pytest.mark.parametrize("terms", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_products(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_MANY", 1)
    for shape, dim in PRODUCTS:
        x = _numbers(terms, torch.Size(shape).numel()).reshape(shape)
        found = reductions.prod(x.components, dim)
        with mcf.executor("torch"):
            expected = reductions.prod(x.components, dim)
        assert_all_same_bits(found, expected, f"prod of {list(shape)}")


TASKS = "cumsum cumprod cummax cummin max argmin".split()
MATRICES = [((600, 10), 0), ((3, 900, 2), 1), ((2, 350, 16), 1)]


@pytest.mark.parametrize(
    ("terms", "names"),
    everyday([(2, TASKS[::2]), (2, TASKS), (3, TASKS)], [(2, TASKS[::2])]),
)
def test_rows_that_are_columns(terms: int, names: list[str]) -> None:
    for shape, dim in MATRICES if len(names) == len(TASKS) else MATRICES[1:2]:
        _same(_matrix(terms, shape), dim, *names)


@pytest.mark.slow
def test_threads_share_pieces() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        x = _matrix(2, (3, 9000, 3))
        _same(x, 1, "sum", "cumsum", "cummax", "max")
    finally:
        torch.set_num_threads(threads)
