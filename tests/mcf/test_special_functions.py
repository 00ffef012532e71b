"""Special functions: errors against ball arithmetic, special values, derivatives.

The bounds are those of `mcf.elementary.special_bounds`: relative to the result, and below zero,
where a reflection cancels, to the sum of the magnitudes of its terms, too. Caught mutants: a table
or a constant without its last component, series some terms short, a zero of digamma of no more bits
than the argument, a reflection by the sine of an angle that is not reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import acb, arb, ctx

import mcf
import mcf.elementary
from mcf.elementary import (
    bessel,
    exponential,
    gamma,
    gamma_series,
    inverse_error,
    special_bounds,
    tables,
)
from mcf.elementary.special_bounds import FUNCTIONS
from mcf.elementary.tables import Components
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.elementary import Inputs, balls, inputs

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

PI = arb.pi


def _log_gamma(x: arb) -> arb:
    return acb(x).lgamma().real


REFERENCE: dict[str, Callable[[arb], arb]] = {
    "lgamma": _log_gamma,
    "digamma": lambda x: x.digamma(),
    "trigamma": lambda x: acb(2).zeta(acb(x)).real,
    "erfinv": lambda x: x.erfinv(),
    "i0": lambda x: acb(x).bessel_i(acb(0)).real,
    "i0e": lambda x: acb(x).bessel_i(acb(0)).real * (-abs(x)).exp(),
    "i1": lambda x: acb(x).bessel_i(acb(1)).real,
    "i1e": lambda x: acb(x).bessel_i(acb(1)).real * (-abs(x)).exp(),
}


def _terms(name: str, x: arb) -> arb:
    """The sum of the magnitudes that a reflection adds up."""
    if name == "lgamma" and x < arb(-0.5):
        sine = abs((PI() * x).sin()) / PI()
        return abs(sine.log()) + abs(abs(x).log()) + abs(_log_gamma(abs(x)))
    if name == "digamma" and x < 0:
        return abs((1 - x).digamma()) + abs(PI() * (PI() * x).cos() / (PI() * x).sin())
    return arb(0)


def _exactly(name: str, x: arb, bits: int) -> tuple[arb, arb]:
    """The reference and its terms, to more bits than wanted."""
    for ctx.prec in (bits + 300, 3400):
        exact, terms = REFERENCE[name](x), _terms(name, x)
        if exact.is_finite() and exact.rad() <= (abs(exact) + terms) * arb(2) ** -(bits + 40):
            return exact, terms
    return exact, terms


def part(name: str, fmt: Format, x: Components, result: Components) -> list[float]:
    """Errors in parts of the bound, 0 beyond the range."""
    terms, before = len(result), ctx.prec
    bound = mcf.bound(name, terms, fmt.dtype)
    found = []
    try:
        ctx.prec = 3400
        for given, ours in zip(balls(x), balls(result), strict=True):
            exact, sizes = _exactly(name, given, fmt.p * terms)
            if not exact.is_finite() or abs(exact) > arb(float(fmt.max)) * (1 - 2.0**-8):
                found.append(0.0)
                continue
            allowed = arb(bound.relative) * abs(exact) + arb(bound.of_terms) * sizes
            value = float(abs(ours - exact) / (allowed + arb(bound.absolute)))
            found.append(value if value == value else math.inf)
            ctx.prec = 3400
        return found
    finally:
        ctx.prec = before


def check(name: str, fmt: Format, terms: int, count: int, seed: int) -> float:
    worst = 0.0
    for (x,) in inputs(name, fmt, terms, count, seed):
        result = getattr(mcf.elementary, name)(x)
        worst = max([worst, *part(name, fmt, x, result)])
    return worst


FORMATS = (BF16, FP16, FP32, FP64)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_within_the_bound(name: str) -> None:
    for fmt, terms in ((FP64, 2), (FP64, 4), (FP32, 2)):
        assert 0 < check(name, fmt, terms, 6, seed=terms) <= 1, (fmt.name, terms)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_of_many(name: str, fmt: Format, terms: int) -> None:
    assert 0 < check(name, fmt, terms, 500, seed=20 + terms) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "terms"), [(FP64, 4), (FP64, 2), (FP32, 4)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_found_by_climbing(name: str, fmt: Format, terms: int) -> None:
    """The worst arguments, changed in one component or a few bits, become no worse than that."""
    draw = Inputs(fmt, terms, seed=3)
    batches = [x for (x,) in inputs(name, fmt, terms, 40, seed=5)]
    parents: Components = tuple(map(torch.cat, zip(*batches, strict=True)))
    best = 0.0
    for _ in range(12):
        scores = part(name, fmt, parents, getattr(mcf.elementary, name)(parents))
        order = np.argsort(scores)[::-1][:12].copy()
        best = max(best, max(scores))
        assert best <= 1
        kept = [c[torch.from_numpy(order)].repeat(10) for c in parents]
        leading = kept[0].double().numpy()
        steps = np.ldexp(draw.rng.random(len(leading)), -draw.rng.integers(3, fmt.p, len(leading)))
        moved = draw.rounded(leading * (1 + draw.rng.choice([-1, 0, 0, 1], len(leading)) * steps))
        parents = draw.expansion(moved)
        parents = tuple(
            torch.cat([torch.where(torch.from_numpy(moved == leading), b, a), b])
            for a, b in zip(parents, kept, strict=True)
        )
    assert best > 0


def _fails(name: str) -> bool:
    return check(name, FP64, 4, 12, seed=1) > 1


def _module(name: str) -> Any:
    """Where a function takes its series from."""
    others: dict[str, Any] = {"erfinv": inverse_error, "i0": bessel, "i0e": bessel}
    return ({"i1": bessel, "i1e": bessel} | others).get(name, gamma)


def _cut(components: Components) -> Components:
    kept = max(1, len(components) - 1) if len(components) >= 4 else len(components)
    return (*components[:kept], *(torch.zeros_like(c) for c in components[kept:]))


@pytest.fixture(scope="module", autouse=True)
def bounds() -> None:
    """Bounds are counted from what mutants change, and kept: before anything changes."""
    for name in FUNCTIONS:
        special_bounds.derived(name, FP64, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_table_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tables.lookup
    assert not _fails(name)
    module = _module(name)
    monkeypatch.setattr(module, "lookup", lambda *given: _cut(whole(*given)))
    assert _fails(name)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", ["lgamma", "digamma", "trigamma"])
def test_a_constant_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tables.constant
    monkeypatch.setattr(gamma, "constant", lambda *given: _cut(whole(*given)))
    assert _fails(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_series_too_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the table: Stirling's last terms are small beside what they are added to."""
    module = _module(name)
    whole = module.degree_needed
    monkeypatch.setattr(module, "degree_needed", lambda terms: whole(terms) - 7)
    assert _fails(name)


