"""Derivatives that differences of other functions would lose, against ball arithmetic.

First ones relative to themselves wherever they are, also next to where they are 0; second ones
but there. Caught mutants: the derivatives that autograd makes of the formulas, a zero with as many
components as its tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flint import acb, arb, ctx

import mcf
from mcf.elementary import fixed, gelu_forms
from mcf.expansions.ops.elementary.constants import beside
from mcf.expansions.ops.nn import smooth_activations
from tests.helpers.elementary import REFERENCE, balls
from tests.helpers.everyday import everyday

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")
_SLOW = pytest.mark.slow
# Sums, products and quotients of 1 to 3 u^2 each, up to eight in a row.
UNITS = 16
Function = Callable[[Any], Any]


def _softplus(x: arb) -> arb:
    return (-x).exp().log1p() + x if x > 0 else x.exp().log1p()


def _sinc(x: arb) -> arb:
    return (arb.pi() * x).sin() / (arb.pi() * x)


# Function, reference, arguments of first and of second derivatives.
CASES: dict[str, tuple[Function, Function, tuple[float, ...], tuple[float, ...]]] = {
    "silu": (
        F.silu,
        lambda x: x * REFERENCE["sigmoid"](x),
        (-1.2784645427610738, -1.25, -300.0, 2.0**-80, 3.0, 90.0),
        (-1.25, 2.0**-80, 90.0),
    ),
    "mish": (
        F.mish,
        lambda x: x * _softplus(x).tanh(),
        (-1.1924312145155493, -1.25, -300.0, 2.0**-80, 3.0, 60.0),
        (-1.25, -(2.0**-80), 30.0, 60.0),
    ),
    "gelu": (
        F.gelu,
        REFERENCE["gelu"],
        (-0.7517915246935645, -0.75, -30.0, 2.0**-80, 3.0),
        (1.25, 1.4142135623730951, -20.0),
    ),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        REFERENCE["gelu_tanh"],
        (-0.7524614220710943, -0.75, -15.0, -(2.0**-80), 3.0),
        (-(2.0**-80), 1.25, -8.0),
    ),
    "softplus": (F.softplus, _softplus, (-40.0, 40.0), (-40.0, 40.0)),
    "logsigmoid": (F.logsigmoid, lambda x: -_softplus(-x), (-40.0, 40.0), (-40.0, 40.0)),
    "softsign": (F.softsign, lambda x: x / (1 + abs(x)), (2.0**70, -1.25), (2.0**70, -1.25)),
    "tanhshrink": (F.tanhshrink, lambda x: x - x.tanh(), (2.0**-70, -1.25), (2.0**-70, -1.25)),
    "sigmoid": (torch.sigmoid, REFERENCE["sigmoid"], (40.0, -40.0), (2.0**-70, 40.0)),
    "asin": (torch.asin, REFERENCE["asin"], (2.0**-70, 0.75), (2.0**-70, 0.75)),
    "acos": (torch.acos, REFERENCE["acos"], (2.0**-70, 0.75), (2.0**-70, 0.75)),
    "atanh": (torch.atanh, REFERENCE["atanh"], (2.0**-70, 0.75), (2.0**-70, 0.75)),
    "sinc": (torch.sinc, _sinc, (2.0**-70, 0.2, -0.25, 2.0), (2.0**-70, 0.2, 0.4)),
    "spherical_bessel_j0": (
        torch.special.spherical_bessel_j0,
        lambda x: x.sin() / x,
        (2.0**-70, 0.75, -1.0, 1e6),
        (2.0**-70, 0.75, 1.0),
    ),
    "entr": (
        torch.special.entr,
        lambda x: -x * x.log(),
        (0.36787944117144233, 0.375, 0.25, 1e9),
        (0.375, 1e9),
    ),
    "logit": (torch.logit, lambda x: (x / (1 - x)).log(), (0.75, 2.0**-90), (0.5 + 2.0**-50, 0.25)),
}
EVERY = ("silu", "gelu", "logit")


def _given(points: tuple[float, ...]) -> Any:
    """With bits in both components."""
    x = torch.tensor(points, dtype=torch.float64)
    return mcf.from_components((x, x * 0.71875 * 2.0**-54)).requires_grad_()


def _by_differences(function: Function, x: arb, order: int) -> arb:
    h = abs(x) * arb(2) ** -200
    up, down = function(x + h), function(x - h)
    if order == 1:
        return (up - down) / (2 * h)
    return (up - 2 * function(x) + down) / h**2


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", everyday(CASES, EVERY))
def test_derivatives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx, "prec", 1200)
    function, reference, *places = CASES[name]
    for order, points in enumerate(places, 1):
        x = _given(points)
        found: Any = function(x)
        for _ in range(order):
            (found,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        pairs = zip(*(balls(v.detach().components) for v in (x, found)), strict=True)
        for at, ours in pairs:
            exact = _by_differences(reference, at, order)
            assert abs(ours - exact) <= abs(exact) * UNITS * arb(2) ** -106, (order, at.str(10))


@_SLOW
@pytest.mark.parametrize("kind", ["i", "j"])
def test_second_derivatives_of_order_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of I_1 and J_1, whose slopes have them divided by x: a difference where x is small."""
    monkeypatch.setattr(ctx, "prec", 900)
    x = _given((2.0**-60, 0.75, 1.0, 3.0))
    function = torch.special.i1 if kind == "i" else torch.special.bessel_j1
    (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), x)
    for at, ours in zip(*(balls(v.detach().components) for v in (x, curve)), strict=True):
        of = acb(at).bessel_i if kind == "i" else acb(at).bessel_j
        # The function's own equation: f'' = (f_3 + 3 f_1) / 4, of J_1 with f_3 - 3 f_1.
        exact = (of(acb(3)).real + (3 if kind == "i" else -3) * of(acb(1)).real) / 4
        assert abs(ours - exact) <= abs(exact) * UNITS * arb(2) ** -106, at.str(10)


def test_zeros() -> None:
    """Where slopes are 0, to 500 bits: a sign on each side of the zero."""
    for zero, near in (
        (smooth_activations._silu_zero(), -1.2784645427610738),
        (smooth_activations._mish_zero(), -1.1924312145155493),
        (smooth_activations._gelu_tanh_zero(), -0.7524614220710943),
    ):
        assert abs(float(zero) - near) < 1e-12
    z = gelu_forms.gelu_zero()
    before, ctx.prec = ctx.prec, 700
    try:
        at = arb(z.numerator) / arb(z.denominator)
        values = [
            arb.pi().sqrt() / 2 * (v * v).exp() * v.erfc() - v
            for v in (at - arb(2) ** -500, at + arb(2) ** -500)
        ]
        assert values[0] > 0 > values[1]
    finally:
        ctx.prec = before


def test_beside() -> None:
    """What is left of a number beside its nearest expansion is its last bits."""
    pi = fixed.to_fraction(fixed.pi())
    x = mcf.tensor(str(float(pi)), 2, torch.float64)
    x = mcf.from_components((x.components[0], x.components[1]))
    found = beside(x, pi).to_fractions()
    exact = x.to_fractions() - pi
    assert abs(found - exact) <= abs(exact) / 2**105
