"""Exact: searches, ranks and extremes by first components are those of all components.

Caught mutants: neighbours of an edge left out (an element that is a tie counts as beyond it); a
rank whose element is nearer to the edge than that; NaN that does not precede; equal numbers not in
the order of their indices; steps of a search that pass the end of a row; NaN
looked for among numbers that its first component is not beyond.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.ops.order import ranks
from mcf.kernels import operations
from mcf.kernels.numba.loops.rows.searching import TOGETHER
from mcf.kernels.ordering import PIECE, search
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
        monkeypatch.setattr(ranks, name, value)
    sampled = 0
    for seed in range(6):
        x: Any = (_numbers, _crowd)[seed % 2](dtype, terms, seed)
        keys = _values(x)
        order = sorted(range(len(keys)), key=keys.__getitem__)
        for k in range(1, len(keys) + 1, 3):
            assert int(x.kthvalue(k).indices) == order[k - 1]
            found = ranks.ranked(x.components, k - 1, lambda c: mcf.MCFTensor(list(c)).argsort())
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


def _running(keys: list[Any], largest: bool) -> list[int]:
    """Where the extreme so far is: the last of equal ones; NaN, the last one, stays."""
    places, best = [], 0
    for k, key in enumerate(keys):
        beats = key >= keys[best] if largest else key <= keys[best]
        nan = keys[best][0] == 2
        best = k if key[0] == 2 or (beats and not nan) else best
        places.append(best)
    return places


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS[:2])
def test_running_extremes(executor: str) -> None:
    with mcf.executor(executor):
        for terms, dtype in ((2, torch.float64), (3, torch.bfloat16)):
            x: Any = _numbers(torch.float32, terms, 7).to(dtype)
            crowd = _crowd(torch.float64, terms, 8).to(dtype)
            for given in (x, crowd, torch.cat([x[:9], x[:2] * math.nan, x[9:20]]), x[:1], x[:0]):
                keys = _values(given)
                assert given.cummax(0).indices.tolist() == _running(keys, True)
                assert given.cummin(0).indices.tolist() == _running(keys, False)
            rows = x[:60].reshape(3, 4, 5)
            for dim in range(3):
                found = rows.cummax(dim).indices.movedim(dim, -1).reshape(-1, rows.shape[dim])
                for row, places in zip(
                    rows.movedim(dim, -1).reshape(-1, rows.shape[dim]), found, strict=True
                ):
                    assert places.tolist() == _running(_values(row), True)


def test_searches_in_rows(on_torch: None) -> None:
    for terms, dtype in ((1, torch.float32), (3, torch.bfloat16), (4, torch.float64)):
        rows: Any = torch.stack([_numbers(dtype, terms, k, 16).sort().values[:5] for k in (3, 4)])
        w: Any = torch.stack([_numbers(dtype, terms, k, 16)[:9] for k in (5, 6)])
        w[:, :2] = rows[:, 3:]
        found = torch.searchsorted(rows, w)
        for k in range(2):
            keys = _values(rows[k])
            assert found[k].tolist() == [sum(x < v for x in keys) for v in _values(w[k])]