@pytest.mark.slow
def test_stirling_cut_in_half(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gamma._tail
    monkeypatch.setattr(gamma, "_tail", lambda k, square: whole(k, square[:2]) + square[2:])
    for name in ("lgamma", "digamma", "trigamma"):
        assert _fails(name)


@pytest.mark.parametrize("broken", ["steps", "inverse"])
def test_a_step_of_erfinv(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logarithm of 2 with fewer bits, and one term less of the inverse series."""
    assert not _fails("erfinv")
    if broken == "inverse":
        fewer = {n: c for n, c in inverse_error._INVERSE.items() if n != 4}
        monkeypatch.setattr(inverse_error, "_INVERSE", fewer | {4: ((0, 0), 1)})
    else:
        whole = exponential.steps
        monkeypatch.setattr(
            exponential, "steps", lambda *given: (whole(*given)[0], whole(*given)[1][:5])
        )
    assert _fails("erfinv")


def test_the_start_of_erfinv() -> None:
    """It leaves what the terms of the inverse series are counted for."""
    e = -torch.cat([torch.arange(1, 1000), torch.arange(1, 60).repeat(40)])
    m = 1 + torch.arange(len(e)).double().remainder(61) / 64
    e = torch.where(m > 1, e - 1, e)
    x = inverse_error.start(m, e)
    before, ctx.prec = ctx.prec, 300
    try:
        for given, row, k in zip(x.tolist(), m.tolist(), e.tolist(), strict=True):
            v = arb(given)
            d = (v.erfc() - arb(row) * arb(2) ** k) * (v * v).exp() * arb.pi().sqrt() / 2
            assert abs(d * v) < arb(2) ** -(inverse_error.START_BITS + 2)
    finally:
        ctx.prec = before


def test_a_short_zero_of_digamma(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as an argument of four components, which may be nearest to it."""
    whole = gamma.table

    def short(name: str, device: torch.device) -> torch.Tensor:
        found = whole(name, device).clone()
        if name == "digamma_zero":
            found[4:] = 0
        return found

    zero = gamma_series.digamma_zero()
    x = tuple(torch.tensor([v], dtype=torch.float64) for v in _rounded(zero, 4))
    assert part("digamma", FP64, x, mcf.elementary.digamma(x))[0] <= 1
    monkeypatch.setattr(gamma, "table", short)
    assert part("digamma", FP64, x, mcf.elementary.digamma(x))[0] > 1


def _rounded(x: Fraction, count: int) -> list[float]:
    found = []
    for _ in range(count):
        found.append(float(x))
        x -= Fraction(found[-1])
    return found


POLES = torch.tensor([-1.0, -2.0, -3.0, -50.0, 1.0, 2.0, 0.5, -0.5, 1e30, 2e37, -1e30])


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_special_values(fmt: Format, terms: int) -> None:
    """As torch has them; of trigamma at poles it has large numbers."""
    x = torch.cat([specials(fmt), POLES.to(fmt.dtype)])
    padded = (x, *(torch.zeros_like(x),) * (terms - 1))
    # torch's own values at poles and infinities, without its rounding of others.
    theirs = {"lgamma": torch.lgamma(x), "digamma": torch.digamma(x)}
    theirs["erfinv"] = torch.erfinv(x)
    theirs["trigamma"] = torch.special.polygamma(1, x)
    whole = (x < 0) & (x == x.round())
    theirs["trigamma"][whole & x.isfinite()] = math.inf
    for name, expected in theirs.items():
        ours = getattr(mcf.elementary, name)(padded)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours[0]), kind(expected)), (name, kind.__name__)
        plain = ~expected.isfinite()
        assert all(bool((c[plain] == 0).all()) for c in ours[1:])
    assert mcf.elementary.lgamma(padded)[0][x == 1].view(torch.uint8).sum() == 0, "+0"


