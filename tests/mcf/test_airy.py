"""Airy's function and its derivatives: bounds, zeros, special values, executors.

*Derived bound*, against ball arithmetic. Caught mutants: zeta as one product, a zero or a table
without its last components, series some terms short, an asymptotic series of two components.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, ctx

import mcf
import mcf.elementary
from mcf.elementary import airy, bessel_jy, tables
from mcf.elementary.airy import ZEROS, asymptotic
from mcf.elementary.format import computing_in
from mcf.elementary.tables import Components
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import balls, inputs
from tests.helpers.everyday import everyday
from tests.helpers.special import REFERENCE, climbed, part
from tests.helpers.zeros import assert_no_expansion_is_nearer, ball, components

_SLOW = pytest.mark.slow
NAMES = airy.NAMES
FORMATS = (BF16, FP16, FP32, FP64)
PROGRAMS: dict[str, Callable[..., Components]] = {
    "airy_ai": airy.airy_ai,
    "airy_ai_1": airy.airy_ai_1,
}


@_SLOW
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_error_of_many_slopes(fmt: Format, terms: int) -> None:
    """Of the derivative; the function's are in `test_special_functions.py`."""
    for (x,) in inputs("airy_ai_1", fmt, terms, 300, seed=20 + terms):
        assert max(part("airy_ai_1", fmt, x, airy.airy_ai_1(x))) <= 1


@_SLOW
@pytest.mark.usefixtures("on_torch")
def test_error_of_the_slope_found_by_climbing() -> None:
    for fmt, terms in ((FP64, 4), (FP64, 2), (FP32, 4)):
        assert 0 < climbed("airy_ai_1", airy.airy_ai_1, fmt, terms) <= 1


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(
    ("name", "fmt", "terms"),
    everyday(itertools.product(NAMES, (FP32, FP64), (1, 3)), [(NAMES[0], FP64, 3)]),
)
def test_special_values(name: str, fmt: Format, terms: int) -> None:
    """As torch has them, NaN at infinities; 0 where no bit of the phase is known."""
    x = torch.tensor([math.nan, math.inf, -math.inf, 110.0, 1e30, 0.0, -0.0], dtype=fmt.dtype)
    theirs = torch.special.airy_ai(x)
    ours = PROGRAMS[name]((x, *(torch.zeros_like(x) for _ in range(terms - 1))))
    assert torch.equal(ours[0].isnan(), theirs.isnan())
    assert all(bool((c[:5] == 0).all()) for c in ours[1:])
    assert ours[0][3:5].tolist() == theirs[3:5].tolist() == [0.0, 0.0]
    if name == "airy_ai":
        assert ours[0][5:].tolist() == pytest.approx([0.3550280538878172] * 2, rel=1e-7)
    rows = [1e18, 1e37] if fmt is FP32 else [1e18, 1e42, 1e43, 1e300]
    far = -torch.tensor(rows, dtype=fmt.dtype)
    found = PROGRAMS[name]((far,))[0].double()
    size = far.double().abs() ** (-0.25 if name == "airy_ai" else 0.25)
    assert bool((found.abs() <= size).all())
    assert bool((found[far.abs() <= 2.0**142] != 0).all())
    assert bool((found[far.abs() > 2.0**142] == 0).all())


def test_coefficients() -> None:
    """DLMF 9.7.2: u_1 = 5/72, u_2 = 385/10368, v_1 = -7/72, v_2 = -455/10368."""
    assert [asymptotic(0, k) for k in (1, 2)] == [Fraction(5, 72), Fraction(385, 10368)]
    assert [asymptotic(1, k) for k in (1, 2)] == [Fraction(-7, 72), Fraction(-455, 10368)]


def _zeros(m: int) -> list[Fraction]:
    """As they are kept, and not the points between them."""
    kept = tables.table(f"{NAMES[m]}_points", torch.device("cpu")).T.tolist()
    low = airy.LOW[m]
    return [
        sum(map(Fraction, row)) for k, row in enumerate(kept) if k >= len(low) or low[k][1] is None
    ]


