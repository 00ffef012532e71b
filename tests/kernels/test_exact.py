"""The exact executor is right: against NumPy's own casts, mpmath's roots, and the definition.

Everything else is tested against it, so it is tested against what it shares no code with.
"""

from __future__ import annotations

import math
from fractions import Fraction

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given

from mcf.kernels import BF16, FP16, FP32, FP64, Format, toy
from mcf.kernels.algorithms import fast_two_sum, mul, split, two_prod, two_sum
from mcf.kernels.algorithms.primitives import div, rc, rn, sqrt, where
from mcf.kernels.exact import bind, exponent, is_finite, rounding, square_root
from tests.helpers.toys import bound, finite

REAL = [BF16, FP16, FP32, FP64]
doubles = st.floats(allow_nan=False, allow_infinity=False)
small_rationals = st.fractions(max_denominator=10**6)


@given(doubles)
def test_rounding_agrees_with_numpy(x: float) -> None:
    with np.errstate(over="ignore"):
        assert rounding(FP32)(Fraction(x)) == float(np.float32(x))
        assert rounding(FP16)(Fraction(x)) == float(np.float16(x))
    assert rounding(FP64)(Fraction(x)) == x


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_rounding_agrees_with_torch_bfloat16(x: float) -> None:
    assert rounding(BF16)(Fraction(x)) == torch.tensor(x).bfloat16().item()


@given(small_rationals, st.integers(-200, 200))
def test_rounding_of_what_is_not_dyadic(q: Fraction, e: int) -> None:
    # Python's division of integers is correctly rounded.
    x = q * Fraction(2) ** e
    assert rounding(FP64)(x) == float(x)


@given(doubles, st.sampled_from([*REAL, toy(2), toy(5, -3, 3)]))
def test_nothing_of_the_format_is_nearer(x: float, fmt: Format) -> None:
    y = rounding(fmt)(Fraction(x))
    if not is_finite(y):
        assert abs(Fraction(x)) >= fmt.max * (1 + fmt.u / (2 - 2 * fmt.u))
        return
    assert rounding(fmt)(y) == y
    ulp = Fraction(2) ** (max(exponent(y) if y else fmt.emin, fmt.emin) - fmt.p + 1)
    assert abs(y - Fraction(x)) <= ulp / 2
    if abs(y - Fraction(x)) == ulp / 2:
        assert (y / ulp) % 2 == 0


@pytest.mark.parametrize("fmt", [*REAL, toy(3)], ids=lambda f: f.name)
def test_edges(fmt: Format) -> None:
    rnd = rounding(fmt)
    half_way = fmt.max + fmt.max * fmt.u / (2 - 2 * fmt.u)
    tiny = Fraction(1, 10**400)
    assert rnd(fmt.max) == fmt.max
    assert rnd(half_way - tiny) == fmt.max
    assert rnd(half_way) == math.inf
    assert rnd(-half_way) == -math.inf
    assert rnd(fmt.min_subnormal / 2) == 0
    assert rnd(fmt.min_subnormal / 2 + tiny) == fmt.min_subnormal
    assert rnd(fmt.min_subnormal * Fraction(3, 2)) == 2 * fmt.min_subnormal
    assert rnd(fmt.min_normal - fmt.min_subnormal / 2) == fmt.min_normal
    assert rnd(1 + fmt.u) == 1
    assert rnd(1 + 3 * fmt.u) == 1 + 4 * fmt.u
    assert rnd(math.inf) == math.inf
    assert math.isnan(rnd(math.nan))


@given(small_rationals)
def test_exponent(q: Fraction) -> None:
    if q:
        assert Fraction(2) ** exponent(q) <= abs(q) < Fraction(2) ** (exponent(q) + 1)


