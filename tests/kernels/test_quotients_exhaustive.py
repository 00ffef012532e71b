"""Quotients and square roots of pairs over every pair of small formats: the bound is the test.

The proofs begin at p = 7 (quotient), 4 (by a float) and 5 (root); what is proved there is seen to
hold for smaller p. Quotients are in float64, 2**40 times more precise than the errors measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from mcf.kernels.algorithms.pairs import scale
from mcf.kernels.algorithms.primitives import div, rn, sqrt
from mcf.kernels.algorithms.quotients import by_float2, corrected4, quotient2
from mcf.kernels.algorithms.roots import root2
from mcf.kernels.algorithms.transforms import fast_two_sum, two_square, two_sum
from mcf.kernels.expansion_bounds import expansion_bound
from mcf.kernels.formats import Format
from tests.helpers.draws import power_of_two
from tests.helpers.everyday import everyday
from tests.helpers.toys import bound, exponents, positives, products
from tests.kernels import test_pairs_exhaustive as pairs
from tests.kernels.test_pairs_exhaustive import binade, roomy

Pair = tuple[Tensor, ...]
TRUTH = {
    1: lambda hi, lo: torch.sqrt(hi + lo),
    2: lambda x_hi, x_lo, y: (x_hi + x_lo) / y,
    3: lambda x_hi, x_lo, y_hi, y_lo: (x_hi + x_lo) / (y_hi + y_lo),
}


def limit(name: str, fmt: Format, *, float_second: bool = False) -> Fraction:
    row = expansion_bound(name, 2, float_second=float_second)
    return sum((c * fmt.u ** (k - 2) for k, c in row.coefficients), Fraction(0))


def worst(algorithm: Callable[..., object], fmt: Format, x: Pair, y: Pair = ()) -> Fraction:
    """The largest relative error of a root or a quotient over all combinations, in u^2."""
    return pairs.worst(algorithm, TRUTH[1 + len(y)], fmt, x, y, grouped=True)


@pytest.mark.parametrize("p", everyday([4, 5, 6], [4]))
def test_quotient(p: int) -> None:
    fmt = roomy(p)
    x = binade(fmt, 0, 1)
    found = worst(quotient2, fmt, x, x)
    assert 3 < found <= limit("div", fmt)


@pytest.mark.parametrize("p", [4, 5, 6])
def test_quotient_by_a_float(p: int) -> None:
    fmt = roomy(p)
    found = worst(by_float2, fmt, binade(fmt, 0, 1), (positives(fmt, 0, 0),))
    assert 1 < found <= limit("div", fmt, float_second=True)


@pytest.mark.parametrize("p", [5, 6, 7, 8])
def test_root(p: int) -> None:
    fmt = roomy(p)
    for e in (0, 1):
        found = worst(root2, fmt, binade(fmt, e, 1))
        assert 1 < found <= limit("sqrt", fmt)


def settled(algorithm: Callable[..., object], p: int) -> tuple[int, int]:
    """How many corrections of pairs come out not normalised or with another sum, of how many.

    Every pair of the binade of 1; every correction of both signs in the three binades below 4 u^2,
    as what `corrected4` takes as the second correction, the first being zero or the leading part.
    """
    fmt = roomy(p)
    q0, q1 = binade(fmt, 0, 1)
    pairs = [binade(fmt, e, 1) for e in range(-2 * p - 1, -2 * p + 2)]
    corrections = [torch.cat([s * b[k] for b in pairs for s in (-1, 1)]) for k in (0, 1)]
    wrong = count = 0
    function = bound(algorithm, fmt)
    for i, j in products(len(q0), len(corrections[0])):
        c0, c1 = corrections[0][j], corrections[1][j]
        zero = torch.zeros_like(c0)
        for parts in ((zero, c0, c1), (c0, c1, zero)):
            result: tuple[Tensor, ...] = function(q0[i], q1[i], *parts)
            bad = sum(result) != q0[i] + q1[i] + c0 + c1
            for high, low in itertools.pairwise(result):
                bad |= low.abs() > power_of_two(exponents(high) - p)
            wrong, count = wrong + int(bad.sum()), count + len(i)
    return wrong, count


def one_sweep(q0, q1, q2, q3, q4):
    q2, q3 = two_sum(q2, q3)
    q1, q2 = two_sum(q1, q2)
    q2, q3 = two_sum(q2, rn(q3 + q4))
    q0, q1 = fast_two_sum(q0, q1)
    q1, q2 = fast_two_sum(q1, q2)
    return q0, q1, *fast_two_sum(q2, q3)


@pytest.mark.parametrize("p", [3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_corrected_quotients_are_normalised(p: int) -> None:
    wrong, count = settled(corrected4, p)
    assert count > 1000
    assert wrong == 0


def test_one_sweep_would_not_do() -> None:
    assert settled(one_sweep, 3)[0] > 0


def quotient_without_low_divisor(x, y):
    q = rn(div(x[0], y[0]))
    r0, _ = scale(y[0], y[1], q)
    return fast_two_sum(q, rn(div(rn(rn(x[0] - r0) + x[1]), y[0])))


def quotient_by_float_without_low(x, y):
    q = rn(div(x[0], y[0]))
    r0, r1 = scale(y[0], y[0] - y[0], q)
    return fast_two_sum(q, rn(div(rn(rn(x[0] - r0) - r1), y[0])))


def root_without_low(x):
    s = rn(sqrt(x[0]))
    p, e = two_square(s)
    return fast_two_sum(s, rn(div(rn(rn(x[0] - p) - e), rn(s + s))))


def test_mutants_are_rejected() -> None:
    fmt = roomy(4)
    x = binade(fmt, 0, 1)
    assert worst(quotient_without_low_divisor, fmt, x, x) > limit("div", fmt)
    divisor = (positives(fmt, 0, 0),)
    by_float = limit("div", fmt, float_second=True)
    assert worst(quotient_by_float_without_low, fmt, x, divisor) > by_float
    assert worst(root_without_low, fmt, x) > limit("sqrt", fmt)
