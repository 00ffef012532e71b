"""Bessel functions: special values as torch has them, derivatives, torch's names.

Errors and what their bounds catch are in `test_special_functions.py` and `test_special_mutants.py`.
Caught mutants: a derivative's sign, an order for another, a number where torch has none.
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
from mcf.elementary import bessel_jy, tables
from mcf.kernels import FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.elementary import balls
from tests.helpers.everyday import everyday
from tests.helpers.special import REFERENCE, often, part
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


def _slope(name: str, x: arb) -> tuple[arb, arb]:
    """The derivative and the sum of the magnitudes of its terms."""
    if name == "spherical_bessel_j0":
        return (x.cos() - REFERENCE[name](x)) / x, 2 / abs(x)
    end = name[2:]
    zero, one = (REFERENCE[f"{name[0]}{order}{end}"](x) for order in (0, 1))
    terms = {"0": [-one], "1": [-zero if name[0] == "k" else zero, -one / x]}[name[1]]
    if end:
        terms.append(REFERENCE[name](x))
    return sum(terms, arb(0)), sum((abs(t) for t in terms), arb(0))


@pytest.mark.parametrize("name", everyday(NAMES, ["j0"]))
def test_derivatives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx, "prec", 512)
    x: Any = mcf.tensor(["0.3", "2.7", "300.1", "1e-20"], dtype=torch.float64)
    (slope,) = torch.autograd.grad(getattr(mcf, name)(x.requires_grad_()).sum(), x)
    for ours, v in zip(balls(slope.components), balls(x.detach().components), strict=True):
        exact, size = _slope(name, v)
        # Three functions, a quotient and two sums.
        assert abs(ours - exact) <= size * arb(2) ** -102


def _zeros(name: str) -> list[Fraction]:
    kept = tables.table(f"{name}_zeros", torch.device("cpu"))
    return [sum(map(Fraction, row)) for row in kept.T.tolist() if row[0]]


@pytest.mark.parametrize("name", everyday(["j0", "j1", "y0", "y1"], ["j0"]))
def test_zeros(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against balls, all that are kept; no expansion is nearer than what they are kept for."""
    monkeypatch.setattr(ctx, "prec", 1100)
    zeros, beside = _zeros(name), arb(2) ** -470
    assert len(zeros) == 82
    assert zeros[-1] > 254
    for z in zeros:
        low, high = (REFERENCE[name](ball(z) * (1 + s * beside)) for s in (-1, 1))
        assert (low * high) < 0
    assert_no_expansion_is_nearer(zeros)


@pytest.mark.parametrize("name", ["j0", pytest.param("y1", marks=_SLOW)])
def test_next_to_zeros(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the result; one float less of the zeros is caught."""
    rows = [components(z) for z in _zeros(name)[:80:9]]
    x = tuple(torch.tensor(c, dtype=torch.float64) for c in zip(*rows, strict=True))
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
