"""Error functions and their inverses: special values; derivatives of special functions.

Errors, and mutants that their bounds catch, are in `test_special_functions.py` and
`test_special_branches.py`. Formulas in terms of torch's functions lose x^2 u^n in derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flint import arb, ctx

import mcf
import mcf.elementary
from mcf.elementary import error
from mcf.elementary.operator import FUNCTIONS
from mcf.kernels import FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.elementary import balls
from tests.helpers.everyday import everyday
from tests.helpers.special import REFERENCE

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

NAMES = ("erfcx", "log_ndtr", "ndtri")


@pytest.mark.parametrize(
    ("fmt", "terms"),
    everyday([(FP64, 1), (FP32, 3), (FP64, 3), (FP32, 1)], [(FP64, 1), (FP32, 3)]),
    ids=lambda c: getattr(c, "name", str(c)),
)
def test_special_values(fmt: Format, terms: int) -> None:
    """As torch has them."""
    more = torch.tensor([0.5, -0.5, 1.0, -1.0, 2.0, -27.0, -26.5, 39.0, -1e30, 1e30])
    x = torch.cat([specials(fmt), more.to(fmt.dtype)])
    # At half of the smallest number torch has 2 x - 1 = -1.
    padded = (x, *(torch.zeros_like(x),) * (terms - 1))
    for name in NAMES:
        ours = getattr(mcf.elementary, name)(padded)
        theirs = getattr(torch.special, name)(x.double()).to(fmt.dtype)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours[0]), kind(theirs)), (name, kind.__name__)
        plain = ~theirs.isfinite()
        assert all(bool((c[plain] == 0).all()) for c in ours[1:]), name
    exactly = {"erfcx": (0.0, 1.0), "ndtri": (0.5, 0.0)}
    for name, (at, value) in exactly.items():
        zero = torch.zeros(1, dtype=fmt.dtype)
        found = getattr(mcf.elementary, name)((zero + at, *(zero,) * (terms - 1)))
        assert [c.item() for c in found] == [value, *(0.0,) * (terms - 1)]


def test_ends_in_later_components() -> None:
    """1 less what a second component holds, and beyond 0 and 1."""
    one, tiny = torch.ones(1, dtype=torch.float64), torch.full((1,), 2.0**-300, dtype=torch.float64)
    near = mcf.elementary.ndtri((one, -tiny))
    mirrored = mcf.elementary.ndtri((tiny, 0 * tiny))
    assert all(map(torch.equal, near, (-c for c in mirrored)))
    assert -37 < mirrored[0].item() < -20
    assert mcf.elementary.ndtri((one, tiny))[0].isnan().all()
    assert mcf.elementary.ndtri((one, 0 * one))[0].item() == math.inf


OFTEN = ("erf_1", "erfcx_1")


@pytest.mark.usefixtures("on_torch")
def test_special_values_of_derivatives() -> None:
    x = (torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -40.0], dtype=torch.float64),)
    zero = 4 * 0.2820947917738781434
    for m, at in (1, [-0.0, -torch.inf, -zero]), (2, [0.0, torch.inf, 2.0]):
        (found,) = FUNCTIONS[f"erfcx_{m}"](x)
        assert found[[0, 1, 3]].tolist() == at
        assert found[2].isnan()
        assert found[4].item() == at[1]
    assert error.erf_1(x)[0][[0, 1, 3]].tolist() == [0, 0, zero]


def test_bounds() -> None:
    """Proved, and u^2 for what is computed with a component to spare."""
    for name in OFTEN:
        bound = mcf.bound(name, 2, torch.float64)
        assert bound.proven
        assert bound.relative == pytest.approx(2.0**-106)


def _ratio(x: arb) -> tuple[arb, arb]:
    root = arb(2).sqrt()
    r = (2 / PI).sqrt() / REFERENCE["erfcx"](-x / root)
    return r, -r * (x + r)


def _inverse(y: arb, factor: arb, sign: int) -> tuple[arb, arb]:
    slope = factor * (y * y / (1 if sign == 2 else 2)).exp()
    return slope, sign * y * slope**2


ctx.prec, _BEFORE = 1200, ctx.prec
PI = arb.pi()
ctx.prec = _BEFORE
_SCALED = [0.4375, 1.5451272, 40.0, 3e4, 2.0**60]


def _orders(name: str) -> Callable[[arb], tuple[arb, arb]]:
    return lambda x: (REFERENCE[f"{name}_1"](x), REFERENCE[f"{name}_2"](x))


# Function -> arguments, and both derivatives.
GRADIENTS: dict[str, tuple[list[float], Callable[[arb], tuple[arb, arb]]]] = {
    "erfcx": (
        [-20.25, -1.125, 0.25, 4.75, 31.0, 40.0, 1e5],
        _orders("erfcx"),
    ),
    "log_ndtr": ([-300.0, -9.75, -0.25, 0.0, 0.25, 4.75, 17.0], _ratio),
    "erf": (
        [-5.0, 0.25, 12.0, 25.0],
        lambda x: (REFERENCE["erf_1"](x), -2 * x * REFERENCE["erf_1"](x)),
    ),
    "erfinv": (
        [0.25, -0.875, 1 - 2.0**-50],
        lambda x: _inverse(x.erfinv(), PI.sqrt() / 2, 2),
    ),
    "ndtri": (
        [2.0**-400, 0.25, 1 - 2.0**-50],
        lambda p: _inverse(REFERENCE["ndtri"](p), (2 * PI).sqrt(), 1),
    ),
    **{n: (_SCALED, _orders(n)) for n in ("i0e", "i1e")},
    **{f"scaled_modified_bessel_{n}": (_SCALED, _orders(f"{n}e")) for n in ("k0", "k1")},
    "airy_ai": (
        [0.3, -2.338, 7.1, -80.7, -1.0187],
        lambda x: (REFERENCE["airy_ai_1"](x), x * REFERENCE["airy_ai"](x)),
    ),
    "expm1": ([-60.0, -1.0, 2.0**-10], lambda x: (x.exp(), x.exp())),
    "asinh": (
        [1e200, 0.25, -4.0],
        lambda x: (1 / (1 + x * x).sqrt(), -x / (1 + x * x).sqrt() ** 3),
    ),
    "acosh": (
        [1e200, 1 + 2.0**-13, 3.0],
        lambda x: (1 / (x * x - 1).sqrt(), -x / (x * x - 1).sqrt() ** 3),
    ),
}


@pytest.mark.usefixtures("on_torch")
@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To 8 u^2 of their size: what five to eight operations of 1 to 2 u^2 each may lose at most.

    Formulas in terms of torch's functions lose x^2 u^2 and more: 2 x erfcx(x) - 2/sqrt(pi) all of
    it for x = 1e5; differences of Bessel functions lose x of the first, x^2 of the second.
    """
    monkeypatch.setattr(ctx, "prec", 1200)
    given, reference = GRADIENTS[name]
    function = getattr(torch, name, None) or getattr(torch.special, name)
    first = torch.tensor(given, dtype=torch.float64)
    x: Any = mcf.from_components((first, first * 0.71875 * 2.0**-54)).requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), x)
    found = zip(*(balls(v.detach().components) for v in (slope, curve)), strict=True)
    for v, pair in zip(balls(x.detach().components), found, strict=True):
        for ours, exact in zip(pair, reference(v), strict=True):
            allowed = abs(exact) * arb(2) ** -103 + arb(2) ** -1070
            assert abs(ours - exact) <= allowed, (name, v.str(10))


@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
def test_derivatives_beyond_the_last_program() -> None:
    x: Any = mcf.tensor([0.25, -1.5], 2, torch.float64).requires_grad_()
    chain = [torch.special.erfcx(x)]
    for _ in range(6):
        chain += torch.autograd.grad(chain[-1].sum(), x, create_graph=True)
    a, b, c = (v.detach() for v in chain[4:7])
    assert ((2 * x.detach() * b + 10 * a - c).abs() < 1e-25 * c.abs()).all()
