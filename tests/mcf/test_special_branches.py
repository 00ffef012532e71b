"""Special functions and their derivatives: both sides of each branch, and what their bounds catch.

*Derived bound*, against ball arithmetic. A mutant breaks one table, zero, series, constant, power
or sum; the error on the same points then exceeds the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.elementary import (
    airy,
    bessel,
    bessel_jy,
    error,
    exponential,
    function_bounds,
    inverse_error,
    polygamma,
    series,
    tables,
)
from mcf.elementary.operator import FUNCTIONS
from mcf.elementary.tables import Components
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.everyday import everyday
from tests.helpers.executors import assert_numba_agrees
from tests.helpers.special import full, part

_SLOW = pytest.mark.slow
polygamma.polygamma(5)
AIRY = ("airy_ai", "airy_ai_1")
ERROR = ("erf_1", "erfcx_1", "erfcx_2", "erfcx_3", "erfcx_4")
BESSEL = tuple(f"{kind}_{m}" for kind in ("i0e", "i1e", "k0e") for m in (1, 2, 3, 4))
# Both sides of each branch and of intervals, next to zeros, and where a factor is smallest; for the
# derivatives of i0e and i1e below zero, too.
_BESSEL_POINTS = (
    2.0**-60, 0.015625, 0.28125, 0.984375, 1.0625, 1.545127257, 2.781492935, 5.00294531, 31.875,
    100.0, 255.5, 256.5, 2.0**20,
)  # fmt: skip
POINTS: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(AIRY, (
        -(2.0**-70), 2.0**-70, 0.28125, -0.28125, 0.9999, 1.0001, 3.0, 4.0, 15.75, 27.5, 55.0, 71.3,
        84.0, 99.0, -0.99, -1.0188, -1.5, -1.9, -2.3381, -2.8, -3.0, -3.2482, -4.0879, -9.5, -31.25,
        -63.8429, -63.99, -64.01, -100.5, -270.25,
    )),
    # In float32 registers numbers below -9 have infinite results.
    **dict.fromkeys(ERROR, (
        -25.0, -5.3125, -1.09375, -0.015625, -(2.0**-40), 0.0, 2.0**-60, 0.28125, 0.984375, 5.5,
        31.875, 32.25, 100.0, 2.0**27, 2.0**90,
    )),
    **{n: (*_BESSEL_POINTS, *(-0.28125, -2.7814929, -300.0)[: 3 * (n[0] == "i")]) for n in BESSEL},
    "erfcx": (-26.5, -3.25, -0.03125, 0.28125, 31.75, 33.0, 2.0**90),
    "log_ndtr": (-(2.0**200), -50.0, -3.25, -(2.0**-70), 2.0**-70, 0.71875, 17.75, 21.5),
    "ndtri": (2.0**-1000, 0.125, 0.28125, 0.5 + 2.0**-30, 0.71875, 0.8125, 1 - 2.0**-40),
    "polygamma_5": (0.28125, 16.0, 3.125, 66.5, -0.375, -7.3125),
}  # fmt: skip
DERIVATIVES = (*AIRY, *ERROR, *BESSEL)
OFTEN = ("airy_ai", "erf_1", "erfcx_1", "i1e_1", "erfcx")
by_name = pytest.mark.parametrize("name", DERIVATIVES)


def _given(name: str, fmt: Format, terms: int) -> Components:
    """Return expansions all bits of which count."""
    if name in ("ndtri", "polygamma_5"):
        # Next to an end, or at ends of the intervals of a table.
        x = torch.tensor(POINTS[name], dtype=fmt.dtype)
        return tuple(x * f for f in (1.0, 0.8125 * 2.0**-54, -0.71875 * 2.0**-108, 2.0**-163))
    return full(POINTS[name], fmt, terms)


def _worst(name: str, fmt: Format = FP64, terms: int = 4) -> float:
    x = _given(name, fmt, terms)
    return max(part(name, fmt, x, FUNCTIONS[name](x)))


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", everyday(POINTS, OFTEN))
def test_branches(name: str) -> None:
    assert 0 < _worst(name) <= 1


@_SLOW
@pytest.mark.usefixtures("on_torch")
@by_name
def test_branches_of_other_formats(name: str) -> None:
    # Other points are beyond the range of 16-bit formats.
    narrow = ((BF16, 2), (FP16, 4)) if name in AIRY else ()
    for fmt, terms in ((FP64, 2), (FP64, 1), (FP64, 3), (FP32, 3), *narrow):
        assert 0 < _worst(name, fmt, terms) <= 1, (fmt.name, terms)


@_SLOW
@pytest.mark.usefixtures("on_torch")
@by_name
def test_branches_in_float32_registers(name: str) -> None:
    with mcf.registers("float32"):
        for fmt, terms in ((FP32, 1), (FP32, 2), (FP32, 4), (BF16, 2)):
            assert 0 < _worst(name, fmt, terms) <= 1, (fmt.name, terms)


@_SLOW
@pytest.mark.parametrize("fmt", [BF16, FP32, FP64], ids=lambda f: f.name)
@by_name
def test_executors_agree(name: str, fmt: Format) -> None:
    assert_numba_agrees(FUNCTIONS[name], _given(name, fmt, 2))


# Changes of functions: each takes what it replaces.
Change = Callable[[Any], Any]


def _without_last(found: Components) -> Components:
    return (*found[:3], *(torch.zeros_like(c) for c in found[3:]))


def cut(whole: Any) -> Any:
    """Return components without the fourth."""
    return lambda *given: _without_last(whole(*given))


def fewer(count: int) -> Change:
    """Return less degrees than needed."""
    return lambda whole: lambda *given: whole(*given) - count


def short(terms: int) -> Change:
    """Return a polynomial of fewer components, padded with zeros."""

    def change(whole: Any) -> Any:
        def few(x: Components, bits: float, c: Any, *of: float) -> Components:
            found = whole(x[:terms], bits, c, *of)
            return (*found, *(torch.zeros_like(found[0]),) * (4 - terms))

        return few

    return change


def always(value: Any) -> Change:
    """Return the same value for any arguments."""
    return lambda whole: lambda *given: value


def _phase(whole: Any) -> Any:
    def rounded(a: Components, terms: int) -> airy.Phase:
        s = airy.ex.sqrt(a[:terms])
        two_thirds = tables.constant(Fraction(2, 3), terms, a[0].device)
        return airy.Phase(s, airy.ex.mul(airy.ex.mul(a[:terms], s), two_thirds))

    return rounded


def _square(whole: Any) -> Any:
    def rounded(x: Components, count: int, halves: int, sign: float = -1.0) -> Any:
        square = error.ex.mul(x[:count], x[:count])
        return exponential.scaled_exp(tuple(sign * c for c in square), count)

    return rounded


def _asymptotic(whole: Any) -> Any:
    kept = {k: whole(k) * (k < 24) for k in range(60)}
    return lambda k: kept[k] or whole(k) / 2


def _zero(whole: Any) -> Any:
    def few(name: str, device: torch.device) -> torch.Tensor:
        found: torch.Tensor = whole(name, device)
        return torch.where(torch.arange(len(found)) < 4, found, 0.0)

    return few


MUTANTS: list[tuple[str, Any, str, Change]] = [
    *((name, *mutant) for name in AIRY for mutant in (
        (airy, "phase", _phase), (series, "lookup", cut), (bessel_jy, "lookup", cut),
        (series.Nodes, "degree", fewer(12)), (bessel_jy, "degree_needed", fewer(18)),
        (series, "polynomial", short(2)),
    )),
    ("erfcx_2", series, "lookup", cut),
    ("erfcx_2", series, "polynomial", short(3)),
    ("erfcx_2", series.Nodes, "degree", fewer(14)),
    ("erfcx_2", error, "growing", always([0, 4])),
    ("erfcx_2", error, "constant", cut),
    ("erf_1", error, "gauss", _square),
    ("i1e_2", series, "table", _zero),
    ("i0e_2", series, "polynomial", short(3)),
    ("i0e_2", series.Nodes, "degree", fewer(16)),
    ("k0e_2", bessel, "factors", always(((0, 0, 2), (1, -1)))),
    *((name, *mutant) for name in ("erfcx", "log_ndtr") for mutant in (
        (error, "asymptotic", _asymptotic), (series, "lookup", cut), (error, "constant", cut),
        (error.ex, "two_prod", lambda whole: lambda a, b: (a * b, torch.zeros_like(a))),
    )),
    ("ndtri", series, "lookup", cut),
    ("ndtri", inverse_error, "constant", cut),
    ("ndtri", inverse_error.ex, "collected", lambda whole: lambda x, terms: whole(x[:2], terms)),
    ("polygamma_5", series, "lookup", cut),
    ("polygamma_5", polygamma, "_times", cut),
    ("polygamma_5", polygamma, "raised", cut),
    ("polygamma_5", series.Nodes, "degree", fewer(9)),
    ("polygamma_5", polygamma, "weight", lambda whole: lambda m: (*whole(m)[:2], 0, *whole(m)[3:])),
]  # fmt: skip
_OFTEN = ("growing", "asymptotic", "weight", "collected")


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(
    ("name", "owner", "attribute", "change"),
    everyday(
        MUTANTS,
        lambda name, owner, attribute, change: attribute in _OFTEN and name != "log_ndtr",
        id=lambda name, owner, attribute, change: f"{name}-{owner.__name__}-{attribute}",
    ),
)
def test_mutants_break_the_bound(
    name: str, owner: Any, attribute: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _worst(name) <= 1
    # Bounds are composed from the functions that mutants change, and cached: before any change.
    function_bounds.derived(name, FP64, 4)
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    assert _worst(name) > 1
