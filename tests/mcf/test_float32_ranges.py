"""Functions in float32 registers where the range of float32 counts.

*Exact*: whole powers, remainders. *Derived bound*: tangents beside their poles and powers of
numbers beside 1, whose last bits are below the range before they are scaled. *Observed*, by
sampling: softmax, log_softmax and logsumexp against expansions of float64. Mutants: a rest of an
angle after its scaling, a logarithm that is not lifted, erf's series and the shifted exponent a
component short, powers that are not corrected.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf import elementary
from mcf.convert.numbers import components_of
from mcf.elementary import angles, logarithm, power, series, working
from mcf.elementary.function_bounds import UNDERFLOW
from mcf.kernels.formats import BF16, FP16, FP32, Format
from tests.helpers import assert_all_same_bits
from tests.helpers.elementary import Components, Inputs, inputs
from tests.helpers.everyday import everyday
from tests.helpers.sums import values
from tests.mcf.test_float32_functions import excess, needs_mpfr

pytestmark = pytest.mark.usefixtures("float32_registers")


def split(numbers: list[int | Fraction], terms: int) -> Components:
    rows = [components_of(n, FP32, terms) for n in numbers]
    return tuple(torch.tensor(c) for c in zip(*rows, strict=True))


@needs_mpfr
def test_tangents_beside_poles(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs("tan", FP32, 4, 60, 44)[2]
    assert excess("tan", FP32, 4, *x) <= 1
    needed = angles.bits_needed

    def cut(*given: Any, full: bool = False) -> int:
        return needed(*given)

    monkeypatch.setattr(angles, "bits_needed", cut)
    assert excess("tan", FP32, 4, *x) > 2


def test_the_quotient_of_an_exponent_by_a_limb() -> None:
    """A product and a shift: of all exponents of either format."""
    for limb, exponents in (
        (24, range(-1074, 1000)),
        (angles.SHORT_LIMB, range(-149, 140)),
    ):
        factor = -(-angles._RECIPROCAL // limb)
        for e in exponents:
            found = (e + angles._OFFSET) * factor >> angles._SHIFT
            assert found - angles._OFFSET // limb == e // limb


@needs_mpfr
def test_powers_of_numbers_beside_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 + 2**-60 .. to powers of some 2**60.
    draws = torch.Generator().manual_seed(3)
    low = torch.randint(2**23, 2**24, (3, 40), generator=draws).float()
    x = torch.ones(40), low[0] * 2.0**-84, low[1] * 2.0**-110, low[2] * 2.0**-136
    y = tuple(c.clone() for c in (low[0] * 2.0**37, low[1] * 2.0**10, low[2] * 2.0**-20))
    y = (*y, torch.zeros(40))
    assert excess("pow", FP32, 4, x, y) <= 1
    monkeypatch.setattr(logarithm, "_SPLIT_SHIFT", 0)
    assert excess("pow", FP32, 4, x, y) > 2


def test_power_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(3, 60), (-3, 61), (5, 40), (7, 1), (2**20 + 1, 4), (Fraction(5, 2**70), 2), (9, 12)]
    cases += [(Fraction(1, 2), 149), (4, 63), (Fraction(1, 2**100), -1), (2, -149)]
    cases += [(1 + Fraction(1, 2**40), 2), (1 + Fraction(1, 2**30), 3)]
    x = split([Fraction(b) for b, _ in cases], 4)
    y = split([k for _, k in cases], 4)
    exact = [Fraction(b) ** k for b, k in cases]
    assert values(elementary.pow(x, y)) == exact
    monkeypatch.setattr(power, "_BITS_OF_K", 0)
    assert values(elementary.pow(x, y)) != exact


@needs_mpfr
@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_a_series_of_erf_that_is_a_component_short(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = inputs(name, FP32, 3, 60, 43)[2]
    assert excess(name, FP32, 3, *x) <= 1
    lookup = series.lookup

    def short(table: str, index: Any, terms: int) -> Components:
        found = lookup(table, index, terms)
        return (*found[:2], *(torch.zeros_like(c) for c in found[2:]))

    monkeypatch.setattr(series, "lookup", short)
    x = inputs(name, FP32, 3, 60, 43)[1]
    assert excess("erfc" if name == "erf" else name, FP32, 3, *x) > 2


@pytest.mark.parametrize("name", ["fmod", "remainder", "floor", "round"])
def test_exact_functions_have_the_bits_of_float64(name: str) -> None:
    d = Inputs(FP32, 2, 5)
    x, y = d.between(-10, 30, 100), d.between(-10, 5, 100)
    given = (x, y) if name in ("fmod", "remainder") else (x,)
    found = getattr(elementary, name)(*given)
    with mcf.registers("float64"):
        assert_all_same_bits(found, getattr(elementary, name)(*given))


# Of the result, or of logsumexp of the larger of that and the largest argument, in u**terms; four
# components have no bits to spare, and 3 was found.
LIMITS = {1: 1 + 2.0**-8, 2: 1.0, 3: 1.0, 4: 8.0}


def along(name: str, fmt: Format, terms: int) -> float:
    """The largest error over the limit."""
    worst = 0.0
    for seed, (low, high) in enumerate(((-4, 3), (-8, 5), (0, 6), (-30, 1))):
        x = Inputs(fmt, terms, seed).between(low, high, 12)
        found = values(getattr(elementary, name)(tuple(c[:, None] for c in x), 0))
        wide = [c.double()[:, None] for c in x]
        wide += [torch.zeros_like(wide[0])] * (3 - terms)
        exact = values(getattr(elementary, name)(tuple(wide), 0))
        largest = max(values(x)) if name == "logsumexp" else Fraction(0)
        # Half a smallest number of the format, and what underflow may cost.
        lost = Fraction(33, 64) * fmt.min_subnormal + UNDERFLOW * FP32.min_subnormal
        for f, e in zip(found, exact, strict=True):
            off = abs(f - e) - lost
            worst = max(worst, float(off / max(abs(e), abs(largest)) / fmt.u**terms))
    return worst / LIMITS[terms]


ALONG = ("softmax", "log_softmax", "logsumexp")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=lambda f: f.name)
def test_functions_along_a_dimension(name: str, fmt: Format) -> None:
    for terms in (1, 2, 3, 4):
        assert along(name, fmt, terms) <= 1, terms


@pytest.mark.slow
@pytest.mark.parametrize("name", everyday(ALONG, [ALONG[1]]))
def test_a_difference_that_is_a_component_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert along(name, FP32, 2) <= 1
    collected = working.collected

    def short(x: Components, terms: int) -> Components:
        return (collected(x, 1)[0], *[torch.zeros_like(x[0])] * (terms - 1))

    monkeypatch.setattr(working, "collected", short)
    assert along(name, FP32, 2) > 2
