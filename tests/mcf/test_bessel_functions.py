"""Bessel's and Airy's functions: special values, zeros, higher derivatives, torch's names.

Errors, and mutants that their bounds catch, are in `test_special_functions.py` and
`test_special_branches.py`. Caught mutants: an order for another, a number where torch has none.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from flint import arb, ctx

import mcf
import mcf.elementary
from mcf.elementary import airy, bessel, bessel_jy, bessel_series, tables
from mcf.elementary.operator import FUNCTIONS
from mcf.kernels import FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.elementary import balls
from tests.helpers.everyday import everyday
from tests.helpers.special import REFERENCE, bessel_slope, often, part
from tests.helpers.zeros import assert_no_expansion_is_nearer, ball, components

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

_SLOW = pytest.mark.slow
NAMES = {
    "k0": "modified_bessel_k0",
    "k0e": "scaled_modified_bessel_k0",
    "k1": "modified_bessel_k1",
    "k1e": "scaled_modified_bessel_k1",
    "j0": "bessel_j0",
    "j1": "bessel_j1",
    "y0": "bessel_y0",
    "y1": "bessel_y1",
    "spherical_bessel_j0": "spherical_bessel_j0",
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "fmt", [pytest.param(FP32, marks=pytest.mark.slow), FP64], ids=lambda f: f.name
)
@pytest.mark.parametrize("name", everyday(NAMES, often))
def test_special_values(name: str, fmt: Format) -> None:
    x = specials(fmt)
    # Of the smallest number torch has inf - inf, or the logarithm of its half.
    x = x[x.abs() != 5e-324]
    padded = (x, torch.zeros_like(x), torch.zeros_like(x))
    ours = getattr(mcf.elementary, name)(padded)
    # In float64, whose results of small arguments are not beyond the range of float32.
    theirs = getattr(torch.special, NAMES[name])(x.double()).to(fmt.dtype)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(ours[0]), kind(theirs)), kind.__name__
    assert all(bool((c[~theirs.isfinite()] == 0).all()) for c in ours[1:])
    assert ours[0][x == math.inf].view(torch.uint8).any() == theirs[x == math.inf].isnan().any()


ZEROS = {**dict.fromkeys(("j0", "j1", "y0", "y1"), 82), "airy_ai": 109, "airy_ai_1": 109}


def _zeros(name: str) -> list[Fraction]:
    """Return the zeros that are kept, without 0; of Airy's functions those of -x."""
    kind = "points" if name in airy.NAMES else "zeros"
    kept = tables.table(f"{name}_{kind}", torch.device("cpu")).T.tolist()
    # Airy's tables have points between the first zeros, too.
    low = airy.LOW[airy.NAMES.index(name)] if name in airy.NAMES else ()
    between = {k for k, (_, point) in enumerate(low) if point is not None}
    return [sum(map(Fraction, row)) for k, row in enumerate(kept) if row[0] and k not in between]


@pytest.mark.parametrize("name", everyday(ZEROS, ["j0", "airy_ai"]))
def test_zeros(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against balls, all that are kept; no expansion is nearer than what they are kept for."""
    monkeypatch.setattr(ctx, "prec", 1100)
    zeros, beside, sign = _zeros(name), arb(2) ** -470, -1 if name in airy.NAMES else 1
    assert len(zeros) == ZEROS[name]
    assert zeros[-1] > (63.8 if name in airy.NAMES else 254)
    for z in zeros[:: 9 if name == "airy_ai" else 1]:
        low, high = (REFERENCE[name](sign * ball(z) * (1 + s * beside)) for s in (-1, 1))
        assert (low * high) < 0
    assert_no_expansion_is_nearer(zeros)


@pytest.mark.parametrize("name", everyday(["j0", "y1", "airy_ai", "airy_ai_1"], ["j0"]))
def test_next_to_zeros(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the result; two floats less of the zeros are caught."""
    sign = -1 if name in airy.NAMES else 1
    rows = [components(z) for z in _zeros(name)[: 80 if sign == 1 else None : 9]]
    x = tuple(sign * torch.tensor(c, dtype=torch.float64) for c in zip(*rows, strict=True))
    assert max(part(name, FP64, x, getattr(mcf.elementary, name)(x))) <= 1
    whole = bessel_jy.parts_needed
    monkeypatch.setattr(bessel_jy, "parts_needed", lambda *given: whole(*given) - 2)
    assert max(part(name, FP64, x, getattr(mcf.elementary, name)(x))) > 1


# torch maps airy_ai of plain tensors one by one, too, and says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop.*airy_ai:UserWarning")
@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    "name",
    ["bessel_j0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
     "scaled_modified_bessel_k1", "spherical_bessel_j0", "airy_ai"],
)  # fmt: skip
def test_transforms_to_which_they_are_constants(name: str) -> None:
    """Under torch.func's derivatives torch takes these for constants: they were zero, silently."""
    function = getattr(torch.special, name)
    x: Any = mcf.tensor(["0.3", "0.7"], dtype=torch.float64)
    for transform in (
        lambda: torch.func.grad(lambda v: function(v).sum())(x),
        lambda: torch.func.jvp(function, (x,), (x,)),
        lambda: torch.func.vjp(function, x),
        lambda: torch.func.jacrev(function)(x),
        lambda: torch.func.vmap(torch.func.grad(function))(x),
    ):
        with pytest.raises(mcf.UnsupportedError, match=f"torch.special.{name} .* backward"):
            transform()
    mapped = torch.func.vmap(function)(x)
    assert all(map(torch.equal, mapped.components, function(x).components))


@pytest.mark.usefixtures("on_torch")
def test_special_values_of_derivatives() -> None:
    """At 0 the mean of both sides, as torch's derivative of i0e has sign(0) = 0."""
    x = (torch.tensor([0.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64),)
    for name, at in ("i0e_1", 0.0), ("i1e_1", 0.5), ("k0e_1", -torch.inf):
        (found,) = FUNCTIONS[name](x)
        assert found[:2].tolist() == [at, 0]
        assert found[3].isnan()
        assert found[2].isnan() if name[0] == "k" else found[2] == 0
    assert bessel._at_zero(0, 2) == 1.5
    assert bessel._at_zero(1, 3) == 0.5 * 3.75


def test_zeros_of_derivatives() -> None:
    """A change of sign within 2^-600, by the reference."""
    before, ctx.prec = ctx.prec, 1400
    try:
        for m in (1, 4):
            z = bessel_series.zero_of(m)
            ends = [
                REFERENCE[f"i1e_{m}"](arb(z.numerator) / arb(z.denominator) + s * arb(2) ** -600)
                for s in (-1, 1)
            ]
            assert ends[0] * ends[1] < 0
    finally:
        ctx.prec = before


@_SLOW
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(
    ("kind", "function"),
    [("i1e", torch.special.i1e), ("k0e", torch.special.scaled_modified_bessel_k0)],
)
def test_derivatives_beyond_the_last_program(kind: str, function: Any) -> None:
    """By the differential equation: a factor of x and some binomials are lost an order."""
    x: Any = mcf.tensor([0.75, 3.0], 2, torch.float64).requires_grad_()
    value = function(x)
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
