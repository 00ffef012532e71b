"""Test comparisons, sorts, extremes and signs by value against fractions: exact.

Caught mutants: comparisons of leading components; lexicographic comparison without canonical form;
runs of equal first components left unsorted, or continued into the next row; an unstable sort of a
run; lower components in ascending order in a descending sort; NaN at the wrong end of `topk`.
"""

from __future__ import annotations

import functools
import math
import operator
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.convert.numbers import components_of
from mcf.kernels.formats import FORMATS, format_of
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

DTYPES = pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
OPERATORS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def close(dtype: torch.dtype, terms: int) -> mcf.MCFTensor:
    """Values that differ in the last component only, and one value in two forms."""
    u = 2.0 ** -FORMATS[dtype].p
    rows = [(1.0, u, 0.0), (1.0, u, u * u / 2), (1.0, u, -u * u / 2), (1 + 2 * u, -u, 0.0)]
    rows += [
        (1.0, 0.0, 0.0),
        (1.0, -u / 2, 0.0),
        (-1.0, -u, 0.0),
        (0.0, 0.0, 0.0),
        (-0.0, 0.0, 0.0),
    ]
    c = torch.tensor(rows, dtype=torch.float64).to(dtype).unbind(1)
    return mcf.MCFTensor([t.contiguous() for t in c][:terms])


@DTYPES
def test_comparisons_are_those_of_the_values(dtype: torch.dtype) -> None:
    x = close(dtype, 3)
    values = x.to_fractions()
    for compare in OPERATORS:
        got = compare(x[:, None], x[None, :])
        assert got.dtype is torch.bool
        assert got.tolist() == [[compare(a, b) for b in values] for a in values]


@pytest.mark.parametrize("wider", [torch.float32, torch.float64])
def test_comparisons_of_mixed_formats(wider: torch.dtype) -> None:
    """Mutant: components of the narrower format compared as if they were normalised in the wider.

    There 1 + u and its lower component overlap, and so does every other pair of components.
    """
    terms = 4
    for count in (1, 2, 3):
        x = mcf.MCFTensor(hard(torch.bfloat16, terms, 64, count))
        y = torch.cat([x.to(wider, terms=count), x.to(wider, terms=4)[:8]])
        x = torch.cat([x, x[:8]])
        pairs = list(zip(x.to_fractions(), y.to_fractions(), strict=True))
        for compare in OPERATORS:
            for _ in range(2):
                assert compare(x, y).tolist() == [compare(a, b) for a, b in pairs]
                assert compare(y, x).tolist() == [compare(b, a) for a, b in pairs]


@pytest.mark.sampled(every=6)
@DTYPES
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_comparisons_of_hard_numbers(dtype: torch.dtype, terms: int) -> None:
    x = mcf.MCFTensor(hard(dtype, terms, 64, 1))
    # Each beside itself and its neighbour, and beside itself with fewer components.
    y = torch.cat([x, torch.nextafter(x, mcf.full((), math.inf, terms=terms, dtype=dtype))])
    x = torch.cat([x, x])
    pairs = list(zip(x.to_fractions(), y.to_fractions(), strict=True))
    for compare in OPERATORS:
        assert compare(x, y).tolist() == [compare(a, b) for a, b in pairs]
        for fewer in range(1, terms):
            short = mcf.MCFTensor([c.clone() for c in x.components[:fewer]])
            assert compare(short, x).tolist() == [
                compare(a, b) for a, b in zip(short.to_fractions(), x.to_fractions(), strict=True)
            ]


def test_comparison_with_numbers_and_plain_tensors_is_exact() -> None:
    x = mcf.tensor(["0.1", 0.1, 1e30], dtype=torch.bfloat16)
    for number in (0.1, 1, 2**62 + 1):
        for compare in OPERATORS:
            assert compare(x, number).tolist() == [
                compare(v, Fraction(number)) for v in x.to_fractions()
            ]
    plain = torch.tensor([0.1, 0.1, 1e30], dtype=torch.float64)
    assert (x == plain).tolist() == [
        v == Fraction(p) for v, p in zip(x.to_fractions(), plain.tolist(), strict=True)
    ]
    assert (plain > x).tolist() == [
        Fraction(p) > v for v, p in zip(x.to_fractions(), plain.tolist(), strict=True)
    ]