@pytest.mark.parametrize("m", [0, pytest.param(1, marks=_SLOW)])
def test_zeros(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against balls, all that are kept; no expansion is nearer than what they are kept for."""
    monkeypatch.setattr(ctx, "prec", 1100)
    zeros, beside = _zeros(m), arb(2) ** -470
    assert len(zeros) == ZEROS
    assert zeros[-1] > 63.8
    for z in zeros[:: 1 if m else 9]:
        low, high = (REFERENCE[NAMES[m]](-ball(z) * (1 + s * beside)) for s in (-1, 1))
        assert (low * high) < 0
    assert_no_expansion_is_nearer(zeros)


def _at_zeros(m: int) -> Components:
    rows = [[-c for c in components(z)] for z in _zeros(m)[::9]]
    return tuple(torch.tensor(c, dtype=torch.float64) for c in zip(*rows, strict=True))


@_SLOW
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("m", [0, 1])
def test_next_to_zeros(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the result; two floats less of the zeros are caught."""
    x, name = _at_zeros(m), NAMES[m]
    assert max(part(name, FP64, x, PROGRAMS[name](x))) <= 1
    whole = bessel_jy.parts_needed
    monkeypatch.setattr(bessel_jy, "parts_needed", lambda *given: whole(*given) - 2)
    assert max(part(name, FP64, x, PROGRAMS[name](x))) > 1


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("m", [0, pytest.param(1, marks=_SLOW)])
def test_every_float_has_the_row_of_an_interval_around_it(m: int) -> None:
    """And rows ascend, so that `the bounds` knows them by their ends."""
    a = torch.arange(-(1 << 12), (64 << 12) + 1, dtype=torch.float64) / (1 << 12)
    row = airy.row_of(m, a)
    assert bool((row.diff() >= 0).all())
    assert row.diff().max() == 1
    assert (row[0], row[-1] >= ZEROS) == (0, True)
    points = tables.table(f"{NAMES[m]}_points", torch.device("cpu"))[0]
    # The coefficients of a row fall for these distances.
    assert bool(((a - points[row.long()]).abs() * a.clamp(min=1).sqrt() < 1.9).all())


@_SLOW
@pytest.mark.usefixtures("on_torch")
def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ai', x Ai and Ai + x Ai' to 4 u^2: a function and a product, then the sum of two."""
    monkeypatch.setattr(ctx, "prec", 600)
    x: Any = mcf.tensor(["0.3", "-2.338", "7.1", "-80.7", "-1.0187"], 2, torch.float64)
    value = torch.special.airy_ai(x.requires_grad_())
    slopes = []
    for _ in range(3):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        slopes.append(value)
    rows = zip(*map(balls, (v.detach().components for v in (x, *slopes))), strict=True)
    for v, first, second, third in rows:
        ai, slope = v.airy_ai(), v.airy_ai(derivative=1)
        assert abs(first - slope) <= abs(slope) * 4 * arb(2) ** -106
        assert abs(second - v * ai) <= abs(v * ai) * 4 * arb(2) ** -106
        size = abs(ai) + abs(v * slope)
        assert abs(third - ai - v * slope) <= size * 4 * arb(2) ** -106


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_a_row_is_that_of_a_root_rounded_correctly(fmt: Format) -> None:
    """Beside the ends of rows, where the last bit of the root decides; NumPy's is rounded so.

    Mutant: `torch.sqrt`, of which one in five of float32 is not, with MKL on some processors.
    """
    own: Any = {FP32: np.float32, FP64: np.float64}[fmt]
    scale, shift = own(2 / (3 * math.pi)), own(airy.SHIFT[0])
    ends = [(3 * math.pi / 2 * (k - airy.SHIFT[0])) ** (2 / 3) for k in range(6, ZEROS)]
    near = np.array(ends, own)[:, None] + np.arange(-200, 201, dtype=own) * own(2.0 ** (6 - fmt.p))
    wanted = np.floor(near * np.sqrt(near) * scale + shift)
    assert (np.unique(wanted - wanted.min(1, keepdims=True)) == [0, 1]).all()
    with computing_in(fmt):
        row = airy.row_of(0, torch.from_numpy(near))
    first = float(row.min() - wanted.min())
    assert (row.numpy() - first == wanted).all()
