"""Test searches, ranks, quantiles and extremes that first components decide: exact.

Loops decide most rows by first components, or by rounded sums of narrow pairs, and leave the others
to all components. The torch executor is compared with rationals, other executors with it.

Caught mutants: neighbours of an edge left out; a rank that is one off; NaN that does not precede,
or is counted by `nanquantile`; equal numbers not in the order of their indices; a search past the
end of a row, or without its last step; a second key left out where one side alone has it; no margin
around a first component; a later one of equal sums in another lane; a NaN that a later element
replaces; the rest of a row after its last whole vector left out; the sign of "lowest" forgotten;
undecided rows numbered by their index among the undecided; a block skipped that has an equal
element; the number of the previous block written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.expansions.ops.order import order as orders
from mcf.expansions.ops.reductions import extremes, quantiles
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
