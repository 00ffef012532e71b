"""Incomplete gamma functions against ball arithmetic: observed errors, torch's special values.

Caught mutants: no component more than the result has, Q as 1 - P for a small a. Half of the steps
that docs/numerics.md proves to be enough are not, for the largest a.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flint import acb, arb, ctx

import mcf
from mcf.expansions.ops.elementary import incomplete_gamma
from mcf.kernels.formats import format_of
from tests.helpers.elementary import balls

# Values: on the torch executor, which compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
SHARE = "0.9876543210987654321098765432109876543210987654321"


def _given(dtype: torch.dtype, terms: int, few: bool) -> tuple[Any, Any]:
    first = [0.5, 3.75, 20.25] if few else [2.0**-60, 2.0**-10, 0.5, 1.0, 3.75, 20.25, 100.0]
    ratios = [0.5, 8.0] if few else [2.0**-30, 0.25, 0.9921875, 1.0625, 3.0, 7.9375, 20.0]
    pairs = [(a, max(a, 1.0) * r) for a in first for r in ratios]
    a, x = (mcf.tensor([p[k] for p in pairs], terms, dtype) for k in (0, 1))
    # All bits of both count.
    share = mcf.tensor(SHARE, terms, dtype)
    return a * share, x * share


def _exactly(a: arb, x: arb) -> tuple[arb, arb]:
    lower = acb(x).gamma_lower(acb(a), regularized=1).real
    return lower, acb(x).gamma_upper(acb(a), regularized=1).real


def _worst(dtype: torch.dtype, terms: int, *, few: bool, upper: bool) -> float:
    """In units of u^n of the result, of results above 2^-900 (2^-60 of fp32)."""
    a, x = _given(dtype, terms, few)
    function = torch.special.gammaincc if upper else torch.special.gammainc
    found: Any = function(a, x)
    unit = arb(float(format_of(dtype).u ** terms))
    worst, before = 0.0, ctx.prec
    ctx.prec = 900
    try:
        for b, y, ours in zip(*(balls(v.components) for v in (a, x, found)), strict=True):
            exact = _exactly(b, y)[upper]
            if exact > arb(2) ** (-900 if dtype is F64 else -60):
                worst = max(worst, float(abs(ours - exact) / (exact * unit)))
    finally:
        ctx.prec = before
    return worst


@pytest.mark.parametrize("upper", [pytest.param(False, marks=pytest.mark.slow), True])
def test_errors(upper: bool) -> None:
    """Half of the last bit, which is u, and what 53 bits more leave of other errors."""
    assert 0 < _worst(F32, 1, few=True, upper=upper) <= 1.001


@pytest.mark.slow
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(
    ("dtype", "terms", "limit"),
    # Of four components as many are computed with: what the exponent's error does comes on top.
    [(F64, 1, 1.001), (F64, 2, 1.001), (F64, 3, 1.001), (F32, 3, 1.001), (BF16, 2, 1.001),
     (F64, 4, 4000.0)],
)  # fmt: skip
def test_errors_everywhere(dtype: torch.dtype, terms: int, limit: float, upper: bool) -> None:
    assert 0 < _worst(dtype, terms, few=False, upper=upper) <= limit


@pytest.mark.slow
def test_a_large_first_argument() -> None:
    """By the fraction next to x = a, where it takes most steps."""
    a, x = (mcf.tensor([v], 2, F64) for v in (4096.5, 4097.625))
    # Balls lose 2 bits for each of a.
    before, ctx.prec = ctx.prec, 13000
    try:
        for function, upper in ((torch.special.gammainc, 0), (torch.special.gammaincc, 1)):
            found: Any = function(a, x)
            (value,) = balls(found.components)
            exact = _exactly(arb(4096.5), arb(4097.625))[upper]
            assert abs(value - exact) <= exact * arb(2) ** -106 * arb("1.001")
    finally:
        ctx.prec = before


@pytest.mark.slow
@pytest.mark.parametrize("upper", [False, True])
def test_four_components_lose_what_the_exponent_has(upper: bool) -> None:
    """Observed: u^4 of the sum of its terms at most, .7 where climbs ended, as here."""
    points = [(192.0651402650797, 157.02385454218532), (150.66300996959103, 170.92680973928407)]
    a, x = (mcf.tensor([p[k] for p in points], 4, F64) * (1 - 2.0**-54) for k in (0, 1))
    found: Any = (torch.special.gammaincc if upper else torch.special.gammainc)(a, x)
    before, ctx.prec = ctx.prec, 900
    try:
        for b, y, ours in zip(*(balls(v.components) for v in (a, x, found)), strict=True):
            exact = _exactly(b, y)[upper]
            terms = b * abs(y.log()) + (b + 1).lgamma() + y
            assert abs(ours - exact) <= exact * arb(2) ** -212 * terms
    finally:
        ctx.prec = before


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["terms", "small"])
def test_mutants(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "terms":
        monkeypatch.setattr(incomplete_gamma, "_terms", lambda x: x.terms)
    else:
        whole = incomplete_gamma._computed
        one: Callable[..., Any] = lambda a, x, upper, spare: (  # noqa: E731
            1 - whole(a, x, False, spare) if upper else whole(a, x, upper, spare)
        )
        monkeypatch.setattr(incomplete_gamma, "_computed", one)
    # With 2^-60 for a.
    assert _worst(F64, 2, few=False, upper=True) > 4


def _steps(a: float, x: float) -> int:
    """After how many the exact fraction is off by 2^-212: of positive factors, so in float64."""
    before, last, k, left = x - a + 1, 0.0, 0, 0.0
    while left > -212:
        k += 1
        numerator, b = k * (a - k), x - a + 2 * k + 1
        now = b + numerator / before
        factor = abs(b / now - 1) if k == 1 else abs(numerator) / (now * last)
        left += math.log2(factor) if factor else -math.inf
        before, last = now, b if k == 1 else b + numerator / last
    return k


def test_steps_of_the_fraction() -> None:
    """The bound of docs/numerics.md: 1610 for a < 256, else 35 a^(1/3) + 5."""
    most = 0
    for a in (0.0, 0.5, 7.25, 20.5, 100.5, 255.5, 256.5, 4096.5, 65536.5, 2.0**20 - 0.5, 2.0**20):
        limit = 1610 if a < 256 else 35 * a ** (1 / 3) + 5
        for x in (a + 1, 1.03 * a, 2 * a, a + 300):
            most = max(most, _steps(a, max(x, a + 1, 8.0)))
            assert most <= limit <= incomplete_gamma._MOST
    assert most > incomplete_gamma._MOST / 2


def test_special_values() -> None:
    numbers = [0.0, 1.0, -1.0, torch.inf, torch.nan]
    a, x = (torch.tensor(v) for v in zip(*((p, q) for p in numbers for q in numbers), strict=True))
    keep = ~((a == 1) & (x == 1))
    for name in ("gammainc", "gammaincc"):
        function = getattr(torch.special, name)
        ours = function(mcf.tensor(a[keep], 2, F64), mcf.tensor(x[keep], 2, F64)).to_plain()
        theirs = function(a.double(), x.double())[keep]
        # Of a NaN beside an infinity or a zero torch has numbers.
        theirs[a[keep].isnan() | x[keep].isnan()] = torch.nan
        assert torch.equal(ours.nan_to_num(-7), theirs.nan_to_num(-7))


@pytest.mark.slow
def test_derivatives_and_refusals() -> None:
    a, x = torch.tensor([2.0, 1.0], dtype=F64), mcf.tensor([3.0, 0.5], 2, F64).requires_grad_()
    with pytest.raises(mcf.UnsupportedError, match="no derivative by a"):
        torch.special.gammainc(mcf.tensor(a, 2).requires_grad_(), x)
    with pytest.raises(mcf.UnsupportedError, match=r"up to 2\W+20, got 1048577.0"):
        torch.igamma(mcf.tensor(2.0**20 + 1, 2, F64), mcf.tensor(3.0, 2, F64))
    slopes = []
    for function in (torch.special.gammainc, torch.special.gammaincc):
        slopes += torch.autograd.grad(function(a, x).sum(), x, create_graph=True)
    # x^(a - 1) e^-x / Gamma(a); the derivative of that is (a - 1) / x - 1 times it.
    v: Any = x.detach()
    exact = torch.where(torch.tensor([True, False]), v, 1.0) * torch.exp(-v)
    assert ((slopes[0] - exact).abs() <= 2.0**-103 * exact).all()
    assert ((slopes[0] + slopes[1]) == 0).all()
    (curve,) = torch.autograd.grad(slopes[0].sum(), x)
    assert ((curve - exact * ((a - 1) / v - 1)).abs() <= 2.0**-100).all()