def test_nan_and_infinities_compare_as_ieee_has_it() -> None:
    x = mcf.tensor(["nan", "inf", "-inf", 1.0])
    assert (x == x).tolist() == [False, True, True, True]
    assert (x != x).tolist() == [True, False, False, False]
    assert (x < float("inf")).tolist() == [False, False, True, True]
    assert x.isnan().tolist() == [True, False, False, False]
    assert x.isinf().tolist() == [False, True, True, False]
    assert x.isfinite().tolist() == [False, False, False, True]
    assert torch.maximum(x, mcf.ones(4)).tolist()[1:] == [math.inf, 1, 1]
    assert torch.maximum(x, mcf.ones(4)).isnan().tolist() == [True, False, False, False]
    assert torch.fmax(x, mcf.ones(4)).tolist() == [1, math.inf, 1, 1]


@pytest.mark.slow
def test_comparisons_compiled_and_written_into_a_tensor() -> None:
    def every(x: mcf.MCFTensor, y: mcf.MCFTensor) -> list[torch.Tensor]:
        found = [compare(a, b) for compare in OPERATORS for a, b in ((x, y), (x, 0.1), (y, x[0]))]
        return [*found, torch.where(x < y, x, y).to_plain()]

    x = mcf.MCFTensor(hard(torch.float32, 2, 64, 1))
    y = torch.cat([x[:32], x[32:].flip(0)])
    with mcf.executor("torch"):
        torch._dynamo.reset()
        compiled = torch.compile(every, backend="aot_eager", fullgraph=True)(x, y)
        torch._dynamo.reset()
        assert_all_same_bits(compiled, every(x, y), "compiled")
        out = torch.empty(64, dtype=torch.bool)
        assert torch.lt(x, y, out=out) is out
        assert torch.equal(out, x < y)
        assert (out & ~out.flip(0)).any()


@DTYPES
def test_sorting_and_extremes(dtype: torch.dtype) -> None:
    x = close(dtype, 3)
    values = x.to_fractions()
    rank = sorted(range(len(values)), key=lambda k: values[k])
    assert x.argsort().tolist() == rank
    ordered, index = x.sort(descending=True)
    assert [values[k] for k in index.tolist()] == sorted(values, reverse=True)
    assert ordered.to_fractions() == sorted(values, reverse=True)
    assert x.topk(3).values.to_fractions() == sorted(values)[:-4:-1]
    assert x.topk(2, largest=False).values.to_fractions() == sorted(values)[:2]
    assert x.max().to_fractions() == max(values)
    assert x.argmax().item() == values.index(max(values))
    assert x.argmin().item() == values.index(min(values))
    table = x.reshape(3, 3)
    rows = table.to_fractions()
    assert table.amax(1).to_fractions() == [max(r) for r in rows]
    assert table.min(1).values.to_fractions() == [min(r) for r in rows]
    assert x.median().to_fractions() == sorted(values)[4]
    assert x.clamp(0, 1).to_fractions() == [min(max(v, 0), 1) for v in values]


@DTYPES
def test_signs_are_exact(dtype: torch.dtype) -> None:
    x = mcf.MCFTensor(hard(dtype, 3, 60, seed=5))
    values = x.to_fractions()
    assert x.abs().to_fractions() == [abs(v) for v in values]
    assert (-x).to_fractions() == [-v for v in values]
    assert x.sign().tolist() == [(v > 0) - (v < 0) for v in values]
    other = torch.tensor([-1.0, 1.0, -0.0] * 20)
    assert x.copysign(other).to_fractions() == [
        math.copysign(1, s) * abs(v) if isinstance(v, float) else int(math.copysign(1, s)) * abs(v)
        for v, s in zip(values, other.tolist(), strict=True)
    ]
    assert x.signbit().tolist() == [math.copysign(1, v) < 0 for v in values]


