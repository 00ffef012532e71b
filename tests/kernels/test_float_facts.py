"""The facts that the solver is given are true: of all pairs of numbers of toy formats."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from tests.helpers.float_facts import (
    exponent,
    fast_two_sum_is_exact,
    of_a_number,
    of_a_product,
    of_a_sum,
    shape,
)


def rounded(v: Fraction, p: int) -> Fraction:
    """To p bits, ties to even."""
    if v == 0:
        return v
    unit = Fraction(2) ** (exponent(abs(v)) - p + 1)
    return round(v / unit) * unit


def wrong(x: Fraction, y: Fraction, p: int) -> list[list[int]]:
    """Which facts of x + y and of x * y do not hold."""
    found = []
    for exact, of_the_result in ((x + y, of_a_sum), (x * y, of_a_product)):
        s = rounded(exact, p)
        shapes = [shape(v) for v in (x, y, s, exact - s)]
        facts = [*(of_a_number(v, p) for v in shapes[:3]), *of_the_result(*shapes, p)]
        found.append([k for k, fact in enumerate(facts) if not fact])
    return found


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("p", [3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_all_pairs(p: int) -> None:
    ones = [Fraction(m) for m in range(2 ** (p - 1), 2**p)]
    numbers = [Fraction(0), *(m * Fraction(2) ** -e for m in ones for e in range(2 * p + 2))]
    for x, y, sign in itertools.product(ones, numbers, (1, -1)):
        assert wrong(x, sign * y, p) == [[], []]
        assert wrong(-sign * y, -x, p) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("p", [8, 24, 53])
def test_pairs_of_the_formats(p: int) -> None:
    rng = random.Random(p)

    def number() -> Fraction:
        top = 1 << (p - 1)
        few = rng.choice([0, 1, 2, 3, 1 << rng.randrange(p)])
        m = rng.choice([top + few, 2 * top - 1 - few, rng.randrange(top, 2 * top)])
        return rng.choice([1, -1]) * Fraction(m) * Fraction(2) ** -rng.randrange(p + 4)

    for _ in range(1000):
        assert wrong(number(), number(), p) == [[], []]


@pytest.mark.parametrize("p", [3, 4])
def test_when_fast_two_sum_is_exact(p: int) -> None:
    ones = [Fraction(m) for m in range(2 ** (p - 1), 2**p)]
    numbers = [m * Fraction(2) ** -e for m in ones for e in range(2 * p + 2)]
    beyond_dekker = inexact = 0
    for x, y, sign in itertools.product(numbers, ones, (1, -1)):
        s = rounded(x + sign * y, p)
        e = x + sign * y - s
        a, b, error = (shape(v) for v in (x, sign * y, e))
        exact = rounded(sign * y - rounded(s - x, p), p) == e
        assert exact or not fast_two_sum_is_exact(a, b, error, p)
        inexact += not exact
        beyond_dekker += e != 0 and a.top < b.top and fast_two_sum_is_exact(a, b, error, p)
    # Neither is the condition Dekker's again nor is everything exact.
    assert beyond_dekker
    assert inexact


def test_a_wrong_sum_is_found() -> None:
    """Rounded toward zero, the error may be larger than half an ulp."""
    x, y, p = Fraction(9), Fraction(7, 8), 4
    shapes = [shape(v) for v in (x, y, Fraction(9), Fraction(7, 8))]
    assert not all(of_a_sum(*shapes, p))
    assert all(of_a_sum(*(shape(v) for v in (x, y, Fraction(10), Fraction(-1, 8))), p))


def test_a_wrong_product_is_found() -> None:
    """Rounded toward zero, and one whose error has lost its lowest bit."""
    x, y, p = Fraction(13), Fraction(15), 4
    right, off, short = [(192, 3), (176, 19), (192, 2)]
    for (s, e), holds in ((right, True), (off, False), (short, False)):
        shapes = [shape(Fraction(v)) for v in (x, y, s, e)]
        assert all(of_a_product(*shapes, p)) == holds
