"""Derivatives of the error functions: programs against ball arithmetic, and torch's gradients.

Caught mutants: a table or a constant without its last component, an asymptotic series or a table
some terms short, h_m without its derivative, a square of x that is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flint import arb, ctx

import mcf
from mcf.elementary import error, error_slopes, exponential, special_bounds, tables
from mcf.elementary.tables import Components
from mcf.kernels import BF16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import balls
from tests.helpers.everyday import everyday
from tests.helpers.executors import assert_numba_agrees
from tests.helpers.special import REFERENCE, full, part

NAMES = ("erf_1", "erfcx_1", "erfcx_2", "erfcx_3", "erfcx_4")
OFTEN = ("erf_1", "erfcx_1")
_SOMETIMES = everyday(NAMES, OFTEN)
# Of both sides of each branch; in float32 registers numbers below -9 have infinite results.
POINTS = (
    -25.0, -5.3125, -1.09375, -0.015625, -(2.0**-40), 0.0, 2.0**-60, 0.28125, 0.984375, 5.5, 31.875,
    32.25, 100.0, 2.0**27, 2.0**90,
)  # fmt: skip


def _program(name: str) -> Callable[[Components], Components]:
    kind, m = name.split("_")
    return error_slopes.erf_1 if kind == "erf" else error_slopes.slope(int(m))


def _worst(name: str, fmt: Format = FP64, terms: int = 4) -> float:
    x = full(POINTS, fmt, terms)
    return max(part(name, fmt, x, _program(name)(x)))


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", _SOMETIMES)
def test_branches(name: str) -> None:
    for fmt, terms in ((FP64, 4), (FP64, 2), (FP32, 3)):
        assert 0 < _worst(name, fmt, terms) <= 1, (fmt.name, terms)


@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", NAMES)
def test_in_float32_registers(name: str) -> None:
    with mcf.registers("float32"):
        for terms in (2, 4):
            assert 0 < _worst(name, FP32, terms) <= 1, terms


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [BF16, FP32, FP64], ids=lambda f: f.name)
@pytest.mark.parametrize("name", NAMES)
def test_executors_agree(name: str, fmt: Format) -> None:
    assert_numba_agrees(_program(name), full(POINTS, fmt, 2))


@pytest.mark.usefixtures("on_torch")
def test_special_values() -> None:
    x = (torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -40.0], dtype=torch.float64),)
    zero = 4 * 0.2820947917738781434
    for m, at in (1, [-0.0, -torch.inf, -zero]), (2, [0.0, torch.inf, 2.0]):
        (found,) = error_slopes.slope(m)(x)
        assert found[[0, 1, 3]].tolist() == at
        assert found[2].isnan()
        assert found[4].item() == at[1]
    assert error_slopes.erf_1(x)[0][[0, 1, 3]].tolist() == [0, 0, zero]


def test_bounds() -> None:
    """Proved, and u^2 for what is computed with a component to spare."""
    for name in OFTEN:
        bound = mcf.bound(name, 2, torch.float64)
        assert bound.proven
        assert bound.relative == pytest.approx(2.0**-106)


def _cut(found: Components) -> Components:
    return (*found[:3], torch.zeros_like(found[3])) if len(found) > 3 else found


MUTANTS = ("table", "asymptotic", "short", "growing", "constant")


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("broken", everyday(MUTANTS, ["growing"]))
def test_mutants_break_the_bound(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _worst("erfcx_2") <= 1
    special_bounds.derived("erfcx_2", FP64, 4)
    if broken == "table":
        monkeypatch.setattr(error, "lookup", lambda *of: _cut(tables.lookup(*of)))
    elif broken == "asymptotic":
        whole = error_slopes.series.polynomial
        few = lambda x, bits, c, *of: (*whole(x[:3], bits, c, *of), x[3] * 0)  # noqa: E731
        monkeypatch.setattr(error_slopes.series, "polynomial", few)
    elif broken == "short":
        needed = error.degree_needed
        monkeypatch.setattr(error, "degree_needed", lambda *of: needed(*of) - 14)
    elif broken == "growing":
        monkeypatch.setattr(error_slopes, "growing", lambda m: [0, 4])
    else:
        monkeypatch.setattr(error_slopes, "constant", lambda *of: _cut(tables.constant(*of)))
    assert _worst("erfcx_2") > 1


@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
def test_a_square_that_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `exp(-x * x)` of as many components as x has would be off by."""

    def rounded(x: Components, count: int, halves: int, sign: float = -1.0) -> Any:
        square = error.ex.mul(x[:count], x[:count])
        return exponential.exp(tuple(sign * c for c in square), count)

    monkeypatch.setattr(error, "_gauss", rounded)
    assert _worst("erf_1") > 1


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
# Function -> arguments, and both derivatives.
GRADIENTS: dict[str, tuple[list[float], Callable[[arb], tuple[arb, arb]]]] = {
    "erfcx": (
        [-20.25, -1.125, 0.25, 4.75, 31.0, 40.0, 1e5],
        lambda x: (REFERENCE["erfcx_1"](x), REFERENCE["erfcx_2"](x)),
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
    it for x = 1e5.
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