@DTYPES
def test_nextafter_is_the_nearest_expansion_on_that_side(dtype: torch.dtype) -> None:
    fmt = format_of(dtype)
    x = mcf.tensor(["0.1", "-7", "0", "1"], 2, dtype)
    for target in ("inf", "-inf"):
        y = torch.nextafter(x, mcf.tensor([target] * 4, 2, dtype))
        for a, b in zip(x.to_fractions(), y.to_fractions(), strict=True):
            assert (b > a) == (target == "inf")
            middle = (a + b) / 2
            # No expansion lies between: the middle rounds to one of the two.
            assert sum(map(Fraction, components_of(middle, fmt, 2))) in (a, b)
    top = torch.nextafter(mcf.tensor(["inf"], 2, dtype), mcf.tensor([0.0], 2, dtype))
    assert top.isfinite().all()
    assert torch.nextafter(x, x).to_fractions() == x.to_fractions()
    x, y = mcf.tensor([["0.1"], ["0.2"]], 2, dtype), mcf.tensor([0.15, 1.0, 0.0], 2, dtype)
    each = [[torch.nextafter(a, b).to_fractions() for b in y] for a in x[:, 0]]
    assert torch.nextafter(x, y).to_fractions() == each


@pytest.mark.sampled
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", list(FORMATS))
def test_before_infinity_is_a_finite_number(dtype: torch.dtype, terms: int) -> None:
    """Mutant: as lower components half an ulp less a unit of all digits, which rounds to it."""
    inf = mcf.tensor(math.inf, terms, dtype)
    last = torch.nextafter(inf, -inf)
    assert_all_same_bits(mcf.tensor(last.to_fractions(), terms, dtype).components, last.components)
    assert last.isfinite()
    assert torch.nextafter(last, inf).isinf()


def test_places_are_checked() -> None:
    """Exact: as torch says; mutants are checks left out, which take elements from the end."""
    x = mcf.tensor([[3, 1, 2], [6, 5, 4]])
    for k in (0, 4, -1):
        with pytest.raises(RuntimeError, match="kthvalue"):
            x.kthvalue(k)
    for call in (
        lambda: x.amax(2),
        lambda: x[0].amin(1),
        lambda: x.logsumexp(5),
        lambda: x[0, 0].logsumexp(1),
        lambda: x.index_add(0, torch.tensor([-1]), x[:1]),
        lambda: x.index_add(0, torch.tensor([2]), x[:1]),
    ):
        with pytest.raises(IndexError, match="range"):
            call()
    with pytest.raises(RuntimeError, match="more than once"):
        x.amax((0, -2))
    with pytest.raises(RuntimeError, match="index must have the source's 2"):
        x.index_add(0, torch.tensor([0]), x)
    with pytest.raises(RuntimeError, match="vector of integers"):
        x.index_add(0, torch.tensor([0.5]), x[:1])


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian])
def test_equal_elements_share_the_slope_of_a_median(function: Any) -> None:
    for values in ([1.0, 2, 2, 2, 3], []):
        x: Any = mcf.tensor(values, dtype=torch.float64).requires_grad_()
        found = function(x)
        assert found.requires_grad
        found.backward()
        plain = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        function(plain).backward()
        assert x.grad.tolist() == plain.grad.tolist()  # type: ignore[union-attr]
        assert torch.func.grad(function)(x.detach()).tolist() == x.grad.tolist()


def test_medians_and_slices_of_nothing() -> None:
    nothing = mcf.zeros(0, 3)
    assert nothing.median().isnan()
    assert nothing.nanmedian().isnan()
    assert nothing.unique(dim=0).shape == (0, 3)
    with pytest.raises(RuntimeError, match="no elements"):
        nothing.unique(dim=1)


def test_isin_compares_integers_exactly() -> None:
    """Mutants: integers rounded to the format first, 2^40 to infinity, 2^30 + 2^15 + 1 to less."""
    assert not torch.isin(mcf.tensor([math.inf], 2, torch.float16), torch.tensor([2**40])).any()
    x = mcf.tensor([2**30 + 2**15], 2, torch.bfloat16)
    assert torch.isin(x, torch.tensor([2**30 + 2**15, 7])).all()
    assert not torch.isin(x, torch.tensor([2**30 + 2**15 + 1])).any()


