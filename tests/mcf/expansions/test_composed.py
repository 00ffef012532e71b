"""Test functions composed of others, counts, draws and scaling by powers of two: exact cases.

`tests/mcf/test_derivative_sweep.py` has values and derivatives of all. Caught mutants: logit by
1 - x alone; quantile weights rounded to a double; a mode or edges by first components; weights
rounded to one component; a power of two as one float.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import mcf
from tests.helpers.draws import bell

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

F = torch.nn.functional
UNITS = 64
TERMS = 3


def test_logit_keeps_its_digits_near_a_half() -> None:
    tiny = Fraction(1, 2**40)
    x = mcf.tensor(Fraction(1, 2) + tiny, TERMS, torch.float64)
    with mpmath.workprec(400):
        t = mpmath.mpf(2) ** -40
        want = mpmath.log((0.5 + t) / (0.5 - t))
        assert abs(x.logit().to_mpmath() - want) <= UNITS * mpmath.mpf(2) ** -159 * want


def thirds(count: int, *shape: int) -> Any:
    numbers = [Fraction(k * k - 7 * k, 2**30) + Fraction(k) for k in range(count)]
    return mcf.tensor(numbers, 3, torch.float64).reshape(shape)


@pytest.mark.parametrize("way", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_are_exact_where_they_fit(way: str) -> None:
    x = thirds(9, 9).flip(0)
    values = sorted(x.to_fractions())
    for q in (0.0, 0.1875, 0.5, 1.0):
        place = Fraction(q) * 8
        low = int(place)
        high = min(low + 1, 8) if place != low else low
        want = {
            "linear": values[low] + (place - low) * (values[high] - values[low]),
            "lower": values[low],
            "higher": values[high],
            "midpoint": (values[low] + values[high]) / 2,
            "nearest": values[round(place)],
        }[way]
        assert torch.quantile(x, q, interpolation=way).to_fractions() == want


def test_quantiles_pass_over_nan_only_when_told() -> None:
    x = mcf.tensor([["1", "nan", "3"], ["4", "5", "6"], ["nan", "nan", "nan"]], 2)
    assert x.quantile(0.5, 1).isnan().tolist() == [True, False, True]
    assert x.nanquantile(0.5, 1).tolist()[:2] == [2, 5]
    assert x.nanquantile(mcf.tensor("0.5"), 1).isnan().tolist() == [False, False, True]
    assert x.nanmedian(1).values.tolist()[:2] == [1, 5]
    assert (x.nansum(1)[:2].tolist(), x.nanmean(1)[:2].tolist()) == ([4, 15], [2, 5])
    with pytest.raises(RuntimeError, match=r"q must be in \[0, 1\], got 1.5"):
        x.quantile(1.5)


def exact_convolution(x: list[Any], w: list[Any], stride: int) -> list[list[Fraction]]:
    """Channels of x [c][n] with w [o][c][k]."""
    size = len(w[0][0])
    places = range(0, len(x[0]) - size + 1, stride)
    return [
        [
            sum(x[c][p + j] * row[c][j] for c in range(len(x)) for j in range(size))
            for p in places
        ]
        for row in w
    ]  # fmt: skip


def test_convolution_is_exact_where_it_fits_and_its_transpose_is_the_adjoint() -> None:
    x, w = thirds(14, 2, 7), thirds(18, 3, 2, 3)
    got = F.conv1d(x, w, stride=2)
    assert got.to_fractions() == exact_convolution(x.to_fractions(), w.to_fractions(), 2)
    y = thirds(9, 3, 3)
    back = F.conv_transpose1d(y, w, stride=2)
    assert (got * y).sum().to_fractions() == (x * back).sum().to_fractions()


def test_a_module_of_expansions_convolves() -> None:
    layer = torch.nn.Conv2d(2, 3, 3, padding=1)
    layer.weight = torch.nn.Parameter(thirds(54, 3, 2, 3, 3))
    x = bell((2, 2, 5, 4), 0, torch.float32)
    y = layer(x)
    assert isinstance(y, mcf.MCFTensor)
    y.sum().backward()
    assert isinstance(layer.weight.grad, mcf.MCFTensor)
    plain = torch.nn.functional.conv2d(
        x.double(), layer.weight.detach().to_plain(), layer.bias.detach().double(), padding=1
    )
    # float64 has 2^-53; sums of 18 products of numbers up to 60.
    assert (y.detach() - plain).abs().max().item() < 1e-11


def test_cross_unique_and_search_are_by_value() -> None:
    a, b = thirds(6, 2, 3), thirds(6, 2, 3).flip(0)
    for u, v, w in zip(a, b, torch.linalg.cross(a, b), strict=True):
        p, q = u.to_fractions(), v.to_fractions()
        want = [p[k - 2] * q[k - 1] - p[k - 1] * q[k - 2] for k in range(3)]
        assert w.to_fractions() == want
    low = Fraction(1, 2**40)
    x = mcf.tensor([1 + low, 1, 1 + low, 2, 1 - low], 2)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert values.to_fractions() == [1 - low, 1, 1 + low, 2]
    assert (inverse.tolist(), counts.tolist()) == ([2, 1, 2, 3, 0], [1, 1, 2, 1])
    assert torch.searchsorted(values, x).tolist() == [2, 1, 2, 3, 0]
    assert torch.bucketize(x, values, right=True).tolist() == [3, 2, 3, 4, 1]
    assert torch.isin(x, mcf.tensor([1 + low, 7], 2)).tolist() == [True, False, True, False, False]
    assert (x.trace() if x.ndim == 2 else torch.diag(x).trace()).to_fractions() == 6 + low


GRADIENT_ZEROS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": torch.sign,
    "sgn": torch.sgn,
    "copysign": lambda x: torch.copysign(x * 0 + 1, x) + 0 * x,
}


@pytest.mark.parametrize("name", GRADIENT_ZEROS)
def test_gradients_that_are_zero_are_expansions_and_add_up(name: str) -> None:
    x = mcf.tensor(["-1.5", "0.25"], requires_grad=True)
    GRADIENT_ZEROS[name](x).sum().backward()
    (x * x).sum().backward()
    assert isinstance(x.grad, mcf.MCFTensor)
    assert torch.equal(x.grad, 2 * x.detach())


TINY = Fraction(1, 2**40)


def test_mode_tells_low_components_apart() -> None:
    x = mcf.tensor([1 + TINY, 1, 1 + TINY, 1, 1 + TINY, 1 - TINY, 1], 2)
    value, index = torch.mode(x)
    assert value.to_fractions() == 1
    assert index == 6
    x = mcf.tensor([[2, 3], [2 + TINY, 3], [2 + TINY, 5]], 2)
    values, places = x.mode(0, keepdim=True)
    assert values.to_fractions() == [[2 + TINY, 3]]
    assert places.tolist() == [[2, 1]]
    nan = mcf.tensor([torch.nan, torch.nan, 2], 2)
    assert torch.mode(nan).values.to_fractions() == 2
    assert torch.mode(mcf.tensor(3, 2)).values.to_fractions() == 3
    with pytest.raises(IndexError, match="non-zero size"):
        torch.mode(mcf.zeros(2, 0))


def test_mode_of_many_rows_and_its_derivative() -> None:
    numbers = torch.arange(600).reshape(20, 30) * 7919 % 11 % 5
    x = mcf.tensor(numbers, 2) / 3
    want = torch.mode(numbers, -1).values
    assert torch.equal(torch.mode(x).values, mcf.tensor(want, 2) / 3)
    leaf = mcf.tensor([1, 2, 2], 2, requires_grad=True)
    (torch.mode(leaf).values * 3).backward()
    assert leaf.grad.to_fractions() == [0, 0, 3]


def test_weighted_counts_keep_all_components() -> None:
    place = torch.tensor([0, 3, 0, 3, 3])
    weights = mcf.tensor([1, 2, TINY, 3 * TINY, 5], 2)
    got = torch.bincount(place, weights, minlength=6)
    assert got.to_fractions() == [1 + TINY, 0, 0, 7 + 3 * TINY, 0, 0]
    assert torch.bincount(place[:0], weights[:0]).shape == (0,)
    with pytest.raises(RuntimeError, match=r"shapes \[5\] and \[4\]"):
        torch.bincount(place, weights[1:])
    with pytest.raises(RuntimeError, match="at least 0"):
        torch.bincount(-place, weights)
    with pytest.raises(RuntimeError, match="integers"):
        torch.bincount(weights, weights)


def test_histogram_at_its_edges() -> None:
    edges = mcf.tensor([0, 1, 1 + TINY, 2], 2)
    x = mcf.tensor([0, 1 - TINY, 1, 1 + TINY / 2, 1 + TINY, 2, 2 + TINY, -TINY, torch.nan], 2)
    counts, same = torch.histogram(x, edges)
    assert counts.to_fractions() == [2, 2, 2]
    assert torch.equal(same, edges)
    weights = mcf.tensor([TINY, 1, 1, TINY, 1, 1, 9, 9, 9], 2)
    counts = torch.histogram(x, edges, weight=weights).hist
    assert counts.to_fractions() == [1 + TINY, 1 + TINY, 2]
    counts, edges = torch.histogram(x[:6], 4, range=(0.0, 2.0), density=True)
    assert edges.to_fractions() == [0, Fraction(1, 2), 1, Fraction(3, 2), 2]
    # 1, 1, 3 and 1 of six elements on parts of width 1/2.
    third = Fraction(1, 3)
    for got, want in zip(counts.to_fractions(), [third, third, 3 * third, third], strict=True):
        assert abs(got - want) <= TINY
    assert torch.histogram(x[:0], 2).hist.to_fractions() == [0, 0]
    for bins, error in [(0, "at least 1"), (edges.flip(0), "ascending")]:
        with pytest.raises(RuntimeError, match=error):
            torch.histogram(x[:6], bins)
    with pytest.raises(RuntimeError, match="finite and ascending"):
        torch.histogram(x, 3)


def test_drawn_places() -> None:
    torch.manual_seed(0)
    weights = mcf.tensor([[0, 1, 0, 3, 0], [TINY, 0, 0, 0, 0]], 2)
    drawn = torch.multinomial(weights, 4000, replacement=True)
    counts = torch.bincount(drawn[0], minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    # Six standard deviations of a binomial: a fixed seed, and far from 1/2 of a mutant.
    assert abs(int(counts[1]) - 1000) < 6 * (4000 * 3 / 16) ** 0.5
    assert (drawn[1] == 0).all()
    rows = torch.multinomial(mcf.ones(200, 5), 5)
    assert torch.equal(rows.sort(-1).values, torch.arange(5).expand(200, 5))
    first = torch.multinomial(weights[0].expand(4000, 5), 2)
    assert torch.equal(first.sort(-1).values, torch.tensor([1, 3]).expand(4000, 2))
    assert abs(int((first[:, 0] == 1).sum()) - 1000) < 6 * (4000 * 3 / 16) ** 0.5
    for given, count, error in [
        (weights, 2, "each row needs 2"),
        (weights[0], 6, "from 1 to the 5"),
        (-weights, 1, "at least 0"),
        (mcf.zeros(3), 1, "above 0 in each row"),
    ]:
        with pytest.raises(RuntimeError, match=error):
            torch.multinomial(given, count)


def test_whole_numbers_beyond_a_float() -> None:
    torch.manual_seed(0)
    x = torch.randint_like(mcf.zeros(200, terms=2), 2**40, 2**41)
    torch.manual_seed(0)
    assert x.to_fractions() == torch.randint(2**40, 2**41, (200,)).tolist()
    assert torch.randint_like(mcf.zeros(3), 1).to_fractions() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"whole numbers up to 2\*\*16"):
        torch.randint_like(mcf.zeros(3, dtype=torch.bfloat16), 2**17)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_ldexp(dtype: torch.dtype) -> None:
    """Also by powers of two that the format has no number for."""
    lowest, highest = {"float16": (-12, 15), "float32": (-100, 127), "float64": (-900, 1023)}[
        str(dtype)[6:]
    ]
    value = Fraction(1) + Fraction(1, 2**10)
    small = mcf.tensor([value], 2, dtype) * 2.0**lowest
    got = torch.ldexp(small, torch.tensor([highest - lowest]))
    assert got.to_fractions() == [value * 2**highest]
    assert torch.ldexp(got, torch.tensor(lowest - highest)).to_fractions() == [
        value * Fraction(2) ** lowest
    ]
    for kind in (torch.uint8, torch.int8):
        raised = torch.ldexp(small, torch.tensor(3, dtype=kind))
        assert raised.to_fractions() == [8 * v for v in small.to_fractions()]
    assert torch.ldexp(got, torch.tensor(2**40)).to_plain().tolist() == [torch.inf]
    assert torch.ldexp(got, torch.tensor(-(2**40))).to_plain().tolist() == [0]
    leaf = mcf.tensor([3], 2, dtype, requires_grad=True)
    torch.ldexp(leaf, torch.tensor([4])).sum().backward()
    assert leaf.grad.to_fractions() == [16]


def test_steps_between_tensors() -> None:
    a, b = mcf.tensor("0.1", 2), mcf.tensor("0.7", 2)
    got = torch.linspace(a, b, 7)
    want = mcf.linspace(a.to_fractions(), b.to_fractions(), 7, terms=2)
    assert torch.equal(got, want)
    assert torch.equal(torch.linspace(0, b, 7)[-1], b)
    powers = torch.logspace(mcf.tensor(0, 2), 3, 4, base=2.0)
    assert powers.to_fractions() == [1, 2, 4, 8]
    with pytest.raises(RuntimeError, match="no derivatives"):
        torch.linspace(a.clone().requires_grad_(), b, 3)
    with pytest.raises(RuntimeError, match="no dimensions"):
        torch.linspace(mcf.ones(2), b, 3)


def test_solutions_from_cholesky_factors() -> None:
    """Whole numbers whose factor is whole: L = [[2, 0], [1, 3]]."""
    low = mcf.tensor([[2, 0], [1, 3]], 3)
    right = low @ low.mT @ mcf.tensor([[1], [2]], 3)
    for factor, upper in ((low, False), (low.mT, True)):
        assert torch.cholesky_solve(right, factor, upper).to_fractions() == [[1], [2]]
        inverse = torch.cholesky_inverse(factor, upper)
        rest = inverse @ (low @ low.mT) - torch.eye(2)
        # Four divisions and products of numbers below 1, each within 2^-70.
        assert all(abs(v) <= Fraction(1, 2**66) for row in rest.to_fractions() for v in row)
