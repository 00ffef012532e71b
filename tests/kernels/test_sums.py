"""Sums of expansions with fewer operations than `sum3` and `sum4`, in exact arithmetic.

*Exact*: every rounding is one of rationals. Sums with a much smaller expansion keep their bounds;
sums with a float are those with zeros behind it. Mutants caught: an error left out, a low component
left out, a renormalisation left out; a sum that takes the float for the smaller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from mcf.elementary.error_steps import Steps
from mcf.kernels import FP64, exact
from mcf.kernels.algorithms import sums
from mcf.kernels.statements import written
from tests.helpers.adversarial import Draw

LENGTHS = (2, 3, 4)


def _expansion(d: Draw, lead: np.ndarray, terms: int) -> list[tuple[Fraction, ...]]:
    out = [lead]
    for _ in range(terms - 1):
        out.append(d.low(out[-1]))
    return [tuple(map(Fraction, row)) for row in zip(*(c.tolist() for c in out), strict=True)]


def _worst(function: Callable[..., object], terms: int) -> tuple[Fraction, bool]:
    """The largest error in units of u^n, and whether low components are that small."""
    run = exact.bind(function, FP64, roundings={"rc": FP64})
    d = Draw(FP64, 5)
    n = 400
    x = _expansion(d, d.numbers(d.exponents(n, -2, 2)), terms)
    share = d.numbers(d.exponents(n, -120, -2))
    share[: n // 2] = d.rng.choice([-0.5, 0.5, -0.25, 2.0**-53, -(2.0**-53)], n // 2)
    y = _expansion(d, np.array([float(v[0]) for v in x]) * share, terms)
    worst, normal = Fraction(0), True
    for a, b in zip(x, y, strict=True):
        found, total = run(a, b), sum(a) + sum(b)
        worst = max(worst, abs(sum(found) - total) / abs(total) / FP64.u**terms)
        # What the bounds of products and sums take of components. A tie may be passed by what
        # follows it, in the second order.
        unit = (1 + 8 * FP64.u) * abs(found[0])
        normal &= all(abs(c) <= FP64.u**k * unit for k, c in enumerate(found))
    return worst, normal


@pytest.mark.parametrize("terms", LENGTHS)
def test_error(terms: int) -> None:
    worst, normal = _worst(sums.ABSORBED[terms], terms)
    assert normal
    assert 0 < worst <= Steps(terms).absorb() / Steps(terms).constant()


def _mutant(function: FunctionType, line: str, instead: str) -> FunctionType:
    text = inspect.getsource(function)
    assert text.count(line) == 1
    _, *body = text.replace(line, instead).splitlines()
    body = [each.strip() for each in body if not each.strip().startswith('"""')]
    names = {n: function.__globals__[n] for n in function.__code__.co_names}
    return written("mutant", "x, y", body, "A mutant.", **names)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("terms", "line", "instead"),
    [
        (2, "rn(b + rn(x1 + y1))", "rn(b + x1)"),
        (3, "rn(rn(c + d) + rn(x2 + y2))", "rn(c + rn(x2 + y2))"),
        (3, "    b, c = fast_two_sum(b, c)\n", ""),
        (4, "rn(f + rn(x3 + y3))", "rn(x3 + y3)"),
        (4, "rn(rn(d + e) + ", "rn(e + "),
    ],
)
def test_mutants_exceed_the_bound(terms: int, line: str, instead: str) -> None:
    worst, normal = _worst(_mutant(sums.ABSORBED[terms], line, instead), terms)
    assert not normal or worst > Steps(terms).absorb() / Steps(terms).constant()


CASES = {3: (sums.sum3, sums.plus_float3), 4: (sums.sum4, sums.plus_float4)}


def _same(whole: Callable[..., Any], short: Callable[..., Any], terms: int) -> bool:
    d, count = Draw(FP64, 3), 100
    planes = [d.numbers(d.exponents(count, -3, 3))]
    for _ in range(terms - 1):
        planes.append(d.low(planes[-1]))
    y = d.numbers(d.exponents(count, -60, 60))
    # Operands that cancel, in part or down to the trailing components.
    y[::4] = -planes[0][::4]
    y[1::4] = -(planes[0] * 256).round()[1::4] / 256
    formats = {"rc": FP64}
    network, shorter = (exact.bind(f, FP64, roundings=formats) for f in (whole, short))
    zeros = (Fraction(0),) * (terms - 1)
    for *x, b in zip(*(p.tolist() for p in planes), y.tolist(), strict=True):
        given, number = tuple(map(Fraction, x)), Fraction(b)
        if network(given, (number, *zeros)) != shorter(given, (number,)):
            return False
    return True


@pytest.mark.parametrize("terms", CASES)
def test_the_sum_with_a_float_is_that_with_zeros(terms: int) -> None:
    whole, short = CASES[terms]
    assert _same(whole, short, terms)
    line = "a, b = two_sum(x0, y[0])"
    assert not _same(whole, _mutant(short, line, line.replace("two", "fast_two")), terms)
