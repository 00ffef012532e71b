"""Sums of an expansion and a float: those with zeros behind the float, in fewer operations.

*Exact*: every rounding is one of rationals. Mutant caught: one that takes the float for the
smaller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from mcf.kernels import FP64, exact
from mcf.kernels.algorithms import sums
from mcf.kernels.formats import Format
from mcf.kernels.statements import written
from tests.helpers.adversarial import Draw

CASES = {3: (sums.sum3, sums.plus_float3), 4: (sums.sum4, sums.plus_float4)}


def _same(whole: Callable[..., Any], short: Callable[..., Any], terms: int) -> bool:
    d, count = Draw(FP64, 3), 100
    planes = [d.numbers(d.exponents(count, -3, 3))]
    for _ in range(terms - 1):
        planes.append(d.low(planes[-1]))
    y = d.numbers(d.exponents(count, -60, 60))
    # What cancels, in part or but for what is behind the first component.
    y[::4] = -planes[0][::4]
    y[1::4] = -(planes[0] * 256).round()[1::4] / 256
    formats: dict[str, Format] = {"rc": FP64}
    network, shorter = (exact.bind(f, FP64, roundings=formats) for f in (whole, short))
    zeros = (Fraction(0),) * (terms - 1)
    for *x, b in zip(*(p.tolist() for p in planes), y.tolist(), strict=True):
        given, number = tuple(map(Fraction, x)), Fraction(b)
        if network(given, (number, *zeros)) != shorter(given, (number,)):
            return False
    return True


@pytest.mark.parametrize("terms", CASES)
def test_the_sum_with_zeros(terms: int) -> None:
    assert _same(*CASES[terms], terms)


@pytest.mark.parametrize("terms", CASES)
def test_a_sum_that_asks_for_an_order_is_caught(terms: int) -> None:
    whole, short = CASES[terms]
    line = "a, b = two_sum(x0, y[0])"
    text = inspect.getsource(short)
    assert text.count(line) == 1
    _, *body = text.replace(line, line.replace("two", "fast_two")).splitlines()
    lines = [each.strip() for each in body if not each.strip().startswith('"""')]
    names = {n: short.__globals__[n] for n in short.__code__.co_names}
    assert not _same(whole, written("mutant", "x, y", lines, "A mutant.", **names), terms)
