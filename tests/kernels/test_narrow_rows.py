"""Exact: running sums and products of narrow components, which become wide ones within the loop,
have the torch executor's bits, which converts all of them before and after.

Caught mutants: a chunk read at the place of another; sums of what is not finite, and of -0, by the
network alone; second halves of columns that begin with the number in the middle.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf import reductions
from mcf.reductions import cumulative
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

pytest.importorskip("numba", reason="needs Numba")

# Chunks with a rest, of several rows and of one; columns, and a tile that is not full; those of
# several matrices in one tile; short rows; a few columns, which are turned.
LONG = [((17, 2101), 1), ((34000,), 0)]
BESIDE = [((71, 500), 0), ((3, 300, 40), 1), ((4000, 9), 1)]
TURNED = [((3500, 10), 0)]


def _numbers(dtype: torch.dtype, terms: int, shape: tuple[int, ...], special: bool) -> Any:
    """Ties, components in the other order, subnormal numbers; with what is not finite, and -0."""
    count = torch.Size(shape).numel()
    c = [x.clone() for x in hard(dtype, terms, count, seed=count)]
    if terms > 1:
        turned = torch.arange(count) % 7 == 0
        c[0], c[1] = torch.where(turned, c[1], c[0]), torch.where(turned, c[0], c[1])
    if special:
        for k, value in enumerate((-0.0, float("inf"), float("nan"), -0.0)):
            c[0][k * count // 5 :: 4999] = value
            if k != 1:
                for low in c[1:]:
                    low[k * count // 5 :: 4999] = -0.0
        if terms > 1:
            c[1][count // 3] = float("inf")
    return tuple(x.reshape(shape) for x in c)


def _same(dtype: torch.dtype, terms: int, cases: list[Any], *names: str) -> None:
    for shape, dim in cases:
        for special in (False, True):
            x = _numbers(dtype, terms, shape, special)
            for name in names:
                got = getattr(reductions, name)(x, dim)
                with mcf.executor("torch"):
                    wanted = getattr(reductions, name)(x, dim)
                assert_all_same_bits(got, wanted, f"{name} of {list(shape)} {special}")


@pytest.fixture
def converts_nothing(monkeypatch: Any) -> None:
    """Narrow components as wide tensors are an error, but on the torch executor."""
    usual = cumulative.widened

    def refused(*given: Any) -> Any:
        assert mcf.get_executor() == "torch", "a conversion of all components"
        return usual(*given)

    monkeypatch.setattr(cumulative, "widened", refused)


@pytest.mark.usefixtures("converts_nothing")
@pytest.mark.parametrize(
    ("dtype", "cases", "name"),
    [
        (torch.float32, LONG, "cumsum"),
        (torch.bfloat16, BESIDE, "cumsum"),
        (torch.float32, BESIDE, "prod"),
        pytest.param(torch.float32, LONG + TURNED, "prod", marks=pytest.mark.slow),
    ],
    ids=["long_sums", "sums_beside", "products_beside", "long_products"],
)
def test_pairs(dtype: torch.dtype, cases: list[Any], name: str) -> None:
    _same(dtype, 2, cases, name)


@pytest.mark.slow
@pytest.mark.usefixtures("converts_nothing")
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_all(dtype: torch.dtype, terms: int) -> None:
    _same(dtype, terms, LONG + BESIDE + TURNED, "cumsum", "cumprod", "prod")


@pytest.mark.slow
def test_more_components_are_converted_before() -> None:
    for dtype, terms in ((torch.float32, 3), (torch.bfloat16, 4)):
        _same(dtype, terms, LONG[:1] + BESIDE[:1], "cumsum", "prod")


@pytest.mark.slow
def test_threads_have_room_of_their_own() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for case in (((7, 20000), 1), ((100, 1400), 0), ((14000, 10), 0)):
            _same(torch.float32, 2, [case], "cumsum", "prod")
    finally:
        torch.set_num_threads(threads)