def test_poles_in_later_components() -> None:
    """A whole number only in its leading component, and one that takes two."""
    one = torch.ones(1, dtype=torch.float64)
    near = (-one, one * 2.0**-60)
    assert mcf.elementary.lgamma(near)[0].item() == pytest.approx(60 * math.log(2))
    assert mcf.elementary.digamma(near)[0].item() == pytest.approx(-(2.0**60))
    assert mcf.elementary.trigamma(near)[0].item() == pytest.approx(2.0**120)
    assert mcf.elementary.lgamma((-(2.0**60) * one, one))[0].item() == math.inf
    assert mcf.elementary.digamma((-(2.0**60) * one, one))[0].isnan().all()


def test_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx, "prec", 800)
    x: Any = mcf.tensor(["0.3", "1.7", "-2.3", "90.1"], dtype=torch.float64, requires_grad=True)
    y = torch.lgamma(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    given = balls(x.detach().components)
    for found, name in ((y, "lgamma"), (slope, "digamma"), (curve, "trigamma")):
        for ours, v in zip(balls(found.detach().components), given, strict=True):
            exact = REFERENCE[name](v)
            # One product with 1 behind the function.
            assert abs(ours - exact) < abs(exact) * arb(2) ** -103
    with pytest.raises(mcf.UnsupportedError, match=r"n = 0 and 1, got 2; that is also"):
        torch.autograd.grad(curve.sum(), x)


def test_derivatives_of_erfinv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx, "prec", 800)
    x: Any = mcf.tensor(["0.3", "-0.7", "0.999"], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.erfinv(x).sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), x)
    rows = zip(*map(balls, (v.detach().components for v in (x, slope, curve))), strict=True)
    for given, first, second in rows:
        y = given.erfinv()
        exact = (y * y).exp() * arb.pi().sqrt() / 2
        # A square, an exponential and a product, of arguments up to 6; twice that again.
        assert abs(first - exact) < exact * arb(2) ** -101
        assert abs(second - 2 * y * exact**2) < abs(2 * y * exact**2) * arb(2) ** -99


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e"])
def test_derivatives_of_bessel_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx, "prec", 800)
    x: Any = mcf.tensor(["0.3", "-2.7", "300.1", "1e-20", "0"], dtype=torch.float64)
    (slope,) = torch.autograd.grad(getattr(mcf, name)(x.requires_grad_()).sum(), x)
    for ours, v in zip(balls(slope.components), balls(x.detach().components), strict=True):
        zero, one = REFERENCE["i0" + name[2:]](v), REFERENCE["i1" + name[2:]](v)
        first = one if name[1] == "0" else zero - (one / v if v != 0 else arb(0.5))
        sign = 0 if v == 0 else (1 if v > 0 else -1)
        exact = first - sign * REFERENCE[name](v) if name.endswith("e") else first
        # Sums that cancel where functions of order 0 and 1 are equal to some bits.
        assert abs(ours - exact) <= (zero + abs(one)) * arb(2) ** -102


