"""Exact sums: each result is the nearest expansion, bit for bit, in any order of the elements.

*Exact*, against rational arithmetic and its own rounding. Mutants: a rounding without the sticky
digits, and a sum whose elements pass through float64 additions.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels.formats import FORMATS, FP64, Format
from mcf.reductions import exact
from mcf.reductions.exact import exact_dots, exact_sums
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.adversarial import Draw
from tests.helpers.sums import cancelling, nearest, values

formats = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


def wrong(results: tuple[Tensor, ...], exact: list[Fraction], fmt: Format) -> int:
    got = zip(*(c.tolist() for c in results), strict=True)
    return sum(list(g) != nearest(v, fmt, len(results)) for g, v in zip(got, exact, strict=True))


def hard_rows(fmt: Format, seed: int) -> Tensor:
    """Rows of numbers of the whole range that cancel, tie and leave one small number."""
    draw = Draw(fmt, seed)
    rows, length = 60, 6
    x = draw.numbers(draw.exponents(rows * length, high=fmt.emax - 4)).reshape(rows, length)
    x[:, 1] = -x[:, 0]
    x[::3, 3] = -x[::3, 2]
    # A tie, broken by the last element or not.
    x[1::3, 2] = draw.ulp(x[1::3, 4]) / 2
    x[2::3, 5] = 0
    x[1::3, 3] = 0
    x[1::6, 5] = 0
    return draw.tensor(draw.rounded(x))


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize("terms", [1, 2, 4])
@formats
def test_sums(fmt: Format, terms: int, executor: str) -> None:
    x = hard_rows(fmt, terms)
    expected = [sum(values([row]), Fraction(0)) for row in x]
    with mcf.executor(executor):
        assert wrong(exact_sums([x], terms), expected, fmt) == 0


@pytest.mark.sampled
@pytest.mark.parametrize("terms", [1, 3])
@formats
def test_dots(fmt: Format, terms: int) -> None:
    x, y = hard_rows(fmt, 1), hard_rows(fmt, 2)
    y[:, 1] = y[:, 0]
    expected = [
        sum((a * b for a, b in zip(values([p]), values([q]), strict=True)), Fraction(0))
        for p, q in zip(x, y, strict=True)
    ]
    assert wrong(exact_dots([x], [y], terms), expected, fmt) == 0


def test_expansions() -> None:
    x, y = (cancelling(FP64, 3, (1, 200), seed) for seed in (0, 1))
    a, b = values([c[0] for c in x]), values([c[0] for c in y])
    assert wrong(exact_sums(x, 3), [sum(a, Fraction(0))], FP64) == 0
    dot = sum((p * q for p, q in zip(a, b, strict=True)), Fraction(0))
    assert wrong(exact_dots(x, y, 3), [dot], FP64) == 0


@pytest.mark.parametrize("executor", [pytest.param("torch", marks=pytest.mark.slow), "numba"])
def test_any_order_gives_the_same_bits(executor: str) -> None:
    x = cancelling(FP64, 2, (5000,), 3)
    y = cancelling(FP64, 2, (5000,), 4)
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    with mcf.executor(executor):
        for call in (
            lambda a, b: mcf.reductions.sum(a, reproducible=True),
            lambda a, b: mcf.reductions.dot(a, b, reproducible=True),
            lambda a, b: mcf.reductions.mean(a, reproducible=True),
            lambda a, b: mcf.reductions.var(a, reproducible=True),
            lambda a, b: mcf.reductions.norm(a, reproducible=True),
        ):
            shuffled = call(tuple(c[order] for c in x), tuple(c[order] for c in y))
            assert_all_same_bits(shuffled, call(x, y))
    # Which a fold does not promise; were they equal, this test would show nothing.
    fold = mcf.reductions.dot(tuple(c[order] for c in x), tuple(c[order] for c in y), terms=4)
    kept = mcf.reductions.dot(x, y, terms=4)
    assert any(not torch.equal(a, b) for a, b in zip(fold, kept, strict=True))


def test_special_values() -> None:
    inf, nan = torch.inf, torch.nan
    rows = [
        [1.0, inf, 2.0], [inf, -inf, 0.0], [nan, 1.0, inf], [0.0, -0.0, -0.0],
        [1e308, 1e308, -1e308], [1e308, 1e308, 0.0], [-1e308, -1e308, 0.0],
    ]  # fmt: skip
    expected = torch.tensor([inf, nan, nan, 0.0, 1e308, inf, -inf], dtype=torch.float64)
    hi, lo = exact_sums([torch.tensor(rows, dtype=torch.float64)], 2)
    assert_same_bits(hi, expected)
    assert_same_bits(lo, torch.zeros_like(lo))
    a = torch.tensor([[inf, 0.0], [inf, 1.0], [1e200, 1.0]], dtype=torch.float64)
    b = torch.tensor([[0.0, 0.0], [-1.0, 1.0], [1e200, 1.0]], dtype=torch.float64)
    (dot,) = exact_dots([a], [b], 1)
    assert_same_bits(dot, torch.tensor([nan, -inf, inf], dtype=torch.float64))


def test_no_elements() -> None:
    x = torch.ones(3, 0, dtype=torch.float64)
    assert_all_same_bits(exact_sums([x], 2), (torch.zeros(3).double(),) * 2)


def test_digits_are_carried_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_MOST", 300)
    monkeypatch.setattr(exact, "CHUNK", 100)
    x = torch.full((1, 1000), 1 + 2.0**-52, dtype=torch.float64)
    assert wrong(exact_sums([x], 2), [1000 * Fraction(1 + 2.0**-52)], FP64) == 0


def test_the_check_rejects_a_rounding_that_forgets_low_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.tensor([[1.0, 2.0**-53, 2.0**-300]], dtype=torch.float64)
    expected = [Fraction(1) + Fraction(2) ** -53 + Fraction(2) ** -300]
    assert wrong(exact_sums([x], 1), expected, FP64) == 0
    whole = exact._nearest

    def truncated(size: Tensor, fmt: Format) -> Tensor:
        # The three leading digits only.
        place = torch.arange(size.shape[1])
        top = torch.where(size != 0, place, 0).amax(1)
        return whole(torch.where(place >= (top - 2)[:, None], size, 0), fmt)

    monkeypatch.setattr(exact, "_nearest", truncated)
    assert wrong(exact_sums([x], 1), expected, FP64) == 1


def test_the_check_rejects_a_float64_sum() -> None:
    x = hard_rows(FP64, 1)
    expected = [sum(values([row]), Fraction(0)) for row in x]
    assert wrong((x.sum(1),), expected, FP64) > 0
