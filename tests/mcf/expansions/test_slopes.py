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
from flint import arb, ctx

import mcf
from mcf.elementary import fixed, gelu_forms
from mcf.expansions.ops.elementary.constants import beside
from mcf.expansions.ops.nn import smooth_activations
from tests.helpers import derivative_sweep as sweep
from tests.helpers.elementary import balls
from tests.helpers.everyday import everyday

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")
# Sums, products and quotients of 1 to 3 u^2 each, up to eight in a row.
UNITS = 16
Function = Callable[[Any], Any]


# Arguments of first and of second derivatives, some next to where these are 0.
CASES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "nn.functional.silu": ((-1.2784645427610738, -1.25, -300.0, 2.0**-80, 3.0, 90.0),
                           (-1.25, 2.0**-80, 90.0)),
    "nn.functional.mish": ((-1.1924312145155493, -1.25, -300.0, 2.0**-80, 3.0, 60.0),
                           (-1.25, -(2.0**-80), 30.0, 60.0)),
    "nn.functional.gelu": ((-0.7517915246935645, -0.75, -30.0, 2.0**-80, 3.0),
                           (1.25, 1.4142135623730951, -20.0)),
    "nn.functional.gelu_tanh": ((-0.7524614220710943, -0.75, -15.0, -(2.0**-80), 3.0),
                                (-(2.0**-80), 1.25, -8.0)),
    "nn.functional.softplus": ((-40.0, 40.0), (-40.0, 40.0)),
    "nn.functional.logsigmoid": ((-40.0, 40.0), (-40.0, 40.0)),
    "nn.functional.softsign": ((2.0**70, -1.25), (2.0**70, -1.25)),
    "nn.functional.tanhshrink": ((2.0**-70, -1.25), (2.0**-70, -1.25)),
    "sigmoid": ((40.0, -40.0), (2.0**-70, 40.0)),
    "asin": ((2.0**-70, 0.75), (2.0**-70, 0.75)),
    "acos": ((2.0**-70, 0.75), (2.0**-70, 0.75)),
    "atanh": ((2.0**-70, 0.75), (2.0**-70, 0.75)),
    "sinc": ((2.0**-70, 0.2, -0.25, 2.0), (2.0**-70, 0.2, 0.4)),
    "special.spherical_bessel_j0": ((2.0**-70, 0.75, -1.0, 1e6), (2.0**-70, 0.75, 1.0)),
    "special.entr": ((0.36787944117144233, 0.375, 0.25, 1e9), (0.375, 1e9)),
    "logit": ((0.75, 2.0**-90), (0.5 + 2.0**-50, 0.25)),
}  # fmt: skip
EVERY = ("nn.functional.silu", "nn.functional.gelu", "logit", "special.entr")


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
    function = sweep.ELEMENTWISE[name]
    for order, points in enumerate(CASES[name], 1):
        x = _given(points)
        found: Any = function.of(x)
        for _ in range(order):
            (found,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        pairs = zip(*(balls(v.detach().components) for v in (x, found)), strict=True)
        for at, ours in pairs:
            exact = _by_differences(function.exact, at, order)
            assert abs(ours - exact) <= abs(exact) * UNITS * arb(2) ** -106, (order, at.str(10))


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
