"""Test derivatives that differences of other functions would lose, and slopes at ends of domains.

First derivatives have a small relative error everywhere, second ones except next to their zeros.
`tests/mcf/test_derivative_sweep.py` has all functions at all scales.

Caught mutants: the derivatives that autograd makes of the formulas; a zero with as many components
as its tensor; a slope of 0/0 at an end of a domain; infinity times 0 in an inner branch; squares of
float16 and of angles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flint import arb, ctx
from torch.autograd import forward_ad

import mcf
from mcf.elementary import fixed, gelu_forms
from mcf.expansions.ops.arithmetic import constants
from mcf.expansions.ops.arithmetic.constants import difference
from mcf.expansions.ops.nn import smooth_activations
from mcf.expansions.ops.reductions import long_products
from tests.helpers import assert_alike, assert_all_same_bits
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


def _tanh_slope(v: arb) -> arb:
    root, cube = (8 / arb.pi()).sqrt(), arb(44715) / 1000000
    z = root * (v + cube * v**3)
    return 1 + z.exp() + v * root * (1 + 3 * cube * v**2)


# Zeros of slopes, and functions that are 0 there.
ZEROS: list[tuple[Any, Callable[[arb], arb]]] = [
    (smooth_activations._SILU_ZERO, lambda v: 1 + v + v.exp()),
    (
        smooth_activations._MISH_ZERO,
        lambda v: 4 * (v + 1) + (4 * v + 6) * v.exp() + 4 * (2 * v).exp() + (3 * v).exp(),
    ),
    (smooth_activations._GELU_TANH_ZERO, _tanh_slope),
    (gelu_forms.gelu_zero(), lambda v: arb.pi().sqrt() / 2 * (v * v).exp() * v.erfc() - v),
]


@pytest.mark.parametrize(("zero", "function"), ZEROS)
def test_zero_of_slope_has_500_bits(zero: Any, function: Callable[[arb], arb]) -> None:
    """The function has another sign on each side of the zero."""
    before, ctx.prec = ctx.prec, 700
    try:
        at = arb(zero.numerator) / arb(zero.denominator)
        below, above = (function(at + sign * arb(2) ** -500) for sign in (-1, 1))
        assert below * above < 0
    finally:
        ctx.prec = before


def test_difference_from_a_number() -> None:
    """What is left of a number beside its nearest expansion is its last bits."""
    pi = fixed.to_fraction(fixed.pi())
    x = mcf.tensor(str(float(pi)), 2, torch.float64)
    x = mcf.from_components((x.components[0], x.components[1]))
    found = difference(x, pi).to_fractions()
    exact = x.to_fractions() - pi
    assert abs(found - exact) <= abs(exact) / 2**105


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INF, NAN = math.inf, math.nan


def slopes(function: Callable[..., Any], dtype: torch.dtype, *values: float) -> list[float]:
    x: list[Any] = [mcf.tensor([v], dtype=dtype).requires_grad_() for v in values]
    return [g.item() for g in torch.autograd.grad(function(*x).sum(), x)]


# Function, argument and the limit of the slope.
ENDS: list[tuple[Any, float, float]] = [
    (torch.erfinv, 1.0, INF), (torch.erfinv, -1.0, INF), (torch.erfinv, 1.5, NAN),
    (torch.special.ndtri, 0.0, INF), (torch.special.ndtri, 1.0, INF),
    (F.hardswish, INF, 1.0), (F.hardswish, -INF, 0.0), (F.hardswish, NAN, NAN),
    (lambda x: F.gelu(x, approximate="tanh"), INF, 1.0),
    (lambda x: F.gelu(x, approximate="tanh"), -INF, 0.0),
    (lambda x: F.gelu(x, approximate="tanh"), NAN, NAN),
    (lambda x: torch.mvlgamma(x, 3), 0.5, NAN), (lambda x: torch.mvlgamma(x, 3), NAN, NAN),
    (lambda x: torch.mvlgamma(x, 3), INF, INF),
    (torch.special.modified_bessel_i1, INF, INF), (torch.special.bessel_y1, 0.0, INF),
    (torch.prod, NAN, NAN), (lambda x: x.cumprod(0), NAN, NAN), (torch.sinc, INF, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("function", "at", "limit"), ENDS)
def test_slope_at_end_of_domain_is_its_limit(function: Any, at: float, limit: float) -> None:
    (found,) = slopes(function, torch.float64, at)
    assert found == limit or (math.isnan(found) and math.isnan(limit))


def test_slope_of_angle_at_origin_is_zero() -> None:
    assert slopes(torch.atan2, torch.float64, 0.0, 0.0) == [0, 0]


def test_slope_of_angle_of_complex_numbers_is_in_the_range() -> None:
    for dtype, v in ((torch.float16, 300.0), (torch.float32, 2.0**66), (torch.float64, 2.0**664)):
        z: Any = mcf.complex(mcf.tensor([3 * v], dtype=dtype), mcf.tensor([v], dtype=dtype))
        z.requires_grad_()
        (slope,) = torch.autograd.grad(torch.angle(z).sum(), z)
        assert slope.imag.item() == pytest.approx(0.3 / v, rel=2.0**-10, abs=0)
        assert slope.real.item() == pytest.approx(-0.1 / v, rel=2.0**-10, abs=0)


def test_slopes_of_quotients_and_products_are_in_the_range() -> None:
    half, single = torch.float16, torch.float32
    quotient: Any = lambda a, b: torch.addcdiv(a * 0, a, b)  # noqa: E731
    assert slopes(quotient, half, 2.0**-10, 2.0**-10) == [1024, -1024]
    assert slopes(quotient, half, 256.0, 256.0) == [2.0**-8, -(2.0**-8)]
    product: Any = lambda *x: torch.prod(torch.cat(x))  # noqa: E731
    assert slopes(product, single, 2.0**-100, 2.0**-99) == [2.0**-99, 2.0**-100]
    assert slopes(torch.rsqrt, half, 2.0**-10) == [-(2.0**14)]
    assert slopes(torch.reciprocal, half, 2.0**-7) == [-(2.0**14)]


@pytest.mark.parametrize("name", ["log", "sqrt", "atan", "reciprocal", "sinc", "erfinv", "prod"])
def test_float16_values_with_gradients_have_the_bits_of_those_without(name: str) -> None:
    function: Any = getattr(torch, name)
    x: Any = mcf.tensor(["0.31", "0.47", "0.0022"], 2, torch.float16)
    with_gradient = function(x.clone().requires_grad_())
    assert with_gradient.requires_grad
    assert_alike(with_gradient.detach(), function(x), name)


@pytest.mark.parametrize(
    "function",
    [torch.reciprocal, lambda x: torch.atan2(x, x + 1), lambda x: x.cumprod(0), torch.prod],
)
def test_forward_mode_derivatives_are_those_of_float64(function: Any) -> None:
    found = []
    for make in (torch.tensor, mcf.tensor):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(
                make([2.0, 3.0], dtype=torch.float64), make([1.0, 0.5], dtype=torch.float64)
            )
            found.append(forward_ad.unpack_dual(function(dual)).tangent.tolist())
    assert found[1] == pytest.approx(found[0], rel=2.0**-50)


@pytest.mark.parametrize("count", [5, pytest.param(900, marks=pytest.mark.slow)])
def test_second_derivatives_of_products_are_those_of_float64(count: int) -> None:
    """Products of more numbers than the exponents can hold are tried as well."""
    for function in (torch.prod, lambda x: x.cumprod(0)):
        found = []
        for make in (torch.tensor, mcf.tensor):
            x: Any = make([1 + (k % 7 - 3) * 2.0**-9 for k in range(count)], dtype=torch.float64)
            x.requires_grad_()
            y: Any = function(x)
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            (curve,) = torch.autograd.grad(slope[::50].square().sum(), x)
            found.append(curve.tolist())
        # float64's own error.
        assert found[1] == pytest.approx(found[0], rel=2.0**-36)


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sqrt_of_the_largest_number_has_all_components(dtype: torch.dtype, terms: int) -> None:
    info = torch.finfo(dtype)
    x = mcf.tensor([info.max], terms, dtype)
    [root] = torch.sqrt(x).to_fractions()
    bound = mcf.bound("sqrt", terms, dtype)
    exact = Fraction(info.max)
    # (r + e)^2 = x + 2 r e: twice the error of the root, and a little for its square.
    allowed = Fraction(2.0625) * (root * Fraction(bound.relative) + Fraction(info.tiny * info.eps))
    assert abs(root**2 - exact) <= root * allowed


USUAL: dict[str, Callable[[Any, Any], Any]] = {
    "prod": lambda x, y: (x * y).prod(1),
    "cumprod": lambda x, y: (x * y).cumprod(1),
    "atan2": torch.atan2,
}


@pytest.mark.parametrize("terms", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", USUAL)
def test_usual_numbers_have_the_slopes_of_all_others(
    name: str, dtype: torch.dtype, terms: int, monkeypatch: Any
) -> None:
    """Bit for bit: exponents of their own change none. Mutant: factors before and after swapped."""
    n = 3 if dtype is torch.float32 else 12
    values = ((torch.arange(20 * n, dtype=torch.float64) * 7919 % 2003 - 1000) / 700).view(20, n)
    values[3, 1] = 0.0
    third: Any = mcf.tensor("0.9", terms, dtype) / 3
    x = (mcf.tensor(values, terms, dtype) * third + 0.5).requires_grad_()
    y = (mcf.tensor(values.roll(1, 0), terms, dtype) * third - 0.25).requires_grad_()

    def found() -> list[Any]:
        result = USUAL[name](x, y)
        return [g.components for g in torch.autograd.grad(result, (x, y), result.detach() * third)]

    short = found()
    monkeypatch.setattr(long_products, "unseen", lambda x: True)
    monkeypatch.setattr(constants, "unseen", lambda x: True)
    for ours, wanted in zip(short, found(), strict=True):
        assert_all_same_bits(ours, wanted)
