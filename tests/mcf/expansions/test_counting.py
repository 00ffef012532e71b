"""Modes, weighted counts, histograms, drawn places, whole numbers, scaling by powers of two.

Caught mutants: a mode by first components; weights rounded to one component; edges by first
components; a power of two as one float.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import mcf

pytestmark = pytest.mark.usefixtures("on_torch")
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