@given(st.floats(min_value=0, allow_infinity=False), st.sampled_from([*REAL, toy(4, -200, 200)]))
def test_square_root_agrees_with_mpmath(x: float, fmt: Format) -> None:
    with mpmath.workprec(2 * 53 + 20):
        # Enough bits that rounding twice is rounding once; exact where the root is.
        root = mpmath.sqrt(mpmath.mpf(x))
        sign, mantissa, e, _ = root._mpf_
        reference = (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(e)
    assert square_root(Fraction(x), fmt) == rounding(fmt)(reference)


def test_square_root_of_ties_and_specials() -> None:
    # sqrt of the square of a midpoint is a tie: to even.
    for k, even in ((17, 16), (19, 20), (21, 20)):
        assert square_root(Fraction(k * k), toy(4)) == even
    assert square_root(Fraction(0), FP16) == 0
    assert math.isnan(square_root(Fraction(-1), FP16))
    assert square_root(math.inf, FP16) == math.inf
    assert math.isnan(square_root(-math.inf, FP16))
    assert math.isnan(square_root(math.nan, FP16))


def test_agrees_with_the_torch_toy_binding() -> None:
    # Two implementations of the same toy format: rationals, and float64 tensors.
    fmt = toy(4, -4, 3)
    x = finite(fmt)
    a, b = (t.flatten() for t in torch.meshgrid(x, x[::11], indexing="ij"))
    for algorithm in (two_sum, fast_two_sum, two_prod):
        exact = bind(algorithm, fmt)
        for u, v, *expected in zip(
            a.tolist(), b.tolist(), *(t.tolist() for t in bound(algorithm, fmt)(a, b)), strict=True
        ):
            got = [float(y) for y in exact(Fraction(u), Fraction(v))]
            assert np.array_equal(got, expected, equal_nan=True)


def product(a, b):
    return rn(a * b)


def test_registers_round_twice_what_is_not_of_the_format() -> None:
    # A float32 scalar times a bf16 number, so near a midpoint of bf16 that float32 calls it a tie.
    # With both of the format this never happens: test_registers_round_correctly.
    x = Fraction(129, 128)
    scalar = rounding(FP32)(Fraction(261, 256) / x)
    assert is_finite(scalar)
    once, twice = bind(product, BF16), bind(product, BF16, register=FP32)
    assert once(scalar, x) != twice(scalar, x)
    assert twice(scalar, x) == rounding(BF16)(rounding(FP32)(scalar * x))


def test_overflow_of_a_product_in_registers() -> None:
    # The exact product is finite and an FMA gives -inf; in float32 it is inf, and inf - inf is NaN.
    assert bind(two_prod, BF16)(BF16.max, BF16.max) == (math.inf, -math.inf)
    p, e = bind(two_prod, BF16, register=FP32)(BF16.max, BF16.max)
    assert p == math.inf
    assert math.isnan(e)
    # float32 holds the product of the largest fp16 numbers.
    assert bind(two_prod, FP16, register=FP32)(FP16.max, FP16.max) == (math.inf, -math.inf)
    assert bind(two_prod, FP64)(FP64.max, FP64.max) == (math.inf, -math.inf)


def test_infinities_and_nan_pass_through() -> None:
    one = Fraction(1)
    s, e = bind(two_sum, FP64)(math.inf, one)
    assert s == math.inf
    assert math.isnan(e)
    assert math.isnan(bind(product, FP64)(math.inf, Fraction(0)))
    assert bind(product, FP64)(-math.inf, FP64.min_subnormal) == -math.inf
    assert all(math.isnan(y) for y in bind(mul, FP16)(math.nan, one, one, one))
    assert bind(split, BF16)(BF16.max)[0] != BF16.max


def quotient_and_root(a, b):
    return rn(div(a, b)), rn(sqrt(where(a < b, a, b)))


def test_division_and_root() -> None:
    three, one, zero = Fraction(3), Fraction(1), Fraction(0)
    both = bind(quotient_and_root, FP16)
    assert both(one, three) == (rounding(FP16)(Fraction(1, 3)), one)
    assert both(one, zero)[0] == math.inf
    assert both(-one, zero)[0] == -math.inf
    assert math.isnan(both(zero, zero)[0])
    assert both(one, math.inf)[0] == 0
    assert both(math.inf, -three)[0] == -math.inf
    assert math.isnan(both(math.inf, math.inf)[0])
    registers = bind(quotient_and_root, FP16, register=FP32)
    assert registers(Fraction(2), three)[1] == rounding(FP16)(square_root(Fraction(2), FP32))


def doubled(a):
    return a + a


def with_a_slot(a):
    return rc(a), rn(a), open_name(a)  # noqa: F821


def test_roundings_and_slots() -> None:
    third = Fraction(1, 3)
    function = bind(with_a_slot, FP32, roundings={"rc": BF16}, slots={"open_name": doubled})
    assert function(third) == (rounding(BF16)(third), rounding(FP32)(third), 2 * third)
