"""Derivatives of the scaled modified Bessel functions, and torch's gradients.

*Derived bound* of the programs, against ball arithmetic. Caught mutants: a zero without its last
components, Hankel's series or a table some terms short, polynomials of another order.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flint import arb, ctx

import mcf
from mcf.elementary import bessel, bessel_slopes, special_bounds, tables
from mcf.elementary.tables import Components
from mcf.kernels import BF16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import balls
from tests.helpers.everyday import everyday
from tests.helpers.executors import assert_numba_agrees
from tests.helpers.special import REFERENCE, bessel_slope, full, part

_SLOW = pytest.mark.slow
OFTEN = ("i1e_1",)
NAMES = [f"{kind}_{m}" for kind in ("i0e", "i1e", "k0e") for m in (1, 2, 3, 4)]
_SOMETIMES = everyday(NAMES, OFTEN)
# Of both sides of each branch, next to the zeros of i1e's derivatives; above 0 for k0e.
POINTS = (
    2.0**-60, 0.015625, 0.28125, 0.984375, 1.0625, 1.545127257, 2.781492935, 5.00294531, 31.875,
    100.0, 255.5, 256.5, 2.0**20,
)  # fmt: skip


def _program(name: str) -> Any:
    kind, m = name.split("_")
    return bessel_slopes.slope(kind, int(m))


def _given(name: str, fmt: Format, terms: int) -> Components:
    points = POINTS if name[0] == "k" else (*POINTS, -0.28125, -2.7814929, -300.0)
    return full(points, fmt, terms)


def _worst(name: str, fmt: Format = FP64, terms: int = 4) -> float:
    x = _given(name, fmt, terms)
    return max(part(name, fmt, x, _program(name)(x)))


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", _SOMETIMES)
def test_branches(name: str) -> None:
    assert 0 < _worst(name, FP64, 2) <= 1


@_SLOW
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", NAMES)
def test_branches_of_other_formats(name: str) -> None:
    for fmt, terms in ((FP64, 4), (FP64, 1), (FP32, 3)):
        assert 0 < _worst(name, fmt, terms) <= 1, (fmt.name, terms)


@_SLOW
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", NAMES)
def test_in_float32_registers(name: str) -> None:
    with mcf.registers("float32"):
        for terms in (2, 4):
            assert 0 < _worst(name, FP32, terms) <= 1, terms


@_SLOW
@pytest.mark.parametrize("fmt", [BF16, FP32, FP64], ids=lambda f: f.name)
@pytest.mark.parametrize("name", NAMES)
def test_executors_agree(name: str, fmt: Format) -> None:
    assert_numba_agrees(_program(name), _given(name, fmt, 2))


@pytest.mark.usefixtures("on_torch")
def test_special_values() -> None:
    """At 0 the mean of both sides, as torch's derivative of i0e has sign(0) = 0."""
    x = (torch.tensor([0.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64),)
    for name, at in ("i0e_1", 0.0), ("i1e_1", 0.5), ("k0e_1", -torch.inf):
        (found,) = _program(name)(x)
        assert found[:2].tolist() == [at, 0]
        assert found[3].isnan()
        assert found[2].isnan() if name[0] == "k" else found[2] == 0
    assert bessel_slopes._at_zero(0, 2) == 1.5
    assert bessel_slopes._at_zero(1, 3) == 0.5 * 3.75


def test_zeros() -> None:
    """A change of sign within 2^-600, by the reference."""
    before, ctx.prec = ctx.prec, 1400
    try:
        for m in (1, 4):
            z = bessel_slopes.zero_of(m)
            ends = [
                REFERENCE[f"i1e_{m}"](arb(z.numerator) / arb(z.denominator) + s * arb(2) ** -600)
                for s in (-1, 1)
            ]
            assert ends[0] * ends[1] < 0
    finally:
        ctx.prec = before


def _cut(found: Components) -> Components:
    return (*found[:-1], torch.zeros_like(found[-1]))


MUTANTS = ("zero", "hankel", "degree", "polynomials")


@_SLOW
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("broken", MUTANTS)
def test_mutants_break_the_bound(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"zero": "i1e_2", "polynomials": "k0e_2"}.get(broken, "i0e_2")
    assert _worst(name) <= 1
    special_bounds.derived(name, FP64, 4)
    if broken == "zero":
        whole = tables.table(f"{name}_zero", torch.device("cpu"))
        cut = torch.where(torch.arange(len(whole)) < 4, whole, 0.0)
        monkeypatch.setattr(bessel_slopes, "table", lambda *of: cut)
    elif broken == "hankel":
        whole_series = bessel.series.polynomial
        few = lambda x, bits, c, *of: (*whole_series(x[:3], bits, c, *of), x[3] * 0)  # noqa: E731
        monkeypatch.setattr(bessel.series, "polynomial", few)
    elif broken == "degree":
        needed = bessel.degree_needed
        monkeypatch.setattr(bessel, "degree_needed", lambda *of: needed(*of) - 16)
    else:
        monkeypatch.setattr(bessel_slopes, "factors", lambda *of: ((0, 0, 2), (1, -1)))
    assert _worst(name) > 1


FUNCTIONS = {
    "i0e": torch.special.i0e,
    "i1e": torch.special.i1e,
    "k0e": torch.special.scaled_modified_bessel_k0,
    "k1e": torch.special.scaled_modified_bessel_k1,
}


@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("kind", everyday(["i0e", "i1e", "k0e", "k1e"], ["k1e"]))
def test_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second derivatives to 6 u^2: half a unit each, and the sum of two for k1e.

    Differences of the functions lose a factor of x of them, of x^2 for the second: at 2^60 all.
    """
    monkeypatch.setattr(ctx, "prec", 900)
    x: Any = mcf.tensor([0.4375, 1.5451272, 40.0, 3e4, 2.0**60], 2, torch.float64)
    x = (x * mcf.tensor("0.98765432109876543210987654321", 2, torch.float64)).requires_grad_()
    (slope,) = torch.autograd.grad(FUNCTIONS[kind](x).sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), x)
    for m, found in (1, slope), (2, curve):
        pairs = zip(balls(x.detach().components), balls(found.detach().components), strict=True)
        for v, ours in pairs:
            exact = REFERENCE[f"{kind}_{m}"](v)
            assert abs(ours - exact) <= abs(exact) * 6 * arb(2) ** -106, (m, v.str(10))


@_SLOW
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("kind", ["i1e", "k0e"])
def test_derivatives_beyond_the_last_program(kind: str) -> None:
    """By the differential equation: a factor of x and some binomials are lost an order."""
    x: Any = mcf.tensor([0.75, 3.0], 2, torch.float64).requires_grad_()
    value = FUNCTIONS[kind](x)
    for _ in range(6):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    before, ctx.prec = ctx.prec, 900
    try:
        pairs = zip(balls(x.detach().components), balls(value.detach().components), strict=True)
        for v, ours in pairs:
            exact = bessel_slope(kind, int(kind[1]), 6, v)
            assert abs(ours - exact) <= abs(exact) * arb(2) ** -90
    finally:
        ctx.prec = before
