"""Exact: extremes and running extremes of long rows are those of the torch executor.

Loops decide most rows and blocks by first components, or by rounded sums of narrow pairs, and leave
the others to all components. The torch executor is compared with rationals in `test_order.py` and
`test_ranks.py`.

Caught mutants: no margin around a first component (two forms of one number, of which the second has
the larger one); a later one of equal sums in another lane; a NaN that a later element replaces; the
rest of a row after its last whole vector left out; the sign of "lowest" forgotten after the first
element; rows that are left numbered by their place among those; a block passed over that has an
equal element or a larger lower component; the number of the block before written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.ops.reductions import extremes
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday

pytest.importorskip("numba", reason="the loops are Numba's")

F64 = torch.float64
# Rows whose elements share vectors (inner of 1 and more), short rows that are transposed, wide
# tiles, rows in pieces, rows of odd lengths.
SHAPES = [(9, 277), (70, 21), (3, 130, 5), (2, 9, 700), (130, 3, 2), (5, 1, 40), (2, 4099),
          (5000, 5), (20_000,), (1, 9000)]  # fmt: skip


def _expansion(parts: list[torch.Tensor], dtype: torch.dtype, terms: int) -> mcf.MCFTensor:
    parts = [*parts, *[torch.zeros_like(parts[0])] * 4][:terms]
    return mcf.MCFTensor([p.to(dtype).contiguous().clone() for p in parts])


def _crowds(dtype: torch.dtype, terms: int) -> Iterator[Any]:
    """Few rows have two elements near their largest or smallest; those have two forms of one."""
    digits = -round(math.log2(torch.finfo(dtype).eps)) + 1
    for seed, shape in enumerate(SHAPES):
        generator = torch.Generator().manual_seed(seed)
        count = math.prod(shape)
        first = torch.randperm(count, generator=generator).double() - count // 2
        first = first.to(dtype).double().view(shape)
        sign = torch.randint(-1, 2, shape, generator=generator)
        parts = [first, *(first * sign * 2.0 ** (-digits * k - 2) for k in range(1, terms))]
        yield _expansion(parts, dtype, terms)


def _repeated(dtype: torch.dtype, terms: int) -> Iterator[Any]:
    """Whole numbers of which many are equal, with low parts of which many are equal."""
    eps = torch.finfo(dtype).eps
    for seed, shape in enumerate(((70, 300), (5000, 5), (3, 7, 301), (1, 9000))):
        g = torch.Generator().manual_seed(seed)
        high = torch.randint(-8, 9, shape, generator=g).double()
        low = torch.randint(-4, 5, shape, generator=g).double() * eps / 16
        if terms == 2 and dtype not in (torch.float32, F64):
            # Both of a size, which is no rounded sum.
            swapped = torch.randint(0, 2, shape, generator=g) > 0
            high, low = torch.where(swapped, low, high), torch.where(swapped, high, low)
        else:
            low = torch.where(high == 0, 0.0, low)
        high[high == 0] = -0.0
        yield _expansion([high, low], dtype, terms)


def _undecided(dtype: torch.dtype, terms: int) -> Iterator[Any]:
    """Rows that first components do not decide, so few that the others are decided."""
    info = torch.finfo(dtype)
    half = 2.0 ** (math.frexp(info.max)[1] - 2) * info.eps
    unit = 16 * info.eps
    for length in (12, 130, 700):
        first = (torch.arange(64 * length) * 7919 % 10007 % 199 - 99.0).double().view(64, length)
        low = torch.zeros_like(first)
        # One number in two forms, of which the later has the larger first component; of the
        # smallest the later has the smaller one.
        for sign, at in ((1.0, 3), (-1.0, 5)):
            first[at, 2], low[at, 2] = sign * 256.0, sign * unit * 4
            first[at, 9], low[at, 9] = sign * (256.0 + 8 * unit), -sign * unit * 4
        first[0, 4] = first[1, 1] = first[62, -1] = math.nan
        first[2, 0] = first[2, 7] = math.inf
        first[6, 6] = first[6, -1] = -math.inf
        for row, sign in ((7, 1.0), (8, -1.0)):
            first[row, [1, -2]], low[row, [1, -2]] = sign * info.max, sign * half
            first[row + 2], low[row + 2] = sign * 16.0, 0.0
            low[row + 2, [2, 5]] = sign * unit * 2.0**-8
        first[11] = torch.arange(length) % 3
        yield _expansion([first, low], dtype, terms)
    tied = torch.arange(64, dtype=F64).repeat(64, 2)
    yield _expansion([tied], dtype, terms)
    few = torch.arange(1.0, 101.0, dtype=F64).repeat(40, 1) * info.smallest_normal * info.eps * 4
    yield _expansion([few], dtype, terms)


def _waves(dtype: torch.dtype, terms: int) -> Iterator[Any]:
    """Rows that fall, rise, are flat with rare larger low parts, are mixed, with NaN and ends."""
    step = torch.arange(300, dtype=F64)
    g = torch.Generator().manual_seed(3)
    mixed = torch.randint(-100, 100, (300,), generator=g).double()
    first = torch.stack([-step, step, torch.ones(300).double(), mixed, mixed, 0 * step])
    first[4, 130], first[3, 70], first[3, 250] = math.nan, math.inf, -math.inf
    first[5, 64::64] = -0.0
    low = torch.zeros_like(first)
    rare = torch.tensor([-1.0, 1.0, 1.0, 2.0, -2.0]).double() * torch.finfo(dtype).eps / 16
    low[2, [63, 64, 128, 129, 290]] = rare
    x = _expansion([first, low], dtype, terms)
    yield from (x, torch.cat([x] * 12), torch.cat([x] * 12).mT.contiguous(), x[:, ::2].contiguous())
    # The second is the first once more in another form, among numbers far from it.
    unit = torch.finfo(dtype).eps
    first = torch.zeros(70, 300, dtype=F64)
    low = torch.zeros_like(first)
    first[:, 5], low[:, 5] = 1 + 2 * unit, -unit / 2
    first[:, 100], low[:, 100] = 1 + unit, unit / 2
    for sign in (1.0, -1.0):
        yield _expansion([sign * first, sign * low], dtype, terms)


INPUTS: dict[str, Callable[[torch.dtype, int], Iterator[Any]]] = {
    "crowds": _crowds, "repeated": _repeated, "undecided": _undecided, "waves": _waves
}  # fmt: skip
FORMATS = [(d, t) for d in (F64, torch.float32, torch.bfloat16, torch.float16) for t in (2, 1, 3)]
EVERYDAY = [(F64, 2), (torch.float32, 2), (torch.bfloat16, 2)]


def _parts(found: Any) -> list[torch.Tensor]:
    each = found if isinstance(found, tuple) else (found,)
    return [c for x in each for c in getattr(x, "components", (x,))]


def _extremes(x: Any, dim: int) -> list[Any]:
    return [x.max(dim), x.min(dim, True), x.argmax(dim), x.amin(dim)]


def _running(x: Any, dim: int) -> list[Any]:
    return [x.cummax(dim), x.cummin(dim)]


@pytest.mark.parametrize(("dtype", "terms"), everyday([*FORMATS, (F64, 4)], EVERYDAY), ids=str)
@pytest.mark.parametrize("name", INPUTS)
def test_extremes_of_long_rows_are_those_of_the_torch_executor(
    name: str, dtype: torch.dtype, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extremes, "_MANY", 1)
    for x in INPUTS[name](dtype, terms):
        for dim in range(x.ndim):
            with mcf.executor("torch"):
                want = _extremes(x, dim)
            for got, expected in zip(_extremes(x, dim), want, strict=True):
                assert_all_same_bits(_parts(got), _parts(expected), f"{list(x.shape)} {dim}")


@pytest.mark.parametrize(("dtype", "terms"), everyday(FORMATS, EVERYDAY), ids=str)
@pytest.mark.parametrize("name", ["waves", "undecided"])
def test_running_extremes_of_long_rows_are_those_of_the_torch_executor(
    name: str, dtype: torch.dtype, terms: int
) -> None:
    for x in INPUTS[name](dtype, terms):
        for dim in range(x.ndim):
            with mcf.executor("torch"):
                want = _running(x, dim)
            for got, expected in zip(_running(x, dim), want, strict=True):
                assert_all_same_bits(_parts(got), _parts(expected), f"{list(x.shape)} {dim}")


def test_first_components_decide_rows_unless_too_many_are_tied() -> None:
    """The results would be right without."""
    tied = torch.arange(64, dtype=F64).repeat(64, 2)
    assert extremes._by_first(_expansion([tied], F64, 2), 1, True) is None
    crowd = next(iter(_crowds(F64, 2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extremes, "_MANY", 1)
        assert extremes._by_first(crowd, 1, True) is not None
