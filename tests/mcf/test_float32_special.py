"""Special functions in float32 registers: errors against ball arithmetic, and what bounds catch.

*Derived bound* (`mcf.bound(..., registers="float32")`), at the ends of the range, next to zeros and
poles, and next to the numbers below which one term is all that counts. *Observed*: how near the
start of erfinv is. Mutants: a table a component short, a limit of the format that is that of fewer
components, a logarithm that is scaled next to a power of two, exponents beyond those of numbers.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from flint import arb, ctx

import mcf
from mcf import elementary
from mcf.convert.numbers import components_of
from mcf.elementary import bessel_jy, function_bounds, gamma_series, inverse_error, polygamma
from mcf.elementary.format import WORKING, computing_in
from mcf.elementary.operator import FUNCTIONS, IN_FLOAT32
from mcf.elementary.tables import Components
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from tests.helpers.elementary import inputs
from tests.helpers.everyday import everyday
from tests.helpers.special import often, part

pytestmark = pytest.mark.usefixtures("float32_registers")

for _s in (3, 4, 5):
    polygamma.zeta(_s)
NAMES = sorted(IN_FLOAT32 & {*function_bounds.SPECIAL})
ZETAS = ("zeta_3", "zeta_4", "zeta_5")
KINDS = ("j0", "j1", "y0", "y1")


def worst(name: str, fmt: Format, terms: int, count: int, seed: int) -> float:
    """Return the largest error over the bound, of batches of some arguments."""
    found = 0.0
    for (x,) in inputs(name, fmt, terms, count, seed):
        found = max(found, *part(name, fmt, x, FUNCTIONS[name](x)))
    return found


def at(name: str, *x: float) -> float:
    """Return the error over the bound of a number of four components."""
    given = tuple(torch.tensor([c]) for c in (*x, *[0.0] * (4 - len(x))))
    return part(name, FP32, given, FUNCTIONS[name](given))[0]


@pytest.mark.sampled(every=31)
@pytest.mark.parametrize("name", everyday(NAMES, often))
def test_bound(name: str) -> None:
    for fmt, terms in ((FP32, 4), (FP32, 2), (BF16, 2)):
        assert 0 < worst(name, fmt, terms, 6, terms) <= 1, (fmt.name, terms)


@pytest.mark.slow
@pytest.mark.sampled(slow=3)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=lambda f: f.name)
@pytest.mark.parametrize("name", [*NAMES, *ZETAS])
def test_bound_of_many(name: str, fmt: Format, terms: int) -> None:
    assert 0 < worst(name, fmt, terms, 20 if name in ZETAS else 300, 20 + terms) <= 1


@pytest.mark.parametrize("fmt", [FP32, pytest.param(FP64, marks=pytest.mark.slow)], ids=str)
def test_the_start_of_erfinv(fmt: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves what the terms of the inverse series are counted for."""
    monkeypatch.setattr(ctx, "prec", 300)
    few, many, repeats = (150, 30, 8) if fmt is FP32 else (1075, 60, 40)
    e = -torch.cat([torch.arange(1, few), torch.arange(1, many).repeat(repeats)])
    m = 1 + torch.arange(len(e)).to(fmt.dtype).remainder(61) / 64
    e = torch.where(m > 1, e - 1, e)
    with computing_in(fmt):
        x = inverse_error.start(m, e)
    for given, row, k in zip(x.tolist(), m.tolist(), e.tolist(), strict=True):
        v = arb(given)
        d = (v.erfc() - arb(row) * arb(2) ** k) * (v * v).exp() * arb.pi().sqrt() / 2
        assert abs(d * v) < arb(2) ** -(WORKING[fmt].start_bits + 2)


