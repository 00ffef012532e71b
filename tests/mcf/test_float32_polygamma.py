"""Polygamma and zeta functions in float32 registers, whose powers leave the range early.

*Derived bound* (`mcf.bound(..., registers="float32")`) against ball arithmetic, beside the numbers
below which one term is all that counts, beside poles, at the ends of the range. Mutants: that
number for fewer components, exponents beyond those of numbers.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

import mcf
from mcf.elementary import polygamma
from mcf.elementary.format import WORKING, computing_in
from mcf.kernels.formats import BF16, FP16, FP32, Format
from tests.helpers.elementary import inputs
from tests.helpers.special import part

pytestmark = pytest.mark.usefixtures("float32_registers")


def at(m: int, *x: float) -> float:
    """The error over the bound of a number of four components."""
    given = tuple(torch.tensor([c]) for c in (*x, *[0.0] * (4 - len(x))))
    return part(f"polygamma_{m}", FP32, given, polygamma.polygamma(m)(given))[0]


def least(m: int) -> float:
    with computing_in(FP32):
        return polygamma.tiny_below(m)


@pytest.mark.slow
@pytest.mark.parametrize("m", [2, 3, 4])
def test_beside_the_least_number_of_others(m: int) -> None:
    """Below it m! / r^(m+1) alone, above with what is added: both keep the bound."""
    r = least(m)
    below = r * (1 - 2.0**-24)
    for x in ((r,), (below, r * 2.0**-26), (-r,), (-below,), (-1.0, r), (-2.0, -below), (-3.0, r)):
        assert 0 < at(m, *x) <= 1, x


@pytest.mark.slow
@pytest.mark.parametrize("m", [2, 3, 4])
def test_ends_of_the_range(m: int) -> None:
    end = 2.0 ** -(120 // (m + 1))
    for x in (
        (end,), (-end,), (-1.0, -end), (2.0**-149,), (-(2.0**-149),), (-1.0, 2.0**-149),
        (63.99999,), (64.0,), (64.0, -(2.0**-149)), (2.0**20, 2.0**-60), (2.0**31,), (2.0**60,),
        (3e38,), (-62.5, 2.0**-30), (-70.0, 0.25, 2.0**-60), (-(2.0**20), 0.5, 2.0**-26, 2.0**-90),
        (-(2.0**40), -0.125), (0.5, -(2.0**-149)), (0.5,), (-0.5, 2.0**-149),
    ):  # fmt: skip
        assert at(m, *x) <= 1, x
    infinite = polygamma.polygamma(m)((torch.tensor([2.0**-149, -(2.0**-149), 0.0, -2.0]),))
    assert bool(infinite[0].isinf().all())


@pytest.mark.slow
def test_one_term_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at(2, 2.0**-21) <= 1
    few = dataclasses.replace(WORKING[FP32], apart=60)
    monkeypatch.setitem(WORKING, FP32, few)
    assert at(2, 2.0**-21) > 1


@pytest.mark.slow
@pytest.mark.parametrize("m", [2, 3, 4])
def test_exponents_beyond_those_of_numbers(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    far_below = (-(2.0**80), 0.25, 0.0, 0.0)
    assert at(m, *far_below) <= 1
    monkeypatch.setitem(WORKING, FP32, dataclasses.replace(WORKING[FP32], bottom=-2000))
    # Of the others 2^(-80 m) is two numbers multiplied.
    assert (at(m, *far_below) > 1) == (m == 4)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=lambda f: f.name)
@pytest.mark.parametrize("s", [3, 4, 5])
def test_zeta(s: int, fmt: Format) -> None:
    for terms in (2, 4):
        for (x,) in inputs(f"zeta_{s}", fmt, terms, 20, 8):
            assert 0 < max(part(f"zeta_{s}", fmt, x, polygamma.zeta(s)(x))) <= 1


def test_higher_orders_are_refused() -> None:
    """Their tables have numbers beyond the range of float32."""
    x = mcf.tensor([1.5], 2)
    for order in (5, 32):
        with pytest.raises(NotImplementedError, match=f"polygamma_{order} of fp32 components"):
            torch.polygamma(order, x)
        with pytest.raises(ValueError, match="has no form in float32 registers"):
            mcf.bound(f"zeta_{order + 1}", 2)
