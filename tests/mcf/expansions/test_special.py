"""Test incomplete gamma functions, Hurwitz's zeta and orthogonal polynomials.

Gamma and zeta functions are compared with ball arithmetic, polynomials with their explicit sums in
fractions. Each of the n steps of a recurrence rounds with 2^-104 of the largest polynomial so far,
and near the ends of [-1, 1] an error grows in proportion to the later steps: n^2 2^-102 in all.

Caught mutants: as many components as the result has; Q as 1 - P for a small a; half of the steps
that docs/numerics.md proves to be enough; a zeta series of 8 terms, or from 4 on; a division by
k + 2; products of first components; v and w exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from math import comb, factorial
from typing import Any

import pytest
import torch
from flint import acb, arb, ctx

import mcf
from mcf.expansions.ops.elementary import incomplete_gamma, polygamma
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
    # Four components are computed with four: the effect of the exponent's error comes on top.
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
        # torch returns numbers for a NaN next to an infinity or a zero.
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


_SLOW = pytest.mark.slow
PAIRS = [
    (1.0000001, 0.75), (1.5, 1.0), (1.5, 2.0**-30), (2.5, 40.0), (3.75, 1e9), (20.5, 3.0),
    (36.0, -7.3), (41.0, -100.2), (64.5, 30.0), (150.25, 1.25),
]  # fmt: skip


def _worst_zeta(dtype: torch.dtype, terms: int, pairs: list[tuple[float, float]]) -> float:
    """In units of u^n of the result."""
    share = mcf.tensor("1.00000000098765432109876543210987654321", terms, dtype)
    s, q = (mcf.tensor([p[k] for p in pairs], terms, dtype) for k in (0, 1))
    q = q * share
    s = torch.where(s == s.round(), s, s * share)
    found: Any = torch.special.zeta(s, q)
    unit, worst, before = arb(float(format_of(dtype).u ** terms)), 0.0, ctx.prec
    ctx.prec = 900
    try:
        for a, b, ours in zip(*(balls(v.components) for v in (s, q, found)), strict=True):
            exact = arb(0)
            while b < 0:
                exact, b = exact + b ** -int(float(a)), b + 1
            exact += acb(a).zeta(acb(b)).real
            # Numbers of which float32 holds all components.
            if dtype is F64 or abs(exact) > arb(2) ** -60:
                worst = max(worst, float(abs(ours - exact) / (abs(exact) * unit)))
        return worst
    finally:
        ctx.prec = before


@_SLOW
def test_zeta_errors() -> None:
    """Half of the last bit, and what 53 bits more leave of other errors."""
    assert 0 < _worst_zeta(F32, 1, [PAIRS[3], PAIRS[6]]) <= 1.001


@_SLOW
@pytest.mark.parametrize(
    ("dtype", "terms", "limit"),
    # Of four components as many are computed with: a hundred sums and powers.
    [(F64, 1, 1.001), (F64, 2, 1.001), (F64, 3, 1.001), (F32, 3, 1.001), (F64, 4, 200.0)],
)
def test_zeta_errors_everywhere(dtype: torch.dtype, terms: int, limit: float) -> None:
    assert 0 < _worst_zeta(dtype, terms, PAIRS) <= limit


@_SLOW
@pytest.mark.parametrize(("broken", "value"), [("_COUNT", 8), ("_FROM", 4)])
def test_zeta_mutants(broken: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    polygamma._weight.cache_clear()
    monkeypatch.setattr(polygamma, broken, value)
    assert _worst_zeta(F64, 2, PAIRS[1:2]) > 2
    polygamma._weight.cache_clear()


@_SLOW
def test_zeta_special_values() -> None:
    inf, nan = torch.inf, torch.nan
    # Of the one number that is computed few terms are added up.
    numbers = [0.0, -0.0, 1.0, 45.0, -2.0, -1.5, inf, -inf, nan]
    orders = [1.0, 0.5, -1.0, 1.5, inf, -inf, nan]
    pairs = [(a, b) for a in orders for b in numbers if (a, b) != (1.5, 1.0)]
    s, q = (torch.tensor(v, dtype=F64) for v in zip(*pairs, strict=True))
    ours = torch.special.zeta(mcf.tensor(s, 2, F64), mcf.tensor(q, 2, F64)).to_plain()
    theirs = torch.special.zeta(s, q)
    known = theirs.isinf() | theirs.isnan()
    assert torch.equal(ours[known].nan_to_num(-7, 8, 9), theirs[known].nan_to_num(-7, 8, 9))
    # Torch's own has some bits less than 53.
    assert torch.allclose(ours[~known], theirs[~known], rtol=2.0**-40)


@_SLOW
def test_zeta_derivatives() -> None:
    """By q -s zeta(s + 1, q); by s an error, as torch has it."""
    s, q = mcf.tensor("2.5", 2, F64), mcf.tensor(["1.5", "0.3"], 2, F64).requires_grad_()
    (slope,) = torch.autograd.grad(torch.special.zeta(2.5, q).sum(), q, create_graph=True)
    exact = -2.5 * torch.special.zeta(s + 1, q.detach())
    assert ((slope - exact).abs() <= 2.0**-103 * exact.abs()).all()
    (curve,) = torch.autograd.grad(slope.sum(), q)
    assert ((curve - 8.75 * torch.special.zeta(4.5, q.detach())).abs() < 2.0**-95).all()
    with pytest.raises(mcf.UnsupportedError, match="no derivative by s"):
        torch.special.zeta(s.requires_grad_(), q)


@_SLOW
def test_whole_and_other_orders_together() -> None:
    """Whole s from 2 to 33 have the bits of their kernels."""
    s, x = torch.tensor([3.0, 2.5, 40.0], dtype=F64), mcf.tensor("1.25", 2, F64)
    both = torch.special.zeta(s, x)
    assert torch.equal(both[0].components[1], torch.special.zeta(3, x).components[1])
    assert torch.equal(both[1].components[1], torch.special.zeta(2.5, x).components[1])


POINTS = [Fraction(k, 2**9 * 3**3) for k in (-(2**10), -13824, -6912, -1, 0, 5, 4095, 13823, 13824)]
POINTS += [Fraction(-7, 3), Fraction(2**20 + 1, 3)]


def _u(n: int, x: Fraction) -> Fraction:
    return sum((-1) ** k * comb(n - k, k) * (2 * x) ** (n - 2 * k) for k in range(n // 2 + 1))


def _he(n: int, x: Fraction) -> Fraction:
    return sum(
        Fraction((-1) ** m * factorial(n), factorial(m) * factorial(n - 2 * m) * 2**m)
        * x ** (n - 2 * m)
        for m in range(n // 2 + 1)
    )


def _h(n: int, x: Fraction) -> Fraction:
    return sum(
        Fraction((-1) ** m * factorial(n), factorial(m) * factorial(n - 2 * m))
        * (2 * x) ** (n - 2 * m)
        for m in range(n // 2 + 1)
    )


def _l(n: int, x: Fraction) -> Fraction:
    return sum(comb(n, k) * (-x) ** k / factorial(k) for k in range(n + 1))


def _p(n: int, x: Fraction) -> Fraction:
    terms = range(n // 2 + 1)
    return (
        sum((-1) ** k * comb(n, k) * comb(2 * n - 2 * k, n) * x ** (n - 2 * k) for k in terms)
        / 2**n
    )


def _before(n: int, x: Fraction) -> Fraction:
    return _u(n - 1, x) if n else Fraction(0)


EXACT: dict[str, Callable[[int, Fraction], Fraction]] = {
    "chebyshev_polynomial_t": lambda n, x: (
        (_u(n, x) - (_u(n - 2, x) if n > 1 else 0)) / (2 if n else 1)
    ),
    "chebyshev_polynomial_u": _u,
    "chebyshev_polynomial_v": lambda n, x: _u(n, x) - _before(n, x),
    "chebyshev_polynomial_w": lambda n, x: _u(n, x) + _before(n, x),
    "hermite_polynomial_h": _h,
    "hermite_polynomial_he": _he,
    "laguerre_polynomial_l": _l,
    "legendre_polynomial_p": _p,
}
for _name in "tuvw":
    EXACT[f"shifted_chebyshev_polynomial_{_name}"] = (
        lambda n, x, f=EXACT[f"chebyshev_polynomial_{_name}"]: f(n, 2 * x - 1)
    )


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", EXACT)
def test_polynomial_values(name: str) -> None:
    x = mcf.tensor(POINTS, 2, torch.float64)
    points = [Fraction(f) for f in x.to_fractions()]
    for n in (0, 1, 2, 3, 8, 21):
        got = getattr(torch.special, name)(x, n).to_fractions()
        wanted = [EXACT[name](n, p) for p in points]
        # The largest of the polynomials that the recurrence passed through.
        sizes = [max(abs(EXACT[name](k, p)) for k in range(n + 1)) for p in points]
        if "laguerre" in name or "hermite" in name:
            # Their coefficients grow: 2 k or x / k times what came before.
            sizes = [s * (n + abs(p) + 1) for s, p in zip(sizes, points, strict=True)]
        for value, want, size in zip(got, wanted, sizes, strict=True):
            assert abs(Fraction(value) - want) <= (n + 1) ** 2 * Fraction(1, 2**102) * size


@pytest.mark.parametrize("name", ["chebyshev_polynomial_v", "legendre_polynomial_p"])
def test_orders_as_a_tensor(name: str) -> None:
    """Each element has its order; orders are cut to whole ones and give 0 below 0, as in torch."""
    function = getattr(torch.special, name)
    x = mcf.tensor([[1, 2], [3, -5]], 3, torch.float32) / 7
    orders = torch.tensor([0, 3, 7, -1])
    got = function(x[..., None], orders)
    assert got.shape == (2, 2, 4)
    for i, n in enumerate(orders.tolist()):
        assert torch.equal(got[..., i], function(x, n))
    assert torch.equal(function(x, torch.tensor(2.75)), function(x, 2))
    assert torch.equal(function(x, -1), torch.zeros_like(x))
    plain = function(x.to_plain(torch.float64), 3)
    assert torch.allclose(function(x, 3).to_plain(torch.float64), plain)
    assert function(x[:0], orders[:0, None, None]).shape == (0, 0, 2)


def test_polynomial_derivatives() -> None:
    """T_n' = n U_{n-1}, to the 10 bits that both may lose."""
    x = mcf.tensor([1, -2, 3], 2, torch.float64) / 7
    x.requires_grad_()
    torch.special.chebyshev_polynomial_t(x, 6).sum().backward()
    want = 6 * torch.special.chebyshev_polynomial_u(x.detach(), 5)
    assert ((x.grad - want).abs() <= 2.0**-90).all()


def test_what_is_not_finite() -> None:
    x = mcf.tensor([torch.nan, torch.inf], 2)
    got = torch.special.legendre_polynomial_p(x, 2).to_plain()
    assert got[0].isnan()
    assert got[1] == torch.inf
    assert torch.special.legendre_polynomial_p(x, 0).to_plain().tolist() == [1, 1]
