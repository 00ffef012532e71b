"""The bounds of the special functions catch what they are there to catch.

Caught mutants: a table or a constant without its last component, series some terms short, a zero of
digamma of no more bits than the argument, a logarithm of 2 with fewer bits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from flint import arb, ctx

import mcf
import mcf.elementary
from mcf.elementary import (
    angles,
    bessel_jy,
    exponential,
    function_bounds,
    gamma,
    gamma_series,
    inverse_error,
    series,
    tables,
)
from mcf.elementary.format import WORKING
from mcf.elementary.function_bounds import SPECIAL
from mcf.elementary.tables import Components
from mcf.kernels import FP64
from tests.helpers.special import check, part

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")


def _fails(name: str) -> bool:
    return check(name, FP64, 4, 12, seed=1) > 1


def _module(name: str) -> Any:
    """Where a function takes its series from."""
    if name == "spherical_bessel_j0":
        return angles
    return bessel_jy if name in ("airy_ai", "j0", "j1", "y0", "y1") else series


def _cut(components: Components) -> Components:
    kept = max(1, len(components) - 1) if len(components) >= 4 else len(components)
    return (*components[:kept], *(torch.zeros_like(c) for c in components[kept:]))


@pytest.fixture(scope="module", autouse=True)
def bounds() -> None:
    """Bounds are counted from what mutants change, and kept: before anything changes."""
    for name in SPECIAL:
        function_bounds.derived(name, FP64, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIAL)
def test_a_table_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tables.lookup
    assert not _fails(name)
    module = _module(name)
    monkeypatch.setattr(module, "lookup", lambda *given: _cut(whole(*given)))
    assert _fails(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lgamma", "digamma", "trigamma"])
def test_a_constant_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tables.constant
    monkeypatch.setattr(gamma, "constant", lambda *given: _cut(whole(*given)))
    assert _fails(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in SPECIAL if n not in ("spherical_bessel_j0", "erfcx", "log_ndtr")]
)
def test_a_series_too_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the table: Stirling's last terms are small beside what they are added to.

    The series of sines are the elementary functions', in `test_elementary_mutants`.
    """
    owner: Any = series.Nodes
    degree = "degree"
    # Series that fall with 1/k! have some terms to spare.
    fewer = 20 if name == "airy_ai" else 7
    if _module(name) is bessel_jy:
        owner, degree, fewer = bessel_jy, "degree_needed", max(14, fewer)
    whole = getattr(owner, degree)
    monkeypatch.setattr(owner, degree, lambda *given: whole(*given) - fewer)
    assert _fails(name)


@pytest.mark.slow
def test_stirling_cut_in_half(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gamma._tail
    monkeypatch.setattr(gamma, "_tail", lambda k, square: whole(k, square[:2]) + square[2:])
    for name in ("lgamma", "digamma", "trigamma"):
        assert _fails(name)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["steps", "inverse"])
def test_a_step_of_erfinv(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logarithm of 2 with fewer bits, and one term less of the inverse series."""
    assert not _fails("erfinv")
    if broken == "inverse":
        fewer = {n: c for n, c in inverse_error._INVERSE.items() if n != 4}
        monkeypatch.setattr(inverse_error, "_INVERSE", fewer | {4: ((0, 0), 1)})
    else:
        whole = exponential.steps
        monkeypatch.setattr(
            exponential, "steps", lambda *given: (whole(*given)[0], whole(*given)[1][:5])
        )
    assert _fails("erfinv")


@pytest.mark.slow
def test_the_start_of_erfinv() -> None:
    """It leaves what the terms of the inverse series are counted for."""
    e = -torch.cat([torch.arange(1, 1075), torch.arange(1, 60).repeat(40)])
    m = 1 + torch.arange(len(e)).double().remainder(61) / 64
    e = torch.where(m > 1, e - 1, e)
    x = inverse_error.start(m, e)
    before, ctx.prec = ctx.prec, 300
    try:
        for given, row, k in zip(x.tolist(), m.tolist(), e.tolist(), strict=True):
            v = arb(given)
            d = (v.erfc() - arb(row) * arb(2) ** k) * (v * v).exp() * arb.pi().sqrt() / 2
            assert abs(d * v) < arb(2) ** -(WORKING[FP64].start_bits + 2)
    finally:
        ctx.prec = before


@pytest.mark.slow
def test_a_short_zero_of_digamma(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as an argument of four components, which may be nearest to it."""
    whole = series.table

    def short(name: str, device: torch.device) -> torch.Tensor:
        found = whole(name, device).clone()
        if name == "digamma_zero":
            found[4:] = 0
        return found

    zero = gamma_series.zero_of_digamma()
    x = tuple(torch.tensor([v], dtype=torch.float64) for v in _rounded(zero, 4))
    assert part("digamma", FP64, x, mcf.elementary.digamma(x))[0] <= 1
    monkeypatch.setattr(series, "table", short)
    assert part("digamma", FP64, x, mcf.elementary.digamma(x))[0] > 1


def _rounded(x: Fraction, count: int) -> list[float]:
    found = []
    for _ in range(count):
        found.append(float(x))
        x -= Fraction(found[-1])
    return found
