"""Exact: searches, ranks, quantiles and extremes by first components are those of all components.

Caught mutants: neighbours of an edge left out (an element that is a tie counts as beyond it); a
rank whose element is nearer to the edge than that, or one that is one off; NaN that does not
precede, or is counted by `nanquantile`; equal numbers not in the order of their indices; steps of a
search that pass the end of a row, or its last step left out; NaN looked for among numbers that its
first component is not beyond; a second number of keys left out where one side alone has it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.expansions.ops.order import order as orders
from mcf.expansions.ops.reductions import quantiles
from mcf.kernels import operations
from mcf.kernels.numba.loops.rows.searching import TOGETHER
from mcf.kernels.ordering import DEPTH, PIECE, search
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.mcf.expansions.inputs import hard


def _values(x: mcf.MCFTensor) -> list[Any]:
    """Exact values, as keys that sort: NaN last, after infinity."""
    keys: list[Any] = []
    for parts in zip(*(c.tolist() for c in x.components), strict=True):
        if math.isnan(parts[0]):
            keys.append((2, 0))
        elif math.isinf(parts[0]):
            keys.append((1 if parts[0] > 0 else -1, 0))
        else:
            keys.append((0, sum(map(Fraction, parts))))
    return keys


def _numbers(dtype: torch.dtype, terms: int, seed: int, count: int = 120) -> mcf.MCFTensor:
    """Ties beside what they tie with, repetitions, zeros of both signs, infinities."""
    parts = hard(dtype, terms, count, seed)
    neighbours = tuple(
        torch.cat([torch.nextafter(c, torch.full_like(c, end)) for end in (-math.inf, math.inf)])
        if k == 0
        else torch.cat([-c, -c])
        for k, c in enumerate(parts)
    )
    finite = neighbours[0].isfinite() & (neighbours[0] != 0)
    ends = [0.0, -0.0, math.inf, -math.inf]
    given = [
        torch.cat([c, d[finite], c[:30], torch.tensor(ends if k == 0 else [0.0] * 4, dtype=dtype)])
        for k, (c, d) in enumerate(zip(parts, neighbours, strict=True))
    ]
    return mcf.MCFTensor(list(mcf.kernels.operations.renormalize(tuple(given), terms)))


def _crowd(dtype: torch.dtype, terms: int, seed: int) -> mcf.MCFTensor:
    """Neighbours above 1 and half of what parts them: each value in two forms."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.finfo(dtype).eps
    place, half = (torch.randint(*ends, (160,), generator=generator) for ends in ((1, 24), (-1, 2)))
    parts = [1 + place.to(dtype) * unit, half.to(dtype) * (unit / 2), *[half.to(dtype) * 0] * 2]
    return mcf.MCFTensor([c.clone() for c in parts[:terms]])


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("terms", "dtype"),
    everyday(
        [
            (2, torch.float64),
            (1, torch.float32),
            (1, torch.float64),
            (2, torch.float32),
            (4, torch.float64),
        ],
        [(2, torch.float64), (1, torch.float32)],
    ),
)
def test_ranks_and_extremes(
    dtype: torch.dtype, terms: int, on_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MANY", 32), ("SAMPLE", 16), ("MARGIN", 0), ("BLOCK", 8)):
        monkeypatch.setattr(orders, name, value)
    sampled = 0
    for seed in range(6):
        x: Any = (_numbers, _crowd)[seed % 2](dtype, terms, seed)
        keys = _values(x)
        order = sorted(range(len(keys)), key=keys.__getitem__)
        for k in range(1, len(keys) + 1, 3):
            assert int(x.kthvalue(k).indices) == order[k - 1]
            found = orders.ranked(x.components, k - 1, lambda c: mcf.MCFTensor(list(c)).argsort())
            sampled += found is not None
        assert int(x.median(0).indices) == order[(len(keys) - 1) // 2]
        assert int(x.argmax()) == keys.index(max(keys))
        assert int(x.max(0).indices) == keys.index(max(keys))
        assert int(x.argmin()) == keys.index(min(keys))
        with_nan: Any = torch.cat([x[:40], x[:2] * math.nan, x[40:]])
        assert int(with_nan.argmax()) == int(with_nan.argmin()) == 40
        assert int(with_nan.median(0).indices) == 40
        assert int(with_nan.kthvalue(len(keys) + 1).indices) == 40
    assert sampled > 10


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_searches(executor: str) -> None:
    """Rows of 0 to 6 elements and one of many, whose kernels have one step and several."""
    terms, dtype = 2, torch.float64
    z: Any = _numbers(dtype, terms, 1, 16).sort().values
    w: Any = torch.cat([_numbers(dtype, terms, 2, 8), z, z[:1] * math.nan])
    for sequence in (z, torch.cat([z, z[:2] * math.nan]), *(z[7 : 7 + k] for k in range(7))):
        keys, wanted = _values(sequence), _values(w)
        with mcf.executor(executor):
            left = torch.searchsorted(sequence, w)
            right = torch.searchsorted(sequence, w, right=True)
            # The kernels of some steps, where few numbers go by plan.
            parts = [list(operations.renormalize(t.components)) for t in (sequence, w)]
            assert torch.equal(search(*parts, right=True), right)
            assert torch.equal(search(*parts, right=False), left)
        assert left.tolist() == [sum(k < v for k in keys) for v in wanted]
        assert right.tolist() == [sum(k <= v for k in keys) for v in wanted]


@pytest.mark.parametrize("right", [False, True])
def test_numbers_that_are_looked_for_together(right: bool) -> None:
    """More than a thread takes at once, on several threads; equal first components, zeros, NaN."""
    count = PIECE + TOGETHER + 5
    halves = [torch.arange(count) * k % 41 - 20.0 for k in (7, 11)]
    ends = torch.tensor([math.nan, -0.0, math.inf, -math.inf])
    first = torch.cat([ends, halves[0]]).double()
    second = torch.cat([ends * 0, halves[1]]).nan_to_num().double() * 2.0**-60
    w = mcf.MCFTensor(list(operations.renormalize((first, second))))
    z: Any = w[:700].sort().values
    parts = [list(t.components) for t in (z, w)]
    with mcf.executor("torch"):
        expected = search(*parts, right=right)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(search(*parts, right=right), expected)
    finally:
        torch.set_num_threads(threads)


NAN = float("nan")


def _quantiles_of(x: Any) -> list[Any]:
    """Return values and derivatives of some quantiles, and an index."""
    y = x.clone().requires_grad_()
    several = torch.tensor([0.125, 0.75], dtype=torch.float64)
    found = [y.quantile(0.3), y.nanquantile(several), y.nanmedian(), y.nanmedian(0).values]
    kept = y.nanquantile(0.5, dim=0, keepdim=True, interpolation="higher")
    (grad,) = torch.autograd.grad(sum(f.sum() for f in (*found, kept)), y)
    return [*found, kept, grad, y.nanmedian(0, keepdim=True).indices]


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_quantiles_by_rank_are_those_of_the_row_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MANY", 32), ("SAMPLE", 16), ("MARGIN", 0)):
        monkeypatch.setattr(orders, name, value)
    x: Any = (_numbers, _crowd)[seed](torch.float64, 2, seed)
    x = x[x.isfinite()]
    with_nan = torch.cat([x[:40], x[:3] * NAN, x[40:]])
    for given in (with_nan, *((x, x[:50] * NAN) if seed else ())):
        expected = _quantiles_of(given)
        with monkeypatch.context() as patch:
            patch.setattr(quantiles, "MANY", 32)
            for got, want in zip(_quantiles_of(given), expected, strict=True):
                parts = [getattr(t, "components", [t]) for t in (got, want)]
                assert_all_same_bits(*parts, "by rank")


def _narrow_pairs(dtype: torch.dtype, count: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    eps = torch.finfo(dtype).eps
    high = torch.randint(-60, 60, (count,), generator=g).double()
    low = torch.randint(-8, 9, (count,), generator=g).double() * (eps / 32)
    return [high.to(dtype), (low * (high != 0)).to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "size", [2**DEPTH, 2**DEPTH + 1, pytest.param(9999, marks=pytest.mark.slow)]
)
def test_narrow_numbers_are_found_in_narrow_sequences(dtype: torch.dtype, size: int) -> None:
    wanted = _narrow_pairs(dtype, 4 * PIECE + 37, 1)
    x: Any = mcf.MCFTensor(_narrow_pairs(dtype, size, 2)).sort().values
    y: Any = mcf.MCFTensor(wanted)
    there, sought = (sum(c.double() for c in t.components).numpy() for t in (x, y))
    for right in (False, True):
        got = torch.searchsorted(x, y, right=right)
        assert np.array_equal(got, np.searchsorted(there, sought, "right" if right else "left"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_numbers_are_found_where_one_side_has_two_numbers(dtype: torch.dtype) -> None:
    first = torch.arange(-8.0, 9.0)
    sequence: Any = mcf.MCFTensor([first.to(dtype), torch.zeros(17, dtype=dtype)])
    high = torch.tensor([4.0, 4.0, 4.0, -4.0]).to(dtype)
    low = torch.tensor([2.0**-70, 0.0, -(2.0**-70), 2.0**-70]).to(dtype)
    wanted: Any = mcf.MCFTensor([high, low])
    assert torch.searchsorted(sequence, wanted).tolist() == [13, 12, 12, 5]
    assert torch.searchsorted(sequence, wanted, right=True).tolist() == [13, 13, 12, 5]
    assert torch.searchsorted(wanted[[3, 2, 1, 0]], sequence).tolist() == [
        *[0] * 5, *[1] * 7, 2, *[4] * 4,
    ]  # fmt: skip


@pytest.mark.parametrize("right", [False, True])
def test_search_in_no_order_looks_at_the_elements_of_the_torch_executor(right: bool) -> None:
    """Search a sequence in no order, with NaN, with the torch executor's results."""
    g = torch.Generator().manual_seed(3)
    given = torch.randint(-999, 999, (5001,), generator=g).double()
    given[::50] = torch.nan
    x: Any = mcf.MCFTensor([given])
    y: Any = mcf.MCFTensor([given.repeat(4)])
    got = torch.searchsorted(x, y, right=right)
    with mcf.executor("torch"):
        assert torch.equal(got, torch.searchsorted(x, y, right=right))
