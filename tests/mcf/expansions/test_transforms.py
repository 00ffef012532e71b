"""Transforms of torch.func beside expansions that they do not map; nothing is rounded unsaid.

Caught mutants: what no transform maps computed inside of it (no autograd.Function of ours runs
there); a number's expansion made of a transform's tensors; a derivative with constants of double
precision given for that of two float64 components; one refused whose constants are exact enough.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf import elementary
from tests.helpers import assert_alike
from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")

F64 = torch.float64
OTHER = mcf.tensor([["0.3", 2], [3, "0.1"]], dtype=F64)
ROWS = mcf.tensor([[["0.7", 1], [2, 3]], [[4, "0.9"], [5, 6]]], dtype=F64)

# Of what is mapped and of `OTHER`, which is not.
BESIDE: dict[str, Callable[[Any], Any]] = {
    "abs": lambda a: a * OTHER.abs(),
    "var": lambda a: a * OTHER.var(),
    "to": lambda a: a * OTHER.to(torch.float32),
    "terms": lambda a: a * OTHER.to(terms=1),
    "plain": lambda a: a * OTHER.to_plain(),
    "fraction": lambda a: a + OTHER * Fraction(1, 3),
    "tensor": lambda a: a + mcf.tensor("0.1", dtype=F64),
    "a / x": lambda a: a / OTHER,
    "x / a": lambda a: OTHER / a,
    "lerp": lambda a: torch.lerp(a, OTHER, 0.5),
    "hypot": lambda a: torch.hypot(OTHER, a),
    "logaddexp": lambda a: torch.logaddexp(a, OTHER),
    "cat": lambda a: torch.cat([a, OTHER]),
    "mse_loss": lambda a: F.mse_loss(a, OTHER),
    "in place": lambda a: a.clone().mul_(OTHER),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", BESIDE)
def test_beside_what_is_mapped(name: str) -> None:
    function = BESIDE[name]
    found = torch.func.vmap(function)(ROWS)
    assert_alike(found, torch.stack([function(row) for row in ROWS]), name)
    x = ROWS[0].clone().requires_grad_()
    function(x).sum().backward()
    slope: Any = torch.func.grad(lambda a: function(a).sum())(ROWS[0])
    # Sums in another order.
    assert bool(((slope - x.grad).abs() <= 2.0**-100 * slope.abs()).all())


SLOPES = {
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", everyday(SLOPES, ["mish"]))
def test_activations(name: str) -> None:
    function, x, t = SLOPES[name], OTHER[0], ROWS[0, 0]
    y = x.clone().requires_grad_()
    out = function(y)
    (slope,) = torch.autograd.grad(out, y, torch.ones_like(out))
    value, along = torch.func.jvp(function, (x,), (t,))
    assert_alike(value, out.detach(), name)
    assert_alike(torch.func.vmap(function)(ROWS), function(ROWS), name)
    jacobian: Any = torch.func.jacfwd(function)(x)
    (back,) = torch.func.vjp(function, x)[1](t)
    # A product with the slope, and of mish a square in place of a product.
    for found, expected in ((along, slope * t), (back, slope * t), (jacobian.diagonal(), slope)):
        assert bool(((found - expected).abs() <= 2.0**-100 * expected.abs()).all())


ROUNDED: dict[str, Callable[[Any], Any]] = {
    "log2": torch.log2,
    "log10": torch.log10,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "deg2rad": torch.deg2rad,
    "sinc": torch.sinc,
    "var": torch.var,
    "std": lambda x: x.std(0),
    "std_mean": lambda x: torch.std_mean(x, 0, correction=0)[0],
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ROUNDED)
def test_derivatives_that_torch_rounds(name: str) -> None:
    function = ROUNDED[name]

    def total(x: Any) -> Any:
        return function(x).sum()

    for run in (torch.func.grad(total), lambda x: torch.func.jvp(total, (x,), (x,))):
        with pytest.raises(mcf.UnsupportedError, match="constants of double precision"):
            run(OTHER)
    # Values are not refused: outside, mapped, without a derivative.
    assert_alike(torch.func.vmap(total)(ROWS), torch.stack([total(x) for x in ROWS]), name)


@pytest.mark.parametrize("terms", [1, 2])
def test_narrower_ones_are_taken(terms: int) -> None:
    x = mcf.tensor([["0.3", "1.25"]], terms=terms, dtype=torch.float32)
    y = x.clone().requires_grad_()
    y.var().backward()
    slope: Any = torch.func.grad(lambda a: a.var())(x)
    assert y.grad is not None
    assert bool(((slope - y.grad).abs() <= 4 * 2.0 ** (-24 * terms) * slope.abs()).all())


def test_one_component_of_float64_is_taken() -> None:
    x = mcf.tensor(["0.3", "1.25"], terms=1, dtype=F64)
    slope: Any = torch.func.grad(lambda a: a.log2().sum())(x)
    (near,) = elementary.exp((torch.zeros(2, dtype=F64),))
    assert bool((slope > near).all())


def test_running_logarithms_have_no_tangent() -> None:
    with pytest.raises(mcf.UnsupportedError, match="jvp"):
        torch.func.jvp(lambda x: x.logcumsumexp(0), (OTHER,), (OTHER,))
    assert torch.func.grad(lambda x: x.logcumsumexp(0).sum())(OTHER).shape == OTHER.shape


def _tangent(x: Any) -> Any:
    return torch.func.jvp(torch.erf, (x,), (x,))[1]


def test_compiled_derivatives_say_so() -> None:
    """A graph has no callers, so what torch rounds would be rounded in silence there."""
    slope = torch.func.grad(lambda x: torch.erf(x).sum())
    for function in (slope, _tangent, lambda x: torch.func.vmap(slope)(x[:, None])):
        for backend in ("eager", "aot_eager"):
            with pytest.raises(Exception, match=r"applies torch\.func|under torch\.func\.grad"):
                torch.compile(function, backend=backend)(OTHER)


def test_compiled_maps_have_the_bits() -> None:
    """With one operand for all, whose layout torch.compile asks for inside the transform."""

    def product(x: Any, y: Any) -> Any:
        return (x * y).exp()

    mapped = torch.func.vmap(product, in_dims=(0, None))
    compiled = torch.compile(mapped, backend="eager")
    assert torch.equal(compiled(OTHER, OTHER), mapped(OTHER, OTHER))
    assert torch.equal(
        torch.compile(torch.func.vmap(torch.special.ndtr), backend="eager")(OTHER),
        torch.special.ndtr(OTHER),
    )