# A limit of the format, what is too early for four components or beyond the range, and a number
# that shows it.
LIMITS = [
    ("thin", "log_ndtr", 40, (7.9,)),
    ("huge", "erfcx", 2.0**30, (2.0**33,)),
    ("start_bits", "erfinv", 100, (1.0, -(2.0**-140))),
    ("alone", "digamma", 2.0**-52, (2.0**-60,)),
    ("many", "lgamma", 2.0**60, (2.0**63,)),
    ("vast", "i0e", 2.0**60, (2.0**63,)),
    ("vast", "j0", math.inf, (3e38,)),
    ("small", "y0", 2.0**-148, (2.0**-147,)),
    ("apart", "polygamma_2", 60, (2.0**-21,)),
    # 2^(-80 m) of smaller m is two numbers multiplied.
    ("bottom", "polygamma_4", -2000, (-(2.0**80), 0.25)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "name", "value", "x"),
    everyday(
        LIMITS,
        lambda limit, name, value, x: name not in KINDS,
        id=lambda limit, name, value, x: f"{limit}-{name}",
    ),
)
def test_a_limit_of_fewer_components(
    limit: str, name: str, value: float, x: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at(name, *x) <= 1
    monkeypatch.setitem(WORKING, FP32, dataclasses.replace(WORKING[FP32], **{limit: value}))
    assert at(name, *x) > 1


# The zero of digamma, to four components.
ZERO = components_of(gamma_series.zero_of_digamma(), FP32, 4)
# Where a function takes its table from.
MODULES = dict.fromkeys(("digamma", "erfinv", "i0", "erfcx"), "series") | {"y0": "bessel_jy"}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", everyday(MODULES, lambda n: n not in ("i0", "y0")))
def test_a_table_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert at(name, 0.4375) <= 1
    module = importlib.import_module(f"mcf.elementary.{MODULES[name]}")
    whole = module.lookup

    def short(table: str, index: Any, terms: int) -> Components:
        found = whole(table, index, terms)
        return (*found[:3], *(torch.zeros_like(c) for c in found[3:]))

    monkeypatch.setattr(module, "lookup", short)
    assert at(name, 0.4375) > 1


def zero_of(name: str) -> tuple[float, ...]:
    """Return the first zero that is kept, but 0, to four components."""
    about = bessel_jy.about(name[0], int(name[1]))[name[0] == "j"]
    return components_of(Fraction(about.zero, bessel_jy._ONE), FP32, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", everyday(KINDS, ["j0"]))
def test_a_zero_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to it the result has as many bits as there are below it in the range."""
    x = zero_of(name)
    assert at(name, *x) <= 1
    whole = bessel_jy.parts_needed
    monkeypatch.setattr(bessel_jy, "parts_needed", lambda *given: whole(*given) - 4)
    assert at(name, *x) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_ends_of_the_range_of_j_and_y(name: str) -> None:
    z = zero_of(name)
    below = 2.0**-40 * (1 - 2.0**-24)
    for x in (
        (2.0**-149,), (2.0**-126, 2.0**-149), (2.0**-100, 2.0**-149), (2.0**-61,), (2.0**-60,),
        (below, 2.0**-66), (2.0**-40, 2.0**-66), (2.0**-20, 2.0**-149), (0.78125,), (z[0],), z[:2],
        z[:3], (*z[:3], z[3] * 2), (255.99998, 2.0**-30), (256.0,), (256.0, -(2.0**-149)),
        (2.0**56, 2.0**-20), (2.0**110,), (2.0**110, 2.0**80, 1.0, 2.0**-100), (2.0**111,), (3e38,),
    ):  # fmt: skip
        assert at(name, *x) <= 1, (name, x)
    for x, expected in ((math.inf, math.nan), (math.nan, math.nan), (0.0, -math.inf)):
        value = getattr(elementary, name)((torch.tensor([x]),))[0].item()
        zero = float(name == "j0") if name[0] == "j" else expected
        assert str(value) == str(zero if x == 0 else expected)


@pytest.mark.slow
def test_ends_of_the_range() -> None:
    tiny = 2.0**-149
    for name, x in (
        ("erfinv", (1.0, -tiny)), ("erfinv", (tiny,)), ("ndtri", (tiny,)), ("ndtri", (1.0, -tiny)),
        ("ndtri", (0.5, tiny)), ("log_ndtr", (14.0625,)), ("log_ndtr", (-3e38,)),
        ("log_ndtr", (-1e19,)), ("erfcx", (3e38,)), ("erfcx", (-9.375,)), ("i0", (91.5,)),
        ("lgamma", (3e36,)), ("lgamma", (-1.0, 2.0**-60)), ("lgamma", (-1.0, -(2.0**-125))),
        ("lgamma", (1.0, 2.0**-100)), ("lgamma", (-tiny,)), ("lgamma", (2.0, -tiny)),
        ("digamma", (3e38,)), ("digamma", (2.0**-127,)), ("digamma", (-3.0, 2.0**-100)),
        ("trigamma", (2.0**-53,)), ("trigamma", (2.0**-63,)), ("trigamma", (-1.0, 2.0**-62)),
        ("trigamma", (-2.0, -(2.0**-53))), ("trigamma", (3e38,)), ("trigamma", (-(2.0**-51),)),
        ("k0", (103.5,)), ("k1", (2.0**-127,)), ("k0e", (tiny,)), ("k1e", (3e38,)),
        ("digamma", ZERO), ("digamma", (2.0**-53,)), ("digamma", (-2.0, -(2.0**-53))),
        ("i1", (-tiny,)), ("i1e", (3e38,)), ("spherical_bessel_j0", (3e38,)),
    ):  # fmt: skip
        assert at(name, *x) <= 1, (name, x)


@pytest.mark.slow
@pytest.mark.parametrize("m", [2, 3, 4])
def test_ends_of_the_range_of_polygamma(m: int) -> None:
    """Below `least` m! / r^(m+1) alone, above with what is added: both keep the bound."""
    with computing_in(FP32):
        least = polygamma.tiny_below(m)
    below, end, name = least * (1 - 2.0**-24), 2.0 ** -(120 // (m + 1)), f"polygamma_{m}"
    for x in (
        (least,), (below, least * 2.0**-26), (-least,), (-below,), (-1.0, least), (-2.0, -below),
        (-3.0, least), (end,), (-end,), (-1.0, -end), (2.0**-149,), (-(2.0**-149),),
        (-1.0, 2.0**-149), (63.99999,), (64.0,), (64.0, -(2.0**-149)), (2.0**20, 2.0**-60),
        (2.0**31,), (2.0**60,), (3e38,), (-62.5, 2.0**-30), (-70.0, 0.25, 2.0**-60),
        (-(2.0**20), 0.5, 2.0**-26, 2.0**-90), (-(2.0**40), -0.125), (-(2.0**80), 0.25),
        (0.5, -(2.0**-149)), (0.5,), (-0.5, 2.0**-149),
    ):  # fmt: skip
        assert at(name, *x) <= 1, x
    infinite = FUNCTIONS[name]((torch.tensor([2.0**-149, -(2.0**-149), 0.0, -2.0]),))
    assert bool(infinite[0].isinf().all())


def test_higher_orders_are_refused() -> None:
    """Their tables have numbers beyond the range of float32."""
    x = mcf.tensor([1.5], 2)
    for order in (5, 32):
        with pytest.raises(NotImplementedError, match=f"polygamma_{order} of fp32 components"):
            torch.polygamma(order, x)
        with pytest.raises(ValueError, match="has no form in float32 registers"):
            mcf.bound(f"zeta_{order + 1}", 2)
