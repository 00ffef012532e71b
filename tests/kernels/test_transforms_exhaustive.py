"""The error-free transforms over every pair of numbers of small formats: the theorem is the test.

Each theorem is also tried on broken variants, which the same check must reject; and each
precondition on its other side, where the check must find failures.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcf.kernels.algorithms import fast_two_sum, split, two_prod, two_sum
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.formats import Format, toy
from tests.helpers import mutants
from tests.helpers.toys import bound, exponents, finite, rounded

FORMATS = [toy(2, -4, 3), toy(3, -4, 3), toy(4, -4, 3), toy(5, -6, 3)]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)


def mutants_of(operation: str, *more):
    several = [*mutants.MUTANTS[operation], *more]
    return pytest.mark.parametrize("mutant", several, ids=mutants.name)


def pairs(fmt: Format) -> tuple[Tensor, Tensor]:
    x = finite(fmt)
    return tuple(t.flatten() for t in torch.meshgrid(x, x, indexing="ij"))


def ordered(a: Tensor, b: Tensor) -> Tensor:
    return (a == 0) | (exponents(a) >= exponents(b))


def sum_fails(algorithm, fmt: Format) -> tuple[Tensor, Tensor, Tensor]:
    """All pairs, and where s is not RN(a + b), or s + e not a + b although s is finite."""
    a, b = pairs(fmt)
    s, e = bound(algorithm, fmt)(a, b)
    truth = rounded(a + b, fmt)
    return a, b, (s != truth) | (torch.isfinite(truth) & ~(s + e == a + b))


def product_fails(algorithm, fmt: Format) -> tuple[Tensor, Tensor, Tensor]:
    a, b = pairs(fmt)
    p, e = bound(algorithm, fmt)(a, b)
    truth = rounded(a * b, fmt)
    return a, b, (p != truth) | (torch.isfinite(truth) & ~(p + e == a * b))


def representable(a: Tensor, b: Tensor, fmt: Format) -> Tensor:
    """The precondition of two_prod but for overflow."""
    return (a * b == 0) | (exponents(a) + exponents(b) >= fmt.emin + fmt.p - 1)


# two_sum


@by_format
def test_two_sum_is_exact_for_every_pair(fmt: Format) -> None:
    _, b, fails = sum_fails(two_sum, fmt)
    assert not fails[b.abs() < float(fmt.max)].any()


@pytest.mark.parametrize("fmt", FORMATS[1:], ids=lambda f: f.name)
def test_two_sum_needs_b_below_the_largest_number(fmt: Format) -> None:
    # s is right and the error is not finite: s - a overflows although a + b does not.
    a, b, fails = sum_fails(two_sum, fmt)
    assert fails.any()
    s, e = bound(two_sum, fmt)(a[fails], b[fails])
    assert torch.isfinite(s).all()
    assert not torch.isfinite(e).any()
    assert (b[fails].abs() == float(fmt.max)).all()


def with_one_rounding_missing(a, b):
    s = a + b  # not rounded
    t = rn(s - a)
    return s, rn(rn(a - rn(s - t)) + rn(b - t))


@pytest.mark.sampled
@mutants_of("two_sum", with_one_rounding_missing)
@by_format
def test_two_sum_mutants_are_rejected(mutant, fmt: Format) -> None:
    _, b, fails = sum_fails(mutant, fmt)
    assert fails[b.abs() < float(fmt.max)].any()


# fast_two_sum


@by_format
def test_fast_two_sum_is_exact_for_ordered_exponents(fmt: Format) -> None:
    a, b, fails = sum_fails(fast_two_sum, fmt)
    assert not fails[ordered(a, b)].any()


@by_format
def test_fast_two_sum_is_inexact_for_most_unordered_pairs(fmt: Format) -> None:
    a, b, fails = sum_fails(fast_two_sum, fmt)
    # 73 % to 77 % of them.
    assert fails[~ordered(a, b)].double().mean() > 0.5


def test_fast_two_sum_counterexample() -> None:
    # s = RN(11.25) = 12, but s - a = 10.75 rounds to 10, so e = 10 - 10 and not -0.75.
    fmt = toy(3, -4, 3)
    a, b = torch.tensor([1.25], dtype=torch.float64), torch.tensor([10.0], dtype=torch.float64)
    s, e = bound(fast_two_sum, fmt)(a, b)
    assert s + e != a + b
    s, e = bound(two_sum, fmt)(a, b)
    assert s + e == a + b


@mutants_of("fast_two_sum")
@by_format
def test_fast_two_sum_mutants_are_rejected(mutant, fmt: Format) -> None:
    a, b, fails = sum_fails(mutant, fmt)
    assert fails[ordered(a, b)].any()


# split


# From p = 3: at p = 2 the low half would have no bits.


def bits(x: Tensor, fmt: Format) -> Tensor:
    """Significant bits: from the leading bit to the last one that is set."""
    k = (x.abs() / float(fmt.min_subnormal)).long()
    lowest = k & -k
    odd = torch.where(k == 0, 0, k // lowest.clamp(min=1))
    return torch.frexp(odd.double()).exponent * (odd != 0)


def split_fails(algorithm, fmt: Format) -> tuple[Tensor, Tensor]:
    """All numbers, and where the halves do not add up, or have too many bits."""
    x = finite(fmt)
    hi, lo = bound(algorithm, fmt)(x)
    s = (fmt.p + 1) // 2
    wide = (bits(hi, fmt) > fmt.p - s) | (bits(lo, fmt) > s - 1)
    return x, ~(hi + lo == x) | wide


@pytest.mark.parametrize("fmt", FORMATS[1:], ids=lambda f: f.name)
def test_split_halves_are_exact_and_short(fmt: Format) -> None:
    x, fails = split_fails(split, fmt)
    overflows = torch.isinf(rounded(x * (2 ** ((fmt.p + 1) // 2) + 1), fmt))
    assert not fails[~overflows].any()
    # The other side of the precondition: an overflow on the way always shows.
    assert overflows.any()
    hi, lo = bound(split, fmt)(x[overflows])
    assert not torch.isfinite(hi + lo).any()


@pytest.mark.parametrize("fmt", FORMATS[1:], ids=lambda f: f.name)
def test_products_of_split_halves_are_exact(fmt: Format) -> None:
    x = finite(fmt)
    hi, lo = bound(split, fmt)(x[(x.abs() < 0.5)])
    wide = toy(fmt.p, -40, 40)
    for u in (hi, lo):
        for v in (hi, lo):
            product = u[:, None] * v[None, :]
            assert torch.equal(rounded(product, wide), product)


@mutants_of("split")
@pytest.mark.parametrize("fmt", [toy(5, -6, 8), toy(7, -6, 8)], ids=lambda f: f.name)
def test_split_mutants_are_rejected(mutant, fmt: Format) -> None:
    x, fails = split_fails(mutant, fmt)
    assert fails[x.abs() < 4].any()
    x, fails = split_fails(split, fmt)
    assert not fails[x.abs() < 4].any()


# two_prod


@by_format
def test_two_prod_is_exact_where_the_error_is_representable(fmt: Format) -> None:
    a, b, fails = product_fails(two_prod, fmt)
    assert not fails[representable(a, b, fmt)].any()


@by_format
def test_two_prod_rounds_the_error_below(fmt: Format) -> None:
    a, b, fails = product_fails(two_prod, fmt)
    # Already one exponent below the precondition there are failures.
    edge = exponents(a) + exponents(b) == fmt.emin + fmt.p - 2
    assert fails[edge].any()
    p, e = bound(two_prod, fmt)(a, b)
    assert torch.equal(e[edge], rounded(a * b - p, fmt)[edge])


@by_format
def test_two_prod_overflows_to_infinity(fmt: Format) -> None:
    a, b = pairs(fmt)
    over = torch.isinf(rounded(a * b, fmt))
    assert over.any()
    p, e = bound(two_prod, fmt)(a[over], b[over])
    assert torch.isinf(p).all()
    # As an FMA: a finite product minus an infinity.
    assert torch.equal(e, -p)


@mutants_of("two_prod")
@by_format
def test_two_prod_mutants_are_rejected(mutant, fmt: Format) -> None:
    a, b, fails = product_fails(mutant, fmt)
    assert fails[representable(a, b, fmt)].any()