def test_special_values_of_bessel_functions() -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 89.0, -89.0])
    nan, inf = math.nan, math.inf
    far = float(mcf.i0e(torch.tensor(1e30)))
    expected = {
        "i0": [1, 1, inf, inf, nan, inf, inf, None, None],
        "i0e": [1, 1, 0, 0, nan, far, far, None, None],
        "i1": [0, -0.0, inf, -inf, nan, inf, -inf, None, None],
        "i1e": [0, -0.0, 0, -0.0, nan, far, -far, None, None],
    }
    assert far == pytest.approx(1 / math.sqrt(2 * math.pi * 1e30))
    for name, row in expected.items():
        (ours,) = getattr(mcf.elementary, name)((x,))
        for a, b in zip(ours.tolist(), row, strict=True):
            assert b is None or str(a) == str(float(b)), name
        assert ours[7].isfinite()
        assert ours[7].abs() == ours[8].abs()


def test_names_of_torch() -> None:
    x: Any = mcf.tensor(["0.3", "0.7"], dtype=torch.float64)
    named = {
        "lgamma": (torch.lgamma, torch.special.gammaln, lambda v: v.lgamma(), mcf.lgamma),
        "digamma": (torch.digamma, torch.special.digamma, torch.special.psi, mcf.digamma,
                    lambda v: torch.polygamma(0, v)),
        "i0": (torch.i0, torch.special.i0, torch.special.modified_bessel_i0, lambda v: v.i0(),
               mcf.i0),
        "i0e": (torch.special.i0e, mcf.i0e),
        "i1": (torch.special.i1, torch.special.modified_bessel_i1, mcf.i1),
        "i1e": (torch.special.i1e, mcf.i1e),
        "erfinv": (torch.erfinv, torch.special.erfinv, lambda v: v.erfinv(), mcf.erfinv),
        "trigamma": (lambda v: torch.polygamma(1, v), lambda v: torch.special.polygamma(1, v),
                     lambda v: v.polygamma(1), mcf.trigamma),
    }  # fmt: skip
    for name, functions in named.items():
        expected = getattr(mcf.elementary, name)(x.components)
        for f in functions:
            assert all(map(torch.equal, f(x).components, expected))
        assert all(map(torch.equal, getattr(mcf, name)(x.components), expected))


def test_bounds_are_proved() -> None:
    for name in FUNCTIONS:
        assert mcf.bound(name, 2, torch.float64).proven
        assert mcf.bound(name, 2, torch.float64).relative == pytest.approx(2.0**-106)