def _tensor(shape: tuple[int, ...], terms: int, values: int, seed: int) -> mcf.MCFTensor:
    """Few different components, so that most elements are tied in some; both forms of a tie."""
    g = torch.Generator().manual_seed(seed)
    whole = torch.randint(-values, values + 1, shape, generator=g).double()
    parts = [whole]
    for k in range(1, terms):
        low = torch.randint(-2, 3, shape, generator=g).double() * 2.0 ** (-60 * k)
        parts.append(torch.where(parts[0] == 0, 0.0 * low, low))
    if terms > 1:
        # 1 and half an ulp, the same number from both sides.
        for value, low in ((1.0, 2.0**-53), (1 + 2.0**-52, -(2.0**-53))):
            here = torch.randint(0, 9, shape, generator=g) == 0
            parts[0] = torch.where(here, value, parts[0])
            parts[1] = torch.where(here, low, parts[1])
            parts[2:] = [torch.where(here, 0.0, c) for c in parts[2:]]
    for special in (math.nan, math.inf, -math.inf, -0.0):
        here = torch.randint(0, 20, shape, generator=g) == 0
        parts = [torch.where(here, special if c is parts[0] else 0.0, c) for c in parts]
    return mcf.MCFTensor([c.contiguous() for c in parts])


def _value(x: mcf.MCFTensor, k: int) -> Any:
    c = [p[k].item() for p in x.components]
    if not math.isfinite(c[0]):
        return (1 if c[0] > 0 else -1, 0) if math.isinf(c[0]) else (2, 0)
    return 0, mcf.MCFTensor([p[k] for p in x.components]).to_fractions()


def _expected(row: mcf.MCFTensor, descending: bool) -> list[int]:
    values = [_value(row, k) for k in range(row.shape[0])]

    def compare(a: int, b: int) -> int:
        less = -1 if values[a] < values[b] else int(values[a] > values[b])
        return (-less if descending else less) or a - b

    return sorted(range(len(values)), key=functools.cmp_to_key(compare))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("terms", [1, 2, 3])
def test_ties(terms: int) -> None:
    """Runs of equal first components, along each dimension."""
    # Runs of some ten elements, and of two or three.
    for seed, values in enumerate((2, 40)):
        x = _tensor((3, 90), terms, values, seed)
        for descending in (False, True):
            want = torch.tensor([_expected(row, descending) for row in x])
            for tensor, dim, wanted in ((x, -1, want), (x.mT, 0, want.mT)):
                found = tensor.sort(dim=dim, descending=descending)
                assert torch.equal(found.indices, wanted)
                assert torch.equal(tensor.argsort(dim, descending), wanted)
                kept = [c.gather(dim, wanted) for c in tensor.components]
                for got, c in zip(found.values.components, kept, strict=True):
                    assert torch.equal(
                        got.contiguous().view(torch.int64), c.contiguous().view(torch.int64)
                    )
            for k in (1, 3, 9, 11):
                for row, order_of_row in zip(x, want, strict=True):
                    top = row.topk(k, largest=descending)
                    assert torch.equal(top.indices, order_of_row[:k])
        for row in x:
            number = row[~row.isnan()]
            assert number.argmin() == _expected(number, False)[0]
            assert number.argmax() == _expected(number, True)[0]


def test_topk_among_nan() -> None:
    first = torch.full((40,), math.nan).double()
    first[5], first[7] = 1.0, 2.0
    x = mcf.MCFTensor([first, torch.zeros(40).double()])
    assert x.topk(3).indices.tolist() == [0, 1, 2]
    assert x.topk(3, largest=False).indices.tolist() == [5, 7, 0]
    assert x.topk(5, largest=False).indices.tolist() == x.argsort()[:5].tolist()


def test_under_vmap() -> None:
    x = _tensor((3, 40), 2, 3, 7)
    assert torch.equal(torch.func.vmap(lambda row: row.argsort())(x), x.argsort(-1))
    assert torch.equal(torch.func.vmap(lambda row: row.argmax())(x), x.argmax(-1))
