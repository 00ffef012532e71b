"""Bessel's and Airy's functions: special values, zeros, higher derivatives, torch's names.

Errors, and mutants that their bounds catch, are in `test_special_functions.py` and
`test_special_branches.py`. Caught mutants: an order for another, a number where torch has none.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, ctx

import mcf
import mcf.elementary
from mcf.elementary import airy, bessel, bessel_jy, bessel_series, tables
from mcf.elementary.format import computing_in
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


@pytest.mark.parametrize(
    ("name", "fmt", "terms"),
    everyday(itertools.product(airy.NAMES, (FP32, FP64), (1, 3)), [(airy.NAMES[0], FP64, 3)]),
)
def test_special_values_of_airy_functions(name: str, fmt: Format, terms: int) -> None:
    """As torch has them, NaN at infinities; 0 where no bit of the phase is known."""
    x = torch.tensor([math.nan, math.inf, -math.inf, 110.0, 1e30, 0.0, -0.0], dtype=fmt.dtype)
    theirs = torch.special.airy_ai(x)
    ours = FUNCTIONS[name]((x, *(torch.zeros_like(x) for _ in range(terms - 1))))
    assert torch.equal(ours[0].isnan(), theirs.isnan())
    assert all(bool((c[:5] == 0).all()) for c in ours[1:])
    assert ours[0][3:5].tolist() == theirs[3:5].tolist() == [0.0, 0.0]
    if name == "airy_ai":
        assert ours[0][5:].tolist() == pytest.approx([0.3550280538878172] * 2, rel=1e-7)
    rows = [1e18, 1e37] if fmt is FP32 else [1e18, 1e42, 1e43, 1e300]
    far = -torch.tensor(rows, dtype=fmt.dtype)
    found = FUNCTIONS[name]((far,))[0].double()
    size = far.double().abs() ** (-0.25 if name == "airy_ai" else 0.25)
    assert bool((found.abs() <= size).all())
    assert bool((found[far.abs() <= 2.0**142] != 0).all())
    assert bool((found[far.abs() > 2.0**142] == 0).all())


def test_coefficients() -> None:
    """DLMF 9.7.2: u_1 = 5/72, u_2 = 385/10368, v_1 = -7/72, v_2 = -455/10368."""
    assert [airy.asymptotic(0, k) for k in (1, 2)] == [Fraction(5, 72), Fraction(385, 10368)]
    assert [airy.asymptotic(1, k) for k in (1, 2)] == [Fraction(-7, 72), Fraction(-455, 10368)]


@pytest.mark.parametrize("m", [0, pytest.param(1, marks=_SLOW)])
def test_every_float_has_the_row_of_an_interval_around_it(m: int) -> None:
    """And rows ascend, so that `the bounds` knows them by their ends."""
    a = torch.arange(-(1 << 12), (64 << 12) + 1, dtype=torch.float64) / (1 << 12)
    row = airy.row_of(m, a)
    assert bool((row.diff() >= 0).all())
    assert row.diff().max() == 1
    assert (row[0], row[-1] >= airy.ZEROS) == (0, True)
    points = tables.table(f"{airy.NAMES[m]}_points", torch.device("cpu"))[0]
    # The coefficients of a row fall for these distances.
    assert bool(((a - points[row.long()]).abs() * a.clamp(min=1).sqrt() < 1.9).all())


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_a_row_is_that_of_a_root_rounded_correctly(fmt: Format) -> None:
    """Beside the ends of rows, where the last bit of the root decides; NumPy's is rounded so.

    Mutant: `torch.sqrt`, of which one in five of float32 is not, with MKL on some processors.
    """
    own: Any = {FP32: np.float32, FP64: np.float64}[fmt]
    scale, shift = own(2 / (3 * math.pi)), own(airy.SHIFT[0])
    ends = [(3 * math.pi / 2 * (k - airy.SHIFT[0])) ** (2 / 3) for k in range(6, airy.ZEROS)]
    near = np.array(ends, own)[:, None] + np.arange(-200, 201, dtype=own) * own(2.0 ** (6 - fmt.p))
    wanted = np.floor(near * np.sqrt(near) * scale + shift)
    assert (np.unique(wanted - wanted.min(1, keepdims=True)) == [0, 1]).all()
    with computing_in(fmt):
        row = airy.row_of(0, torch.from_numpy(near))
    first = float(row.min() - wanted.min())
    assert (row.numpy() - first == wanted).all()
